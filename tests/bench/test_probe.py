"""``bench probe`` at a tiny size: the report, the bars, and what it refuses."""

import json

from hf_attn_ext.bench import probe

TINY = ("--layers", 1, "--heads", 2, "--head-dim", 8, "--batch", 2, "--length", 24, "--repeats", 2, "--threads", 1)


def test_the_report(run, tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "_rival", lambda *given: (lambda: bytearray(2**24), "0.0"))
    done = run("bench", "probe", *TINY, "--budget-seconds", 0.1, "--out", tmp_path)
    assert done.code == 0, done.err
    report = json.loads((tmp_path / "probe.json").read_text())
    names = [row["name"] for row in report["rows"]]
    assert names[:3] == ["plain", "probe, model(**inputs)", "probe.feed(texts)"] and len(names) == 4
    assert all(row["seconds"]["median"] > 0 and row["peak_bytes"] >= 0 for row in report["rows"])
    assert report["rows"][0]["overhead"] == 0 and report["rows"][1]["kept_bytes"] > 0
    assert [bar["met"] for bar in report["bars"]][1] and len(report["bars"]) == 3
    assert "TransformerLens: 0.0" in done.out


def test_texts_have_the_length_that_was_asked_for():
    settings = probe.ProbeBench(length=40, batch=3)
    tokenizer = probe._tokenizer()
    assert [len(ids) for ids in tokenizer(probe._texts(settings))["input_ids"]] == [40] * 3


def test_wrong_numbers_are_one_line(run, tmp_path):
    done = run("bench", "probe", "--length", 3, "--out", tmp_path)
    assert done.code == 2 and "--length must be at least 8, got 3" in done.err
