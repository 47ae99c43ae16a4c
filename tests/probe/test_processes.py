"""Two processes of accelerate have the statistics of one."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hf_attn_ext.probe import ProbeStatistics

HERE = Path(__file__).parent


def test_two_processes_gather_what_one_counts(tmp_path):
    variables = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "LOCAL_RANK")}
    variables |= {"PYTHONPATH": f"{HERE.parents[1]}{os.pathsep}{HERE}", "OMP_NUM_THREADS": "1"}
    variables["ACCELERATE_USE_CPU"] = "true"
    found = []
    for processes in (1, 2):
        path = tmp_path / f"{processes}.json"
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
        command = [sys.executable, *(launch if processes > 1 else []), str(HERE / "process_driver.py")]
        command += [str(path), str(processes)]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
        found.append(ProbeStatistics.from_json(path))
    one, two = found
    assert {**one.counts, "padding": 0} == {**two.counts, "padding": 0} and one.counts["texts"] == 11
    for a, b in zip(one.statistics, two.statistics, strict=True):
        assert np.allclose(a.values, b.values, rtol=1e-9, equal_nan=True), (a.name, a.measure)
        assert np.allclose(a.interval, b.interval, rtol=1e-9, equal_nan=True)
        assert a.texts == pytest.approx(b.texts)
