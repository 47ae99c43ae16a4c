"""Peak memory of one call beyond what was there before it: outputs, gradients and all that is held in between.

**CPU**: the call runs alone in a fresh process. Its inputs exist, and the same attention has run once on 64 tokens, so
that libraries and threads are set up; freed memory is handed back; the system's record of the largest resident size is
reset (``/proc/self/clear_refs``), and read after the call (``VmHWM``). The number is the difference to the resident
size before the call. Where the record cannot be reset (on systems other than Linux), ``ru_maxrss`` serves.
The fresh process is forked from a small server (:mod:`.peak_server`) that has imported everything once.
**CUDA**: ``torch.cuda.max_memory_allocated`` in this process, less what was allocated before.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import checkout_environment
from benchmarks.speed.attention.contestants import Contestant, Workload, make_call
from hf_attn_ext.errors import AttnExtError

WARM_UP = 64  # tokens


class PeakServer:
    """The server of :mod:`.peak_server`, started when first asked; a context manager, whose end stops it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen | None = None

    def __enter__(self) -> PeakServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        server, self._process = self._process, None
        if server is None:
            return
        if kind is not None and server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)  # the server and the process it measures
        server.stdin.close()
        server.wait()
        server.stdout.close()

    def ask(self, request: dict[str, Any]) -> tuple[int | None, str | None]:
        """Return the bytes and None, or None and the reason why there are none."""
        if not hasattr(os, "fork"):
            return None, "this system cannot fork the process that would be measured"
        if self._process is None:
            self._process = _start_server()
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise AttnExtError(
                f"the process that measures memory ended with code {self._process.wait()}; --skip-memory leaves it out"
            )
        answer = json.loads(line)
        return answer.get("bytes"), answer.get("failure")


class MemoryMeter(PeakServer):
    """Measures one call of attention after another; a context manager.

    Args:
        workload: sizes, dtype and device.
        threads: of the measured processes.

    Example:
        >>> with MemoryMeter(Workload(heads=2, head_dim=8), threads=1) as meter:  # doctest: +SKIP
        ...     peak, failure = meter.peak(contestant, 1024, causal=False, which="forward")
    """

    def __init__(self, workload: Workload, threads: int) -> None:
        super().__init__()
        self.workload, self.threads = workload, threads

    def peak(self, contestant: Contestant, length: int, causal: bool, which: str) -> tuple[int | None, str | None]:
        """Return the bytes and None, or None and the reason why there are none.

        Args:
            which: "forward" or "forward+backward".
        """
        if self.workload.device != "cpu":
            return cuda_peak(measured_call(contestant, self.workload, length, causal, which)), None
        request = {
            "what": "attention",
            "contestant": dataclasses.asdict(contestant),
            "workload": dataclasses.asdict(self.workload),
            "threads": self.threads,
            "length": length,
            "causal": causal,
            "which": which,
        }
        return self.ask(request)


def available_bytes(device: str) -> int | None:
    """Memory that is free now; None where the system (other than Linux) does not say."""
    if device != "cpu":
        return torch.cuda.mem_get_info()[0]
    facts = Path("/proc/meminfo")
    lines = facts.read_text().splitlines() if facts.is_file() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)


def measured_call(
    contestant: Contestant, workload: Workload, length: int, causal: bool, which: str
) -> Callable[[], None]:
    """Return the call to measure, after a small one has set everything up. Its inputs exist from now on."""
    attention = contestant.build(workload, causal)
    make_call(attention, workload.tensors(min(WARM_UP, length)), which)()
    return make_call(attention, workload.tensors(length), which)


def _start_server() -> subprocess.Popen:
    return subprocess.Popen(
        # forking is safe here, whatever newer Pythons fear: the server has run nothing on its threads
        [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "benchmarks.speed.measuring.peak_server"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C reaches the parent alone, which ends the group
        env=checkout_environment(),
    )


def cuda_peak(call: Callable[[], None]) -> int:
    """Bytes of CUDA memory that a call takes at most beyond what is there before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
