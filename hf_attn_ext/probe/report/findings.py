"""Findings in words: what the paper says, what was measured, the chance levels, the interval, and the verdict.

The claims are the paper's (2512.21956), the measures and the verdicts ours. A mean over heads has the mean of its
heads' intervals, which is at least as wide as its own: a standard deviation of a mean is at most the mean of the
standard deviations.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from hf_attn_ext.probe.results import ProbeStatistics, Statistic

# What a pair (by count, distance-matched) of comparisons comes to; the words stand in the report.
VERDICTS = {
    "beyond": "above chance, also beyond nearness",
    "nearness": "above chance, but only by nearness: pairs at the same distances have as much",
    "less": "above chance by count, but below what pairs at the same distances have",
    "above": "above chance",
    "hidden": "no more than by count, yet more than pairs at the same distances have",
    "shorter": "shorter than by chance",
    "longer": "longer than by chance",
    "uneven": "less uniform than by chance",
    "none": "no different from chance",
    "below": "below chance",
    "unknown": "no interval: too few texts",
    "measured": "measured; there is no chance level",
}


@dataclasses.dataclass(frozen=True)
class Level:
    """One number with what it is compared with; NaN where there is no such thing.

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
        texts: how many it rests on.
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


def level_of(statistic: Statistic, layer: int, head: int | None = None) -> Level:
    """The numbers of one head, or of the mean over a layer's heads.

    Args:
        layer, head: places on the axes of ``statistic.values``, not numbers of the model.

    Example:
        >>> level_of(statistics.get("signal"), 0).verdict  # doctest: +SKIP
        'nearness'
    """
    place = (layer,) if statistic.heads is None else (layer, slice(None) if head is None else head)

    def number(values: np.ndarray) -> float:
        return float(np.mean(values[place]))

    def bounds(values: np.ndarray) -> tuple[float, float]:
        each = values[place].reshape(-1, 2).mean(0)
        return float(each[0]), float(each[1])

    return Level(
        number(statistic.values),
        bounds(statistic.interval),
        number(statistic.chance),
        number(statistic.chance_matched),
        bounds(statistic.excess_interval),
        bounds(statistic.excess_matched_interval),
    )


def findings(statistics: ProbeStatistics) -> list[Finding]:
    """What the statistics say of each of the paper's findings; of the first percentage."""
    percent = statistics.settings["percents"][0]
    have = {(each.name, each.measure) for each in statistics.statistics}
    found = []
    for name, measure, make in (
        ("distance", "dot", _distances),
        ("distance_overlap", "dot", _uniform),
        ("within_sentence", "dot", _within),
        ("within_sentence", "dot", _within_best),
        ("repeated_tokens", "dot", _repeated),
        ("unique_tokens", "dot", _unique),
        ("top_token", "dot", _top),
        ("separator_focus", "dot", _separators),
        ("special_focus", "dot", _special),
        ("region", "dot", _region),
        ("noise", "dot", _noise),
        ("within_sentence", "cosine", _control),
        ("within_sentence", "attention", _control),
    ):
        if (name, measure) not in have:
            continue
        one = statistics.get(name, None if name in ("separator_focus", "special_focus") else percent, measure)
        if np.isfinite(one.values).any():
            found += make(one, statistics)
    return found


def gaps(statistics: ProbeStatistics) -> list[str]:
    """What a reader must know before the findings, in sentences."""
    notes = list(statistics.notes)
    counts = statistics.counts
    seen = counts["texts"] + counts["skipped"]
    if 0 < counts["sentences"] <= seen:
        notes.append(
            "Every text is one sentence: within-sentence shares and signal are 1 by construction, and say nothing. "
            "Give longer texts for them."
        )
    if len(statistics.settings["heads"]) * len(statistics.settings["layers"]) > 1:
        notes.append(
            "Every interval is for one number at 95%: of many heads that do what chance does, one in forty lies above "
            "chance by its interval. The head named as clearest has the highest lower bound of all over pairs at the "
            "same distances; its own interval does not know that it was chosen."
        )
    return notes


