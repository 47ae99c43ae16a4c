"""``bench probe`` at a tiny size: the report, the bars, and what it refuses."""

import json

import pytest

from benchmarks.speed import probe
from hf_attn_ext.errors import AttnExtError

TINY = ("--layers", 1, "--heads", 2, "--head-dim", 8, "--batch", 2, "--length", 24, "--repeats", 2, "--threads", 1)


def test_the_report(run, tmp_path, monkeypatch):
    rival = "TransformerLens, hook_z and matrices"
    monkeypatch.setattr(probe, "_rival", lambda *given: (lambda: None, "0.0"))
    peaks = {"plain": 10 * probe.MIB, rival: 90 * probe.MIB}
    monkeypatch.setattr(probe, "_peak", lambda settings, name: peaks.get(name, 11 * probe.MIB))
    done = run("bench", "probe", *TINY, "--budget-seconds", 0.1, "--out", tmp_path)
    assert done.code == 0, done.err
    report = json.loads((tmp_path / "probe.json").read_text())
    names = [row["name"] for row in report["rows"]]
    assert names[:3] == ["plain", "probe, model(**inputs)", "probe.feed(texts)"] and len(names) == 4
    assert all(row["seconds"]["median"] > 0 and row["peak_bytes"] >= 0 for row in report["rows"])
    assert report["rows"][0]["overhead"] == 0 and report["rows"][1]["kept_bytes"] > 0
    assert [bar["met"] for bar in report["bars"]][1] and len(report["bars"]) == 3
    assert report["bars"][2]["met"] and report["rows"][3]["beyond_bytes"] == 80 * probe.MIB
    assert "TransformerLens: 0.0" in done.out


def test_the_peak_is_that_of_another_process():
    settings = probe.ProbeBench(layers=1, heads=2, head_dim=64, batch=4, length=128, threads=1)
    activations = 4 * 128 * 4 * 128 * 4  # the widest layer's output, in float32
    assert activations < probe._peak(settings, "plain") < 20 * activations
    with pytest.raises(AttnExtError, match="not measured: KeyError"):
        probe._peak(settings, "nobody")


def test_texts_have_the_length_that_was_asked_for():
    settings = probe.ProbeBench(length=40, batch=3)
    tokenizer = probe._tokenizer()
    assert [len(ids) for ids in tokenizer(probe._texts(settings))["input_ids"]] == [40] * 3


def test_wrong_numbers_are_one_line(run, tmp_path):
    done = run("bench", "probe", "--length", 3, "--out", tmp_path)
    assert done.code == 2 and "--length must be at least 8, got 3" in done.err
