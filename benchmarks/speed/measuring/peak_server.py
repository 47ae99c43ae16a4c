"""``python -m benchmarks.speed.measuring.peak_server``: fork one process per request, which measures its own peak.

Requests come in on stdin, answers go out on stdout, one JSON object a line; see :class:`.memory.PeakServer`. The
server itself never computes anything, so every child starts from the same state, with everything imported.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed.attention.contestants import Contestant, Workload
from benchmarks.speed.orders.hasse_masks import find_kind, find_order
from benchmarks.speed.orders.order_contestants import OrderCase

from .memory import measured_call
from .timing import out_of_memory

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_of(call: Callable[[], object]) -> int:
    """Bytes by which this process's largest resident size exceeds, during ``call``, its size before."""
    gc.collect()
    _hand_back()
    resettable = _reset()
    before = _resident("VmRSS") if resettable else _largest()
    call()
    after = _resident("VmHWM") if resettable else _largest()
    return max(0, after - before)


def _reset() -> bool:
    """Forget the largest resident size so far; False where the system cannot."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True


def _resident(field: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def _largest() -> int:
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024


def _hand_back() -> None:
    """Give memory that was freed back to the system, where its allocator can (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(request["threads"])
    try:
        return {"bytes": peak_of(CALLS[request["what"]](request))}
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        return {"failure": "ran out of memory"}


def _attention(request: dict[str, Any]) -> Callable[[], object]:
    contestant, workload = Contestant(**request["contestant"]), Workload(**request["workload"])
    return measured_call(contestant, workload, request["length"], request["causal"], request["which"])


def _order(request: dict[str, Any]) -> Callable[[], object]:
    """The order behind a mask that exists already; what the call returns is kept, as a caller keeps it."""
    kind = find_kind(request["mask"])
    find_order(kind.dense(64))
    mask = kind.packed(request["positions"]) if request["packed"] else kind.dense(request["positions"])
    kept: list[object] = []
    return lambda: kept.append(find_order(mask))


def _case(request: dict[str, Any]) -> Callable[[], object]:
    return OrderCase.from_request(request).measured_call()


CALLS = {"attention": _attention, "order": _order, "case": _case}


def _in_a_child(request: dict[str, Any]) -> dict[str, Any]:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.close(reader)
            os.write(writer, json.dumps(_answer(request)).encode())
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as stream:
        text = stream.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == -signal.SIGKILL:
        return {"failure": "was killed, most likely for its memory"}
    return json.loads(text) if code == 0 else {"failure": f"the measured process ended with code {code}"}


def main() -> None:
    """Answer requests from stdin until it ends."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # whatever a contestant prints goes to stderr
        for line in sys.stdin:
            print(json.dumps(_in_a_child(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
