"""Fair timing: all contestants take turns, so that what else the machine does hits all alike."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Call = Callable[[], object]
_MEMORY_WORDS = ("out of memory", "can't allocate memory", "not enough memory")


@dataclasses.dataclass(frozen=True)
class Timing:
    """The counted calls of one contestant.

    Attributes:
        seconds: one number a call, in the order of the calls.
    """

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Return the median of the seconds."""
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        """The lower and the upper one; for a single call, that call."""
        if len(self.seconds) == 1:
            return self.seconds[0], self.seconds[0]
        lower, _, upper = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return lower, upper

    def as_dict(self) -> dict[str, Any]:
        """Seconds: median, quartiles, shortest; and how many calls were counted."""
        lower, upper = self.quartiles
        shortest, count = min(self.seconds), len(self.seconds)
        return {"median": self.median, "lower": lower, "upper": upper, "shortest": shortest, "repeats": count}


def measure(
    calls: Mapping[str, Call],
    repeats: int = 15,
    budget: float = 3.0,
    synchronize: Call | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[dict[str, Timing], dict[str, str]]:
    """Time every call, in turns.

    One uncounted call each to warm up, then rounds of one call each in an order drawn anew every round (seeded). A
    contestant leaves when it has ``repeats`` counted calls, or has spent ``budget`` seconds on counted ones: slow
    contestants get fewer, at least one.

    Args:
        calls: contestants by name.
        repeats: counted calls at most.
        budget: seconds of counted calls, a contestant.
        synchronize: waits for the device; called before every reading of the clock.
        clock: in seconds.

    Returns:
        The timings, and the reasons of those that ran out of memory, by name.

    Example:
        >>> timings, failed = measure({"nothing": lambda: None}, repeats=3)
        >>> len(timings["nothing"].seconds), failed
        (3, {})
    """
    samples: dict[str, list[float]] = {name: [] for name in calls}
    failed: dict[str, str] = {}

    def run(name: str) -> float | None:
        if synchronize is not None:
            synchronize()
        start = clock()
        try:
            calls[name]()
            if synchronize is not None:
                synchronize()
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            failed[name] = "ran out of memory"
            del samples[name]
            return None
        return clock() - start

    shuffle = random.Random(0).shuffle
    with _without_collector():
        for name in calls:
            run(name)
        waiting = list(samples)
        while waiting:
            shuffle(waiting)
            for name in waiting:
                seconds = run(name)
                if seconds is not None:
                    samples[name].append(seconds)
            waiting = [n for n in waiting if n in samples and len(samples[n]) < repeats and sum(samples[n]) < budget]
    return {name: Timing(tuple(seconds)) for name, seconds in samples.items()}, failed


def out_of_memory(error: BaseException) -> bool:
    """Whether this is how Python, or torch on either kind of device, says that memory has run out."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in _MEMORY_WORDS)


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """Python's garbage collector runs before, and not within, what is timed."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