def _distances(one: Statistic, statistics: ProbeStatistics) -> list[Finding]:
    depth = len(one.layers)
    claims = {
        0: "early layers compare over long ranges",
        depth // 2: "middle layers compare over short ranges",
        depth - 1: "(the last layer's distances, to compare)",
    }
    found = []
    for layer, claim in claims.items():
        text = f"{_where(one, layer)}: high pairs are {{value}} tokens apart on average"
        found.append(_finding(f"distance_{layer}", claim, text, one, layer, None, _tokens))
    if found[0].layer == found[-1].layer:
        return found[:1]
    return found


def _uniform(one: Statistic, statistics: ProbeStatistics) -> list[Finding]:
    text = f"layer {one.layers[0]}: the distances of its high pairs overlap by {{value}} with those of all pairs"
    return [_finding("distance_overlap", "early layers compare nearly uniformly", text, one, 0, None)]


def _within(one: Statistic, statistics: ProbeStatistics) -> list[Finding]:
    last = len(one.layers) - 1
    text = f"{_where(one, last)}: {{value}} of high pairs lie inside one sentence"
    found = [_finding("within_last", "last layers compare inside the sentence", text, one, last, None)]
    means = one.values.mean(1)
    best = int(means.argmax())
    text = (
        f"in {int((means > 1 / 3).sum())} of {len(means)} layers more than a third of high pairs lie inside one "
        f"sentence, most in layer {one.layers[best]}: {{value}}; the chance level decides what that is worth"
    )
    claim = "more than 33% of strong pairs lie inside one sentence"
    return [*found, _finding("within_third", claim, text, one, best, None)]


def _within_best(one: Statistic, statistics: ProbeStatistics) -> list[Finding]:
    text = "{where} compares inside the sentence most clearly: {value} of its high pairs; " + _tally(one)
    return [_best("within_head", "some heads compare inside the sentence", text, one)]


def _repeated(one: Statistic, statistics: ProbeStatistics) -> list[Finding]:
    text = "{where} finds repetitions most clearly: {value} of its high pairs have the same token id; " + _tally(one)
    return [_best("repetition_head", "some heads find repetitions across the whole text", text, one)]


def _unique(one: Statistic, statistics: ProbeStatistics) -> list[Finding]:
    last = len(one.layers) - 1
    text = f"layer {one.layers[last]}: its heads' most common tokens are {{value}} distinct (100% is a token a head)"
    return [_finding("unique_tokens", "each head has its own most common token", text, one, last, None)]


def _top(one: Statistic, statistics: ProbeStatistics) -> list[Finding]:
    last = len(one.layers) - 1
    text = f"{_where(one, last)}: the most common token takes {{value}} of the ends of high pairs"
    return [_finding("top_token", "a head's high pairs gather on one token", text, one, last, None)]


def _separators(one: Statistic, statistics: ProbeStatistics) -> list[Finding]:
    last = len(one.layers) - 1
    shown = " and ".join(f'"{each}"' for each in statistics.settings["separators"])
    text = f"{_where(one, last)}: {{value}} of attention among words rests on the separators {shown}"
    return [_finding("separators_last", "in the last layers attention rests on separators", text, one, last, None)]


def _special(one: Statistic, statistics: ProbeStatistics) -> list[Finding]:
    last = len(one.layers) - 1
    text = (
        f"{_where(one, last)}: special tokens take {{value}} of all attention, most in layer "
        f"{one.layers[int(one.values.mean(1).argmax())]}; such heads may rest there and do nothing"
    )
    return [
        _finding(
            "special_last", "separators and special tokens may be a place to rest (a confound)", text, one, last, None
        )
    ]


def _region(one: Statistic, statistics: ProbeStatistics) -> list[Finding]:
    last = len(one.layers) - 1
    text = (
        f"{_where(one, last)}: {{value}} of the high pairs are also among as many of the highest attention; "
        + _tally(one)
    )
    return [
        _finding("region_last", "regions of high attention delineate those of high similarity", text, one, last, None)
    ]


