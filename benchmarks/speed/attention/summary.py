"""From a report's measurements to the numbers that one asks for: ratios, crossovers, growth, shares."""

from __future__ import annotations

import dataclasses
from typing import Any

from benchmarks.speed.measuring.figures import crossover, growth, ratio, reference_length

from .contestants import PACKAGE, PASSES

REFERENCE, LIMIT_REFERENCE = 4096, 8192


class Rows:
    """A report's measurements by direction, pass, contestant and length."""

    def __init__(self, report: dict[str, Any]) -> None:
        self.report = report
        self._rows = {
            (row["direction"], row["pass"], row["contestant"], row["length"]): row for row in report["measurements"]
        }
        self.lengths = sorted({row["length"] for row in report["measurements"]})
        self.directions = list(dict.fromkeys(row["direction"] for row in report["measurements"]))
        self.names = [contestant["name"] for contestant in report["contestants"]]

    def row(self, direction: str, which: str, name: str, length: int) -> dict[str, Any]:
        """The measurement, or ``{}`` where there is none (yet)."""
        return self._rows.get((direction, which, name, length), {})

    def seconds(self, direction: str, which: str, name: str) -> list[float | None]:
        """Median seconds a length."""
        found = (self.row(direction, which, name, length).get("seconds") for length in self.lengths)
        return [timing["median"] if timing else None for timing in found]

    def peaks(self, direction: str, which: str, name: str) -> list[float | None]:
        """Peak bytes a length."""
        return [self.row(direction, which, name, length).get("peak_bytes") for length in self.lengths]

    def limit_share(self, direction: str, which: str, name: str, length: int) -> float | None:
        """The least time for the operations counted, at the machine's measured rates, as a share of the median."""
        row = self.row(direction, which, name, length)
        if not row.get("seconds"):
            return None
        rates, needed = self.report["rates"], row["operations"]
        return sum(needed[kind] / rates[kind] for kind in rates) / row["seconds"]["median"]


def summarise(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one row a direction and contestant.

    Each holds, by pass: ``speed_to_sdpa`` and ``speed_to_performer_pytorch`` (how many times faster, below 1 is slower,
    at ``length``), ``crossover`` (from which length on faster than sdpa), ``time_growth`` and ``memory_growth``
    (log-log slopes), ``memory_to_eager`` (share of eager's peak at ``length``), ``limit_share`` (of the machine's limit
    at ``limit_length``). Numbers that cannot be had are None.
    """
    rows = Rows(report)
    return [_summary(rows, direction, name) for direction in rows.directions for name in rows.names]


def _summary(rows: Rows, direction: str, name: str) -> dict[str, Any]:
    length = reference_length(rows.lengths, REFERENCE)
    limit_length = reference_length(rows.lengths, LIMIT_REFERENCE)
    at = rows.lengths.index(length)
    result: dict[str, Any] = {
        "direction": direction,
        "contestant": name,
        "length": length,
        "limit_length": limit_length,
    }
    for which in PASSES:
        mine, sdpa, package = (rows.seconds(direction, which, who) for who in (name, "sdpa", PACKAGE))
        peaks, eager = rows.peaks(direction, which, name), rows.peaks(direction, which, "eager")
        values = {
            "speed_to_sdpa": ratio(sdpa[at], mine[at]),
            "speed_to_performer_pytorch": ratio(package[at], mine[at]),
            "crossover": None if name == "sdpa" else dataclasses.asdict(crossover(rows.lengths, mine, sdpa)),
            "time_growth": growth(rows.lengths, mine),
            "memory_growth": growth(rows.lengths, peaks),
            "memory_to_eager": ratio(peaks[at], eager[at]),
            "limit_share": rows.limit_share(direction, which, name, limit_length),
        }
        for key, value in values.items():
            result.setdefault(key, {})[which] = value
    return result
