"""``bench order``: linear attention over the orders of masks against sdpa with the dense mask, forward and backward."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.speed.attention.bench import check_lengths, check_limits, check_names, check_workload
from benchmarks.speed.attention.contestants import Workload
from benchmarks.speed.measuring.figures import growth, ratio
from benchmarks.speed.measuring.machine import describe_machine, set_threads, synchronizer
from benchmarks.speed.measuring.memory import PeakServer, cuda_peak
from benchmarks.speed.measuring.timing import measure
from hf_attn_ext.attention.ops.order.plan import make_plan
from hf_attn_ext.attention.registry import check_kernel
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse.decomposition import chain_decomposition

from .order_contestants import NAMES, OURS, SDPA, OrderCase, make_order

LENGTHS = (1024, 2048, 4096, 8192, 16384)
REFERENCE = 8192  # positions, at which speed is stated
BARS = {"time growth": 1.1, "memory growth": 1.1, "times faster than sdpa": 5.0}


@dataclasses.dataclass(frozen=True)
class OrderBench:
    """What is measured.

    Attributes:
        lengths: positions, increasing; a butterfly's number is one of its own, at most two below.
        masks: of :data:`.order_contestants.NAMES`.
        block_size: of block two-stream.
        kernel: a name of :func:`.list_kernels`.
        workload: sizes, dtype, device ("auto" is resolved), and the width asked of the kernel.
        threads: None leaves torch's number.
        repeats, budget: counted calls at most, and their seconds, for a contestant at a length.
        memory: measure peak memory too.
        sdpa_limit: the longest length that sdpa is run at.

    Raises:
        AttnExtError: a value that makes no sense, an unknown mask, kernel, device or dtype.
    """

    lengths: Sequence[int] = LENGTHS
    masks: Sequence[str] = NAMES
    block_size: int = 8
    kernel: str = "flexformer_p"
    workload: Workload = dataclasses.field(default_factory=Workload)
    threads: int | None = None
    repeats: int = 15
    budget: float = 3.0
    memory: bool = True
    sdpa_limit: int = REFERENCE

    def __post_init__(self) -> None:
        check_lengths(self.lengths)
        if self.lengths[0] < 4:
            raise AttnExtError(f"lengths must be at least 4 positions, got {self.lengths[0]}")
        if self.block_size < 1:
            raise AttnExtError(f"block_size must be at least 1, got {self.block_size!r}")
        for name in self.masks:
            make_order(name, 4, 1)
        check_names(self.masks, "masks")
        check_kernel(self.kernel, 1, {})
        check_limits(self.repeats, self.budget, self.threads)
        workload = dataclasses.replace(check_workload(self.workload), longest=max(self.lengths))
        object.__setattr__(self, "workload", workload)


def bench_order(
    settings: OrderBench,
    progress: Callable[[str], None] = lambda text: None,
    save: Callable[[dict[str, Any]], None] = lambda report: None,
) -> dict[str, Any]:
    """Run the benchmark and return its report.

    Args:
        settings: what to measure.
        progress: told what comes next.
        save: given the unfinished report (``"complete": False``) after every length.

    Returns:
        A dictionary fit for JSON: ``machine``, ``settings``, ``rows`` (a mask and length each: positions, chains,
        ``prepared_seconds`` for chains and tiles, and by contestant ``seconds``, ``peak_bytes``, ``skipped``;
        ``speed_to_sdpa``), ``growth`` (a mask, contestant and quantity each) and ``bars``, each with what was measured
        at its worst.
    """
    set_threads(settings.threads)
    report: dict[str, Any] = {
        "benchmark": "order",
        "complete": False,
        "machine": describe_machine(settings.workload.device),
        "settings": dataclasses.asdict(settings),
        "rows": [],
        "growth": [],
        "bars": [],
    }
    with PeakServer() as server:
        for name in settings.masks:
            for length in settings.lengths:
                progress(f"{name}, {length:,} positions")
                report["rows"].append(_row(settings, server, name, length))
                report["growth"] = _growth(report)
                report["bars"] = check_bars(report)
                save(report)
    report["complete"] = True
    save(report)
    return report


def check_bars(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each bar that was measured: its value at the worst mask, which, and whether it is met."""
    measured = {
        f"{what} growth": [
            (row["slope"], row["mask"])
            for row in report["growth"]
            if row["contestant"] == OURS and row["quantity"] == what
        ]
        for what in ("time", "memory")
    }
    measured["times faster than sdpa"] = [
        (row["speed_to_sdpa"], row["mask"])
        for row in report["rows"]
        if row["length"] == REFERENCE and row["speed_to_sdpa"] is not None
    ]
    bars = []
    for name, limit in BARS.items():
        if measured[name]:
            least = name == "times faster than sdpa"
            value, mask = (min if least else max)(measured[name])
            met = value >= limit if least else value <= limit
            at = REFERENCE if least else None
            bars.append({"bar": name, "length": at, "limit": limit, "worst": value, "mask": mask, "met": met})
    return bars


def _row(settings: OrderBench, server: PeakServer, name: str, length: int) -> dict[str, Any]:
    spec = make_order(name, length, settings.block_size)
    start = time.perf_counter()
    cover = chain_decomposition(spec)
    make_plan(cover)
    prepared = time.perf_counter() - start
    sizes = (name, length, settings.block_size, settings.kernel, settings.workload)
    cases = {OURS: OrderCase(OURS, *sizes)}
    if length <= settings.sdpa_limit:
        cases[SDPA] = OrderCase(SDPA, *sizes)
    calls = {who: case.call() for who, case in cases.items()}
    timings, failed = measure(calls, settings.repeats, settings.budget, synchronizer(settings.workload.device))
    del calls
    row: dict[str, Any] = {
        "mask": name,
        "length": length,
        "positions": len(spec),
        "chains": len(cover.chains),
        "prepared_seconds": prepared,
        "speed_to_sdpa": None,
    }
    for who in (OURS, SDPA):
        peak, why = None, failed.get(who)
        if who not in cases:
            why = f"sdpa is run to {settings.sdpa_limit:,} positions (--sdpa-limit)"
        elif settings.memory and why is None:
            peak, why = _peak(cases[who], server)
        seconds = timings[who].as_dict() if who in timings else None
        row[who] = {"seconds": seconds, "peak_bytes": peak, "skipped": why}
    if SDPA in timings and OURS in timings:
        row["speed_to_sdpa"] = ratio(timings[SDPA].median, timings[OURS].median)
    return row


def _peak(case: OrderCase, server: PeakServer) -> tuple[int | None, str | None]:
    if case.workload.device == "cpu":
        return server.ask(case.as_request())
    return cuda_peak(case.measured_call()), None


def _growth(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Log-log slopes from 1k to 16k positions."""
    found = []
    for name in report["settings"]["masks"]:
        rows = [row for row in report["rows"] if row["mask"] == name]
        sizes = [row["positions"] for row in rows]
        for who in (OURS, SDPA):
            seconds = [row[who]["seconds"]["median"] if row[who]["seconds"] else None for row in rows]
            for what, values in (("time", seconds), ("memory", [row[who]["peak_bytes"] for row in rows])):
                slope = growth(sizes, values)
                if slope is not None:
                    found.append({"mask": name, "contestant": who, "quantity": what, **slope})
    return found