def _noise(one: Statistic, statistics: ProbeStatistics) -> list[Finding]:
    layer, head = (int(at) for at in np.unravel_index(np.nan_to_num(one.values).argmax(), one.values.shape))
    text = "{where} is the noisiest: {value} of its high pairs are neither in one sentence nor one token; " + _tally(
        one
    )
    claim = "noise, similarity without linguistic relation, shows what may be pruned"
    return [_finding("noise_head", claim, text, one, layer, head)]


def _control(one: Statistic, statistics: ProbeStatistics) -> list[Finding]:
    last = len(one.layers) - 1
    name = {"cosine": "the cosine of the outputs", "attention": "A A^T"}[one.measure]
    text = f"{_where(one, last)}, {name} instead of dot products: {{value}} of high pairs lie inside one sentence"
    return [_finding(f"control_{one.measure}", "(control, ours)", text, one, last, None)]


def _best(key: str, claim: str, text: str, one: Statistic) -> Finding:
    """Of the head whose lower bound over pairs at the same distances is highest."""
    low = one.excess_matched_interval[..., 0]
    low = np.where(np.isfinite(low), low, one.values - one.chance_matched)
    layer, head = (int(at) for at in np.unravel_index(np.nan_to_num(low, nan=-np.inf).argmax(), low.shape))
    return _finding(key, claim, text, one, layer, head)


def _finding(
    key: str,
    claim: str,
    text: str,
    one: Statistic,
    layer: int,
    head: int | None,
    show: Callable[[float], str] | None = None,
) -> Finding:
    show = show or percentage
    level = level_of(one, layer, head)
    compared = []
    if not math.isnan(level.interval[0]):
        compared.append(f"interval {show(level.interval[0])} to {show(level.interval[1])}")
    if not math.isnan(level.chance):
        compared.append(f"by chance {show(level.chance)}")
    if not math.isnan(level.matched):
        compared.append(f"at the same distances {show(level.matched)}")
    value = show(level.value) + (f" ({', '.join(compared)})" if compared else "")
    text = text.replace("{where}", _where(one, layer, head)).replace("{value}", value)
    named_head = None if head is None else one.heads[head]
    verdict = level.verdict
    if one.name == "distance":
        verdict = {"below": "shorter", "above": "longer"}.get(verdict, verdict)
    elif one.name == "distance_overlap":
        verdict = {"below": "uneven"}.get(verdict, verdict)
    return Finding(key, claim, _capital(text) + ".", verdict, one.name, one.layers[layer], named_head, level, one.texts)


def _tally(one: Statistic) -> str:
    count = int((one.excess_interval[..., 0] > 0).sum())
    matched = int((one.excess_matched_interval[..., 0] > 0).sum())
    total = one.values.size
    return f"{count} of {total} heads exceed chance by count, {matched} also pairs at the same distances"


def _where(one: Statistic, layer: int, head: int | None = None) -> str:
    if head is not None:
        return f"layer {one.layers[layer]} head {one.heads[head]}"
    return f"layer {one.layers[layer]}, mean of {len(one.heads)} heads" if one.heads else f"layer {one.layers[layer]}"


def percentage(value: float) -> str:
    """A share as a percentage of three digits.

    Example:
        >>> percentage(0.4123), percentage(0.0412), percentage(0.00412)
        ('41.2%', '4.12%', '0.412%')
    """
    return "-" if math.isnan(value) else f"{100 * value:.{_decimals(100 * value)}f}%"


def _tokens(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.{_decimals(value)}f}"


def _decimals(value: float) -> int:
    return 1 if abs(value) >= 10 or value == 0 else 2 if abs(value) >= 1 else 3


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _side(bounds: tuple[float, float]) -> int | None:
    """Of zero: 1 above, -1 below, 0 around it, None unknown."""
    if math.isnan(bounds[0]):
        return None
    return 1 if bounds[0] > 0 else -1 if bounds[1] < 0 else 0
