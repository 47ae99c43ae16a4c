"""Peak memory in processes of their own."""

import os
import sys

import pytest
import torch

from benchmarks.speed.attention.contestants import BOTH, FORWARD, Contestant, Workload, contestants
from benchmarks.speed.measuring import memory, peak_server
from benchmarks.speed.measuring.memory import MemoryMeter, available_bytes
from hf_attn_ext.errors import AttnExtError

MIB = 2**20
WORK = Workload(heads=2, head_dim=8, feature_dim=16)
EVERYBODY = {contestant.name: contestant for contestant in contestants(WORK)}


@pytest.mark.skipif(sys.platform != "linux", reason="the record of the largest size is reset on Linux")
def test_peaks_are_those_of_the_tensors_that_must_be_held():
    eager, sdpa = EVERYBODY["eager"], EVERYBODY["sdpa"]
    matrix = WORK.heads * 1024**2 * 4
    with MemoryMeter(WORK, threads=1) as meter:
        forward, both, fused = (
            meter.peak(contestant, 1024, False, which)
            for contestant, which in ((eager, FORWARD), (eager, BOTH), (sdpa, FORWARD))
        )
        server = meter._process.pid
        again = meter.peak(eager, 1024, False, FORWARD)
        broken = meter.peak(Contestant("no such kernel", "other", 1, 1), 8, False, FORWARD)
    assert all(failure is None for _, failure in (forward, both, fused, again))
    assert 1.9 * matrix < forward[0] < 2.6 * matrix
    assert 2.9 * matrix < both[0] < 4.6 * matrix
    assert fused[0] < 0.2 * matrix
    # the same again, as every process starts alike
    assert again[0] == pytest.approx(forward[0], rel=0.2)
    assert broken == (None, "the measured process ended with code 1")
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="see above")
def test_the_peak_of_a_call_counts_what_it_gave_back():
    size = 64 * MIB

    def call():
        x = torch.ones(size // 4)
        del x
        return torch.ones(1000)

    assert peak_server.peak_of(call) == pytest.approx(size, rel=0.1)


def test_a_killed_process_is_reported_not_awaited(monkeypatch):
    monkeypatch.setattr(peak_server, "_answer", lambda request: os.kill(os.getpid(), 9))
    assert peak_server._in_a_child({}) == {"failure": "was killed, most likely for its memory"}


def test_running_out_of_memory_is_an_answer(monkeypatch):
    def hungry(*arguments):
        raise MemoryError

    monkeypatch.setattr(peak_server, "measured_call", hungry)
    contestant = {"name": "sdpa", "family": "softmax"}
    request = {"what": "attention", "contestant": contestant, "workload": {}, "threads": 1, "length": 1}
    request |= {"causal": False, "which": FORWARD}
    assert peak_server._in_a_child(request) == {"failure": "ran out of memory"}


def test_a_server_that_dies_is_one_line(monkeypatch):
    monkeypatch.setattr(memory, "_start_server", _dead_server)
    with MemoryMeter(WORK, threads=1) as meter, pytest.raises(AttnExtError, match="code 3; --skip-memory"):
        meter.peak(EVERYBODY["sdpa"], 8, False, FORWARD)


def _dead_server():
    import subprocess

    command = [sys.executable, "-c", "import sys; sys.stdin.readline(); sys.exit(3)"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_free_memory_is_known_on_linux():
    free = available_bytes("cpu")
    assert free > MIB if sys.platform == "linux" else free is None or free > 0
