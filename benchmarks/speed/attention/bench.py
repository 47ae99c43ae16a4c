"""``bench attention``: one layer's attention, every contestant at every length, in one run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.speed.measuring.machine import describe_machine, resolve_device, set_threads, synchronizer
from benchmarks.speed.measuring.memory import MemoryMeter, available_bytes
from benchmarks.speed.measuring.timing import measure
from hf_attn_ext.errors import AttnExtError, suggest

from .contestants import DTYPES, PASSES, Contestant, Workload, bytes_needed, check_kernels, contestants, make_call
from .limits import measure_rates
from .operations import operations
from .summary import summarise

LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)
DIRECTIONS = ("bidirectional", "causal")
FREE_SHARE = 0.8  # of the free memory a contestant may be expected to take


@dataclasses.dataclass(frozen=True)
class AttentionBench:
    """What is measured.

    Attributes:
        lengths: tokens, increasing.
        kernels: names, or None for all; softmax and performer-pytorch always take part.
        directions: of ``DIRECTIONS``.
        workload: sizes, dtype, device ("auto" is resolved), and the width asked of the kernels.
        threads: None leaves torch's number.
        repeats, budget: counted calls at most, and their seconds, for a contestant at a length and pass.
        memory: measure peak memory too.
        eager_limit: the longest length that eager is run at.

    Raises:
        AttnExtError: a value that makes no sense, an unknown kernel, device or dtype.
    """

    lengths: Sequence[int] = LENGTHS
    kernels: Sequence[str] | None = None
    directions: Sequence[str] = DIRECTIONS
    workload: Workload = dataclasses.field(default_factory=Workload)
    threads: int | None = None
    repeats: int = 15
    budget: float = 3.0
    memory: bool = True
    eager_limit: int = 8192

    def __post_init__(self) -> None:
        check_lengths(self.lengths)
        check_limits(self.repeats, self.budget, self.threads)
        for direction in self.directions:
            if direction not in DIRECTIONS:
                raise AttnExtError(f"unknown direction {direction!r}.{suggest(direction, DIRECTIONS)}")
        workload = dataclasses.replace(check_workload(self.workload), longest=max(self.lengths))
        object.__setattr__(self, "workload", workload)
        check_kernels(self.kernels or ())


def check_lengths(lengths: Sequence[int], name: str = "lengths") -> None:
    """Raise :class:`AttnExtError` unless ``lengths`` are whole numbers from 1, each larger than the one before."""
    if not lengths:
        raise AttnExtError(f"{name}: give at least one")
    for before, length in zip((0, *lengths), lengths, strict=False):
        if not isinstance(length, int) or length < 1:
            raise AttnExtError(f"{name} must be whole numbers of at least 1, got {length!r}")
        if length <= before:
            raise AttnExtError(f"{name} must increase, got {length} after {before}")


def check_workload(workload: Workload) -> Workload:
    """Return ``workload`` with its device resolved.

    Raises:
        AttnExtError: a size below 1, an unknown dtype or device.
    """
    if workload.dtype not in DTYPES:
        raise AttnExtError(
            f"unknown dtype {workload.dtype!r}.{suggest(workload.dtype, DTYPES)} Dtypes: {', '.join(DTYPES)}"
        )
    for name in ("batch", "heads", "head_dim", "feature_dim"):
        if getattr(workload, name) < 1:
            raise AttnExtError(f"{name} must be at least 1, got {getattr(workload, name)!r}")
    return dataclasses.replace(workload, device=resolve_device(workload.device))


def check_limits(repeats: int, budget: float, threads: int | None) -> None:
    """Raise :class:`AttnExtError` where one of these is no positive number."""
    for name, value in (("repeats", repeats), ("budget in seconds", budget), ("threads", threads)):
        if value is not None and not value > 0:
            raise AttnExtError(f"{name} must be above 0, got {value!r}")


def check_names(names: Sequence[str], what: str) -> None:
    """Raise :class:`AttnExtError` where there is no name, or one twice."""
    if not names or len(set(names)) < len(names):
        raise AttnExtError(f"{what} must be names, each once, got {', '.join(names) or 'none'}")


def bench_attention(
    settings: AttentionBench,
    progress: Callable[[str], None] = lambda text: None,
    save: Callable[[dict[str, Any]], None] = lambda report: None,
) -> dict[str, Any]:
    """Run the benchmark and return its report.

    Args:
        settings: what to measure.
        progress: told what comes next.
        save: given the unfinished report (``"complete": False``) after every length.

    Returns:
        A dictionary fit for JSON: ``machine``, ``settings``, ``rates`` (operations per second), ``contestants``,
        ``measurements`` (one row per contestant, direction, length and pass, with seconds, peak bytes and operations,
        or the reason for their absence) and ``summary`` (see :func:`.summary.summarise`).
    """
    threads = set_threads(settings.threads)
    workload = settings.workload
    synchronize = synchronizer(workload.device)
    everybody = contestants(workload, settings.kernels)
    progress("the machine's rates")
    rates = measure_rates(workload.device, workload.dtype, synchronize)
    report: dict[str, Any] = {
        "benchmark": "attention",
        "complete": False,
        "machine": describe_machine(workload.device),
        "settings": dataclasses.asdict(settings),
        "rates": dataclasses.asdict(rates),
        "contestants": [dataclasses.asdict(contestant) for contestant in everybody],
        "measurements": [],
        "summary": [],
    }
    with MemoryMeter(workload, threads) as meter:
        for direction in settings.directions:
            runs = _Runs(settings, everybody, direction == "causal", meter)
            for length in settings.lengths:
                for which in PASSES:
                    progress(f"{direction}, {length} tokens: {which}")
                    report["measurements"] += [
                        {"direction": direction, "length": length, "pass": which, **row}
                        for row in runs.rows(length, which)
                    ]
                report["summary"] = summarise(report)
                save(report)
    again = measure_rates(workload.device, workload.dtype, synchronize)
    report["rates"] = dataclasses.asdict(rates.best(again))
    report["summary"] = summarise(report)
    report["complete"] = True
    save(report)
    return report


class _Runs:
    """One direction's contestants."""

    def __init__(
        self, settings: AttentionBench, everybody: Sequence[Contestant], causal: bool, meter: MemoryMeter
    ) -> None:
        self.settings, self.workload, self.everybody = settings, settings.workload, everybody
        self.causal, self.meter = causal, meter
        self.attentions = {c.name: c.build(self.workload, causal) for c in everybody if c.absent is None}

    def rows(self, length: int, which: str) -> list[dict[str, Any]]:
        """Time and measure everybody at one length and pass."""
        skipped = {c.name: self._why_not(c, length, which) for c in self.everybody}
        inputs = self.workload.tensors(length)
        calls = {
            name: make_call(self.attentions[name], inputs, which) for name, reason in skipped.items() if not reason
        }
        synchronize = synchronizer(self.workload.device)
        timings, failed = measure(calls, self.settings.repeats, self.settings.budget, synchronize)
        del calls, inputs
        skipped.update(failed)
        return [self._row(c, length, which, timings.get(c.name), skipped[c.name]) for c in self.everybody]

    def _row(self, contestant: Contestant, length: int, which: str, timing: Any, skipped: str | None) -> dict[str, Any]:
        peak, no_peak = None, skipped
        if not self.settings.memory:
            no_peak = no_peak or "not measured"
        elif not skipped:
            peak, no_peak = self.meter.peak(contestant, length, self.causal, which)
        needed = None
        if timing:
            needed = dataclasses.asdict(operations(contestant, self.workload, length, self.causal, which))
        return {
            "contestant": contestant.name,
            "seconds": timing.as_dict() if timing else None,
            "skipped": skipped,
            "peak_bytes": peak,
            "no_peak": no_peak,
            "operations": needed,
        }

    def _why_not(self, contestant: Contestant, length: int, which: str) -> str | None:
        if contestant.absent is not None:
            return contestant.absent
        if contestant.name == "eager" and length > self.settings.eager_limit:
            return f"eager is run to {self.settings.eager_limit:,} tokens (--eager-limit)"
        needed = bytes_needed(contestant, self.workload, length, self.causal, which)
        free = available_bytes(self.workload.device)
        if needed is not None and free is not None and needed > FREE_SHARE * free:
            return f"needs about {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
        return None
