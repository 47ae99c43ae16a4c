"""Findings in words: what the paper says, what was measured, the chance levels, the interval, and the verdict.

The claims are the paper's (2512.21956), the measures and the verdicts ours. A mean over heads has the mean of its
heads' intervals, which is at least as wide as its own: a standard deviation of a mean is at most the mean of the
standard deviations.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from hf_attn_ext.probe.results import Statistic

# The verdicts on a pair (by count, at the same distances) of comparisons, in the report's words; statistics with words
# of their own add them.
VERDICTS = {
    "beyond": "above chance, also beyond nearness",
    "nearness": "above chance, but only by nearness: pairs at the same distances have as much",
    "less": "above chance by count, but below what pairs at the same distances have",
    "above": "above chance",
    "hidden": "no more than by count, yet more than pairs at the same distances have",
    "none": "no different from chance",
    "below": "below chance",
    "unknown": "no interval: too few texts",
    "measured": "measured; there is no chance level",
}


@dataclasses.dataclass(frozen=True)
class Level:
    """One number with its chance levels; NaN where there is no such level.

    Attributes:
        value: of a head, or the mean over a layer's heads.
        interval: 95% bounds.
        chance, matched: chance levels, by count and at the same distances.
        excess, excess_matched: 95% bounds of the value less either level.
    """

    value: float
    interval: tuple[float, float]
    chance: float
    matched: float
    excess: tuple[float, float]
    excess_matched: tuple[float, float]

    @property
    def verdict(self) -> str:
        """A key of :data:`VERDICTS`."""
        if math.isnan(self.chance):
            return "measured"
        if math.isnan(self.excess[0]):
            return "unknown"
        matched = _side(self.excess_matched)
        if self.excess[0] > 0:
            return {1: "beyond", 0: "nearness", -1: "less", None: "above"}[matched]
        if self.excess[1] < 0:
            return "below"
        return "hidden" if matched == 1 else "none"


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        key: its name.
        claim: what the paper says, in our words.
        text: what was measured.
        verdict: a key of :data:`VERDICTS`.
        statistic, layer, head: what ``level`` is of; head None is the mean over the layer's heads.
        level: the numbers.
        texts: how many texts it rests on.
    """

    key: str
    claim: str
    text: str
    verdict: str
    statistic: str
    layer: int
    head: int | None
    level: Level
    texts: int


@dataclasses.dataclass(frozen=True)
class Claim:
    """A finding that needs no code.

    Attributes:
        key: the name of the finding.
        claim: what is claimed, in words.
        text: what was measured, with ``{where}`` (layer and head), ``{layer}``, ``{value}`` (the number, its interval
            and chance levels) and ``{tally}`` (how many heads exceed chance).
        at: ``"first layer"``, ``"last layer"``, ``"highest head"``, or ``"clearest head"``, the head whose lower bound
            over pairs at the same distances is highest.
    """

    key: str
    claim: str
    text: str
    at: str = "last layer"

    def finding(self, kind: Any, one: Statistic) -> Finding:
        """Return the finding of the statistic ``kind`` for its values."""
        layer: int
        head: int | None = None
        if self.at.endswith("head"):
            values = np.nan_to_num(one.values) if self.at == "highest head" else _lower_bounds(one)
            layer, head = (int(at) for at in np.unravel_index(values.argmax(), values.shape))
        else:
            layer = 0 if self.at == "first layer" else len(one.layers) - 1
        return make_finding(kind, self.key, self.claim, self.text, one, layer, head)


def level_of(statistic: Statistic, layer: int, head: int | None = None) -> Level:
    """Return the numbers of one head, or of the mean over heads; ``layer`` and ``head`` are indices on the axes."""
    index = (layer,) if statistic.heads is None else (layer, slice(None) if head is None else head)

    def number(values: np.ndarray) -> float:
        return float(np.mean(values[index]))

    def bounds(values: np.ndarray) -> tuple[float, float]:
        low, high = values[index].reshape(-1, 2).mean(0)
        return float(low), float(high)

    return Level(
        number(statistic.values),
        bounds(statistic.interval),
        number(statistic.chance),
        number(statistic.chance_matched),
        bounds(statistic.excess_interval),
        bounds(statistic.excess_matched_interval),
    )


