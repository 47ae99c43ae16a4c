"""A tiny attention benchmark that several tests look at, run once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import run

__all__ = ["run"]

TINY = ("--heads", 2, "--head-dim", 8, "--feature-dim", 16, "--repeats", 2, "--budget-seconds", 0.01, "--threads", 1)


@pytest.fixture
def report_of(run, tmp_path):
    """Run ``bench attention`` tiny, with more words, and return the outcome, the report, and the folder."""

    def report_of(*words: object) -> tuple:
        done = run("bench", "attention", *TINY, "--out", tmp_path / "out", *words)
        assert done.code == 0, done.err
        folder: Path = tmp_path / "out"
        return done, json.loads((folder / "attention.json").read_text()), folder

    return report_of


@pytest.fixture(autouse=True)
def _threads():
    """Put torch's number of threads back: a benchmark sets it for its process."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _quick_rates(monkeypatch):
    """The machine's rates from small samples."""
    from benchmarks.speed.attention import bench as attention
    from benchmarks.speed.attention import limits

    measure_rates = limits.measure_rates
    monkeypatch.setattr(attention, "measure_rates", lambda *given: measure_rates(*given, quick=True))
