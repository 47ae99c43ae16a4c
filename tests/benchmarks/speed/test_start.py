"""``bench start``: the report of a single turn, and a process that fails."""

import json

import pytest

from benchmarks.speed import start
from hf_attn_ext.errors import AttnExtError


def test_the_report(run, tmp_path, monkeypatch):
    quick = {start.BASE: ("-c", "import json"), start.PACKAGE: ("-c", "import argparse")}
    monkeypatch.setattr(start, "CONTESTANTS", start.CONTESTANTS | quick | {start.MODELS: ("-c", "")})
    done = run("bench", "start", "--repeats", 1, "--out", tmp_path)
    assert done.code == 0, done.err
    report = json.loads((tmp_path / "start.json").read_text())
    rows = {row["name"]: row for row in report["rows"]}
    assert list(rows) == list(start.CONTESTANTS)
    assert all(row["seconds"]["median"] > 0 for row in rows.values())
    assert rows[start.BASE]["ratio"] == 1
    assert report["bars"][0]["value"] == rows[start.PACKAGE]["ratio"]
    assert report["bars"][1]["value"] == rows[start.LIST]["seconds"]["median"]
    assert "hf-attn-ext list, seconds" in done.out


def test_a_process_that_fails():
    with pytest.raises(AttnExtError, match="nonsense failed: ZeroDivisionError"):
        start.cpu_seconds("nonsense", ("-c", "1 / 0"))