def make_finding(kind: Any, key: str, claim: str, text: str, one: Statistic, layer: int, head: int | None) -> Finding:
    """Return a finding on a :class:`.HeadStatistic` with its numbers filled in; the words are as in :class:`Claim`.

    ``layer`` and ``head`` are indices on the axes of ``one.values``; head None is the mean over heads.
    """
    show = percentage if kind.unit == "share" else plain_number
    level = level_of(one, layer, head)
    compared = []
    if not math.isnan(level.interval[0]):
        compared.append(f"interval {show(level.interval[0])} to {show(level.interval[1])}")
    if not math.isnan(level.chance):
        compared.append(f"by chance {show(level.chance)}")
    if not math.isnan(level.matched):
        compared.append(f"at the same distances {show(level.matched)}")
    filled = {
        "{layer}": str(one.layers[layer]),
        "{where}": _where(one, layer, head),
        "{value}": show(level.value) + (f" ({', '.join(compared)})" if compared else ""),
    }
    if "{tally}" in text:
        filled["{tally}"] = _tally(one)
    for name, words in filled.items():
        text = text.replace(name, words)
    verdict, _ = kind.verdicts.get(level.verdict, (level.verdict, ""))
    named_head = None if head is None or one.heads is None else one.heads[head]
    text = f"{text[:1].upper()}{text[1:]}."
    return Finding(key, claim, text, verdict, one.name, one.layers[layer], named_head, level, one.texts)


def _lower_bounds(one: Statistic) -> np.ndarray:
    """(L, H): lower bounds over pairs at the same distances, or over chance by count."""
    matched = np.isfinite(one.chance_matched).any()
    interval, chance = (
        (one.excess_matched_interval, one.chance_matched) if matched else (one.excess_interval, one.chance)
    )
    low = np.where(np.isfinite(interval[..., 0]), interval[..., 0], one.values - chance)
    return np.nan_to_num(low, nan=-np.inf)


def _tally(one: Statistic) -> str:
    count = int((one.excess_interval[..., 0] > 0).sum())
    matched = int((one.excess_matched_interval[..., 0] > 0).sum())
    return f"{count} of {one.values.size} heads exceed chance by count, {matched} also pairs at the same distances"


def _where(one: Statistic, layer: int, head: int | None) -> str:
    if one.heads is None:
        return f"layer {one.layers[layer]}"
    if head is not None:
        return f"layer {one.layers[layer]} head {one.heads[head]}"
    return f"layer {one.layers[layer]}, mean of {len(one.heads)} heads"


def percentage(value: float) -> str:
    """A share as a percentage of three digits.

    Example:
        >>> percentage(0.4123), percentage(0.0412), percentage(0.00412)
        ('41.2%', '4.12%', '0.412%')
    """
    return "-" if math.isnan(value) else f"{100 * value:.{_decimals(100 * value)}f}%"


def plain_number(value: float) -> str:
    """A number of three digits.

    Example:
        >>> plain_number(12.34), plain_number(1.234)
        ('12.3', '1.23')
    """
    return "-" if math.isnan(value) else f"{value:.{_decimals(value)}f}"


def _decimals(value: float) -> int:
    return 1 if abs(value) >= 10 or value == 0 else 2 if abs(value) >= 1 else 3


def _side(bounds: tuple[float, float]) -> int | None:
    """The side of zero: 1 above, -1 below, 0 around it, None where it is not known."""
    if math.isnan(bounds[0]):
        return None
    return 1 if bounds[0] > 0 else -1 if bounds[1] < 0 else 0
