"""What is computed from the measurements: crossover lengths and growth. Plain numbers in, plain numbers out."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

Values = Sequence[float | None]


@dataclasses.dataclass(frozen=True)
class Crossover:
    """From which length on one contestant is faster than another, through the longest one measured.

    Attributes:
        kind: "at" a length between two measured ones; "always" faster, from the shortest one on; "never", that is,
            slower at the longest; "unknown", no common length.
        length: tokens, interpolated; the shortest (always) or the longest (never) measured; None (unknown).
        changes: how often the order changes over the measured lengths; more than one means that noise, or blocks,
            decide.
    """

    kind: str
    length: float | None
    changes: int = 0

    def __str__(self) -> str:
        if self.length is None:
            return "-"
        sign = {"always": "< ", "never": "> "}.get(self.kind, "")
        return f"{sign}{self.length:,.0f}{' (several)' if self.changes > 1 else ''}"


def crossover(lengths: Sequence[int], ours: Values, theirs: Values) -> Crossover:
    """Return from which length on ``ours`` is below ``theirs``.

    Between two measured lengths both are taken as powers of the length (straight lines in a log-log plot).

    Args:
        lengths: increasing.
        ours, theirs: a positive number a length, or None where there is none; such lengths are left out.

    Example:
        >>> crossover([100, 200, 400], [2, 4, 8], [1, 4, 16]).length  # N against N^2: equal at 200
        200.0
    """
    gaps = [
        (n, math.log(a / b)) for n, a, b in zip(lengths, ours, theirs, strict=True) if a is not None and b is not None
    ]
    if not gaps:
        return Crossover("unknown", None)
    faster = [gap < 0 for _, gap in gaps]
    changes = sum(a != b for a, b in itertools.pairwise(faster))
    if not faster[-1]:
        return Crossover("never", float(gaps[-1][0]), changes)
    if all(faster):
        return Crossover("always", float(gaps[0][0]))
    last = max(i for i, ahead in enumerate(faster) if not ahead)
    (n, behind), (m, ahead) = gaps[last], gaps[last + 1]
    share = behind / (behind - ahead)
    return Crossover("at", n if share == 0 else n * (m / n) ** share, changes)


def growth(lengths: Sequence[int], values: Values, low: float = 1000, high: float = 17000) -> dict[str, float] | None:
    """Return the least-squares slope of log(value) over log(length): 1 is linear growth, 2 quadratic.

    Args:
        lengths: increasing.
        values: positive, or None where there is none.
        low, high: the lengths that count, from ``low`` to ``high``.

    Returns:
        ``{"slope", "from", "to"}``, or None where fewer than two lengths count.

    Example:
        >>> growth([1024, 2048, 4096], [3.0, 6.0, 12.0])
        {'slope': 1.0, 'from': 1024, 'to': 4096}
    """
    points = [(n, x) for n, x in zip(lengths, values, strict=True) if x is not None and x > 0 and low <= n <= high]
    if len(points) < 2:
        return None
    x, y = [math.log2(n) for n, _ in points], [math.log2(value) for _, value in points]
    x_mean, y_mean = sum(x) / len(x), sum(y) / len(y)
    slope = sum((a - x_mean) * (b - y_mean) for a, b in zip(x, y, strict=True)) / sum((a - x_mean) ** 2 for a in x)
    return {"slope": slope, "from": points[0][0], "to": points[-1][0]}


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """Return the quotient, or None where a part is missing or the denominator is 0."""
    return None if numerator is None or not denominator else numerator / denominator


def reference_length(lengths: Sequence[int], wanted: int) -> int:
    """Return ``wanted`` where it was measured, else the longest below it, else the shortest."""
    below = [n for n in lengths if n <= wanted]
    return max(below) if below else min(lengths)
