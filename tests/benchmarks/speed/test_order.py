"""``bench order`` at a tiny size: the report, its bars and picture, and what it refuses. No time is ever asserted."""

import json

import pytest

from benchmarks.speed.attention.contestants import Workload
from benchmarks.speed.orders import order
from benchmarks.speed.orders.order_contestants import NAMES, OrderCase, make_order

TINY = ("--heads", 2, "--head-dim", 8, "--feature-dim", 16, "--repeats", 2, "--budget-seconds", 0.01, "--threads", 1)


def test_masks_have_as_many_positions_as_they_can():
    for wanted in (4, 5, 64, 100):
        for name in NAMES:
            spec = make_order(name, wanted, 8)
            assert spec.name == name and wanted - 2 <= len(spec) <= wanted


def test_the_report(run, tmp_path):
    done = run("bench", "order", *TINY, "--lengths", "64,200", "--sdpa-limit", 64, "--block-size", 4, "--out", tmp_path)
    assert done.code == 0, done.err
    report = json.loads((tmp_path / "order.json").read_text())
    assert report["complete"] and [(row["mask"], row["length"]) for row in report["rows"]] == [
        (name, length) for name in NAMES for length in (64, 200)
    ]
    for row in report["rows"]:
        assert row["positions"] in (row["length"], row["length"] - 1, row["length"] - 2)
        assert row["chains"] == (2 if row["mask"] == "butterfly" else 1) and row["prepared_seconds"] > 0
        assert row["order"]["seconds"]["median"] > 0 and row["order"]["peak_bytes"] > 0
        if row["length"] == 64:
            assert row["sdpa"]["peak_bytes"] > 0 and row["speed_to_sdpa"] > 0
        else:
            assert row["sdpa"]["seconds"] is row["speed_to_sdpa"] is None
            assert row["sdpa"]["skipped"] == "sdpa is run to 64 positions (--sdpa-limit)"
    assert report["bars"] == [] and report["growth"] == []  # 1k to 16k positions are what they are about
    for part in ("butterfly, flexformer_p", "butterfly, sdpa", "times faster", "peak memory", "sdpa is run to 64"):
        assert part in done.out
    assert (tmp_path / "order.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["order.json", "order.png"]


def test_less_may_be_asked(run, tmp_path):
    words = ("--lengths", "64", "--masks", "causal", "--kernel", "elu", "--skip-memory", "--out", tmp_path)
    done = run("bench", "order", *TINY, *words)
    report = json.loads((tmp_path / "order.json").read_text())
    assert done.code == 0 and len(report["rows"]) == 1 and report["rows"][0]["order"]["peak_bytes"] is None
    assert "causal, elu" in done.out and "peak memory" not in done.out


def test_bars_take_the_worst_mask():
    def row(mask, length, speed):
        return {"mask": mask, "length": length, "speed_to_sdpa": speed}

    def slope(mask, what, slope, who="order"):
        return {"mask": mask, "contestant": who, "quantity": what, "slope": slope}

    report = {
        "rows": [row("causal", 8192, 9.0), row("butterfly", 8192, 4.0), row("causal", 1024, 1.0)],
        "growth": [
            slope("causal", "time", 1.0),
            slope("butterfly", "time", 1.05),
            slope("causal", "memory", 1.2),
            slope("causal", "time", 2.0, "sdpa"),
        ],
    }
    bars = {bar["bar"]: (bar["worst"], bar["mask"], bar["met"]) for bar in order.check_bars(report)}
    assert bars == {
        "time growth": (1.05, "butterfly", True),
        "memory growth": (1.2, "causal", False),
        "times faster than sdpa": (4.0, "butterfly", False),
    }


def test_a_case_passes_to_the_process_that_measures_it():
    case = OrderCase("sdpa", "butterfly", 70, 8, "elu", Workload(heads=1, head_dim=4))
    assert OrderCase.from_request(json.loads(json.dumps(case.as_request()))) == case
    case.measured_call()()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--masks", "casual"], ["unknown mask 'casual'", "Did you mean 'causal'"]),
        (["--masks", "causal,causal"], ["each once, got causal, causal"]),
        (["--lengths", "16,8"], ["--lengths must increase, got 8 after 16"]),
        (["--lengths", "2"], ["at least 4 positions, got 2"]),
        (["--kernel", "hedgehg"], ["'hedgehg'", "'hedgehog'"]),
        (["--block-size", "0"], ["block-size"]),
        (["--dtype", "float23"], ["'float23'"]),
    ],
)
def test_mistakes_get_one_line(run, tmp_path, words, said):
    message = run("bench", "order", *TINY, "--skip-memory", "--out", tmp_path / "out", *words).mistake()
    assert all(part in message for part in said) and not (tmp_path / "out").exists()
