"""``bench hasse`` at a tiny size: the masks it draws, the report, the bars, and what it refuses."""

import json

import networkx
import numpy as np
import pytest

from benchmarks.speed.orders import hasse
from benchmarks.speed.orders.hasse_masks import KINDS, NAMES, autoregressive_family, butterfly_family, find_order
from hf_attn_ext.hasse import Poset

TINY = ("--lengths", "16,40", "--repeats", 2, "--budget-seconds", 0.01, "--threads", 1)


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
def test_a_mask_is_the_same_dense_and_packed_and_every_time(kind):
    for wanted in (16, 600, 1100):  # one block of rows, two, three
        dense = kind.dense(wanted).numpy()
        positions = kind.make(wanted)[0]
        assert dense.shape == (positions, positions) and wanted - 2 <= positions <= wanted
        assert np.array_equal(kind.packed(wanted).dense(), dense) and np.array_equal(kind.dense(wanted).numpy(), dense)


def test_the_masks_are_what_they_say():
    masks = {kind.name: kind.dense(300).numpy() for kind in KINDS}
    posets = {name: find_order(mask) for name, mask in masks.items()}
    assert np.array_equal(masks["causal"], np.tri(300, dtype=bool))
    tokens = 100
    butterfly = posets["butterfly"]
    assert len(butterfly) == 3 * tokens - 2 and butterfly.num_covers == 4 * tokens - 6 and butterfly.height() == tokens
    for name in ("order", "thin-order", "sparse-order", "layers"):
        assert len(posets[name]) == 300
    assert 0.23 < masks["order"].mean() < 0.27 and 0.04 < masks["thin-order"].mean() < 0.06
    assert 150 < len(posets["digraph"]) < 300 and 1 < len(posets["sparse-digraph"]) < 200
    assert posets["layers"].height() == 3 and posets["layers"].num_covers == masks["layers"].sum() > 300**2 / 9


def test_the_families():
    family = autoregressive_family(3)
    assert [len(task) for task in family] == [1, 2, 3]
    assert all(np.array_equal(task.mask, np.tri(len(task))) for task in family)
    family = butterfly_family(4)
    assert [list(task.labels.values()) for task in family] == [[0], [1], [2], [3]]
    assert all(task.is_dense and task.poset.height() <= 4 for task in family)
    for k, task in enumerate(family):
        assert {("token", i) for i in range(4) if i != k} < set(task.inputs) and ("token", k) not in task.inputs


def test_the_report(run, tmp_path, monkeypatch):
    monkeypatch.setattr(hasse, "FAMILIES", {name: (family, 6) for name, (family, _) in hasse.FAMILIES.items()})
    done = run("bench", "hasse", *TINY, "--packed", "70", "--networkx-limit", 16, "--out", tmp_path)
    assert done.code == 0, done.err
    report = json.loads((tmp_path / "hasse.json").read_text())
    assert report["complete"] and {row["mask"] for row in report["rows"]} == set(NAMES)
    for row in report["rows"]:
        assert row["seconds"]["median"] > 0 and row["peak_bytes"] >= 0 and row["no_peak"] is None
        assert (row["networkx"] is None) == (row["length"] > 16) == (row["ratio"] is None)
        assert row["networkx"] is None or row["networkx"]["same"]
    assert [row["packed"] for row in report["rows"][:3]] == [False, False, True]
    for row in report["joint"]:
        assert row["verified"] and row["causal"] == (row["family"] == "autoregressive")
    assert [row["positions"] for row in report["joint"]] == [6, 16] and report["joint"][0]["nodes"] == 21
    assert [bar["bar"] for bar in report["bars"]] == ["joint"] and report["bars"][0]["met"]
    for part in ("same diagram", "log-log slope", "peak memory beyond the mask", "causal", "70 packed", "networkx 3"):
        assert part in done.out


def test_less_may_be_asked(run, tmp_path):
    words = ("--packed", "none", "--masks", "causal", "--skip-memory", "--skip-families", "--networkx-limit", 0)
    done = run("bench", "hasse", *TINY, *words, "--out", tmp_path)
    report = json.loads((tmp_path / "hasse.json").read_text())
    assert done.code == 0 and [row["length"] for row in report["rows"]] == [16, 40] and report["joint"] == []
    assert {row["no_peak"] for row in report["rows"]} == {"not measured"} and "peak memory" not in done.out


def test_no_memory_is_one_line(run, tmp_path, monkeypatch):
    def hungry(mask):
        raise MemoryError

    monkeypatch.setattr(hasse, "find_order", hungry)
    words = ("--packed", "none", "--masks", "causal", "--skip-memory", "--skip-families", "--networkx-limit", 0)
    done = run("bench", "hasse", *TINY, *words, "--out", tmp_path)
    assert done.code == 2 and "error: causal at 16 positions: hasse ran out of memory; give fewer" in done.err
    assert len([line for line in done.err.strip().splitlines() if line.startswith("error")]) == 1


def test_a_wrong_diagram_would_be_seen():
    mask = KINDS[1].dense(20).numpy()
    graph = networkx.from_numpy_array(mask.T, create_using=networkx.DiGraph)
    assert hasse._same(Poset.from_mask(mask), graph)
    wrong = mask.copy()
    wrong[0, 1] = True
    assert not hasse._same(Poset.from_mask(wrong), graph) and not hasse._same(Poset.from_mask(mask.T), graph)


def test_bars_take_the_worst_of_the_masks_that_count():
    def row(mask, length, packed=False, ratio=None, seconds=1.0, peak=None):
        seconds = {"median": seconds}
        return {
            "mask": mask,
            "length": length,
            "packed": packed,
            "ratio": ratio,
            "seconds": seconds,
            "peak_bytes": peak,
        }

    rows = [row("causal", 512, ratio=900), row("order", 512, ratio=150), row("layers", 512, ratio=3)]
    rows += [row("causal", 8192, seconds=4.0, peak=2**29), row("order", 8192, seconds=6.0, peak=2**31)]
    rows += [row("layers", 8192, seconds=99.0), row("causal", 32768, True, seconds=59.0)]
    joint = [{"family": "butterfly", "seconds": {"median": 11.0}}]
    bars = {bar["bar"]: bar for bar in hasse.check_bars({"rows": rows, "joint": joint})}
    assert {name: (bar["worst"], bar["mask"], bar["met"]) for name, bar in bars.items()} == {
        "ratio": (150, "order", False),
        "seconds": (6.0, "order", False),
        "memory": (2**31, "order", False),
        "packed": (59.0, "causal", True),
        "joint": (11.0, "butterfly", False),
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--masks", "casual"], ["unknown mask 'casual'", "Did you mean 'causal'"]),
        (["--masks", "causal,causal"], ["each once, got causal, causal"]),
        (["--lengths", "16,8"], ["--lengths must increase, got 8 after 16"]),
        (["--packed", "0"], ["--packed must be at least 1, got 0"]),
        (["--packed", "nothing"], ["--packed must be whole numbers"]),
        (["--repeats", "0"], ["--repeats"]),
    ],
)
def test_mistakes_get_one_line(run, tmp_path, words, said):
    done = run("bench", "hasse", *TINY, "--skip-memory", "--skip-families", "--out", tmp_path, *words)
    assert done.code == 2 and len(done.err.strip().splitlines()) == 1
    assert all(part in done.err for part in said)
