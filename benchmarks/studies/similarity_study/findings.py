"""The source's findings one by one (arXiv 2512.21956), and when numbers agree with them; thresholds are ours."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hf_attn_ext.probe import ProbeStatistics, Statistic
from hf_attn_ext.probe.report.findings import Level, level_of, percentage

from .verdicts import MOST, Place, contrast, judge

WHOLE = 0.75  # of the mean distance of all pairs: "across the whole text"
ALIKE = 0.8  # overlap with the distances of all pairs: "nearly uniform"
THIRD = 1 / 3
# The source's head that finds repetitions, counted from 0 and from 1; it does not say which.
NAMED_HEADS = ((11, 8), (10, 7))


@dataclasses.dataclass(frozen=True)
class Row:
    """One finding.

    Attributes:
        key: a short name.
        source: what the source says, in our words.
        seen: what the number is.
        level: the number, its interval and chance levels.
        untrained, shuffled: the same of the controls; None where there is none.
        reference: the same of the model on the controls' texts.
        verdict: in words.
        rule: what had to hold for it, where that is not what it mostly is: above chance by the interval.
        show: the number as text.
    """

    key: str
    source: str
    seen: str
    level: Level
    untrained: Level | None
    shuffled: Level | None
    reference: Level | None
    verdict: str
    rule: str
    show: Callable[[float], str]


def tokens(value: float) -> str:
    """Return a number of tokens as text."""
    return "-" if math.isnan(value) else f"{value:.3g}"


def statistic(table: ProbeStatistics | None, name: str, measure: str = "dot") -> Statistic | None:
    """The statistic at the first percentage, or None where it was not taken."""
    for one in table.statistics if table is not None else ():
        if one.name == name and one.measure == measure and np.isfinite(one.values).any():
            return one
    return None


def best(one: Statistic) -> tuple[int, int]:
    """The head that is farthest above pairs at the same distances, by the lower bound of its interval."""
    low = one.excess_matched_interval[..., 0]
    return tuple(int(at) for at in np.unravel_index(np.nan_to_num(low, nan=-np.inf).argmax(), low.shape))


def rows(tables: Mapping[str, ProbeStatistics]) -> list[Row]:
    """Every finding that the statistics of ``tables["trained"]`` speak of."""
    trained = tables["trained"]
    found = [*_distances(tables)]
    for name, make in (
        ("within_sentence", _within),
        ("separator_focus", _separators),
        ("repeated_tokens", _repeated),
        ("unique_tokens", _unique),
        ("top_token", _top),
        ("region", _region),
        ("noise", _noise),
    ):
        one = statistic(trained, name)
        if one is not None:
            found += make(one, tables)
    return found


def _row(
    key: str,
    source: str,
    seen: str,
    one: Statistic,
    tables: Mapping[str, ProbeStatistics],
    layer: int,
    head: int | None,
    holds: Callable[[Level], bool],
    rule: str,
    sign: int = 1,
    chosen: bool = False,
    chance: bool = True,
) -> Row:
    """A finding about one head, or the mean over a layer's; ``chosen`` heads are compared with the control's best."""
    level, places = level_of(one, layer, head), {}
    for which in ("untrained", "shuffled", "reference"):
        other = statistic(tables.get(which), one.name)
        if other is not None:
            at = best(other) if chosen and which == "untrained" else (layer, head)
            places[which] = Place(other, *at)
    same_texts = places.get("reference", Place(one, layer, head))
    compared = [
        contrast(places[which], same_texts, least, sign, chance) if which in places else None
        for which, least in (("untrained", 1.0), ("shuffled", MOST))
    ]
    where = f"layer {one.layers[layer]}"
    if one.heads is not None:
        where += f", mean of {len(one.heads)} heads" if head is None else f" head {one.heads[head]}"
    show = tokens if one.name == "distance" else percentage
    verdict = judge(holds(level), level, *compared, sign, chance)
    return Row(key, source, f"{where}, {seen}", level, *_levels(places), verdict, rule, show)


def _levels(places: Mapping[str, Place]) -> list[Level | None]:
    """Of either control, and of the model on their texts."""
    order = ("untrained", "shuffled", "reference")
    return [places[which].level if which in places else None for which in order]


def _distances(tables: Mapping[str, ProbeStatistics]) -> list[Row]:
    one = statistic(tables["trained"], "distance")
    middle = len(one.layers) // 2
    first, between = level_of(one, 0), level_of(one, middle)
    far = _row(
        "far early",
        "early layers compare over long ranges",
        f"mean distance of high pairs in tokens (middle layer {tokens(between.value)})",
        one,
        tables,
        0,
        None,
        lambda level: level.interval[0] > between.interval[1],
        "the mean distance is above the middle layer's, intervals apart; chance is what the claim says, so the "
        "distances themselves are compared with the controls'",
        chance=False,
    )
    overlap = statistic(tables["trained"], "distance_overlap")
    elsewhere = level_of(overlap, middle)
    alike = _row(
        "uniform early",
        "... and nearly uniformly",
        f"heads together, overlap with the distances of all pairs (middle layer {percentage(elsewhere.value)}, last "
        f"{percentage(overlap.values[-1])})",
        overlap,
        tables,
        0,
        None,
        lambda level: level.interval[0] > max(ALIKE, elsewhere.interval[1]),
        f"the overlap is above {ALIKE:g} by its interval, and above the middle layer's, intervals apart; chance is "
        "what the claim says, so the overlaps themselves are compared with the controls'",
        chance=False,
    )
    near = _row(
        "near in the middle",
        "middle layers compare over short ranges",
        "mean distance of high pairs in tokens",
        one,
        tables,
        middle,
        None,
        lambda level: level.interval[1] < first.interval[0],
        "the mean distance is below that of all pairs by its interval, and below the first layer's, intervals apart",
        sign=-1,
    )
    return [far, alike, near]


def _within(one: Statistic, tables: Mapping[str, ProbeStatistics]) -> list[Row]:
    last, means = len(one.layers) - 1, one.values.mean(1)
    top = int(means.argmax())
    count = int((means > THIRD).sum())
    return [
        _row(
            "sentence at the end",
            "last layers compare inside the sentence",
            "high pairs inside one sentence",
            one,
            tables,
            last,
            None,
            lambda level: True,
            "",
        ),
        _row(
            "a third inside",
            "more than 33% of strong pairs lie inside one sentence, which is no chance",
            f"the most of all layers ({count} of {len(means)} layers exceed a third)",
            one,
            tables,
            top,
            None,
            lambda level: level.interval[0] > THIRD,
            "above a third by its interval, and above both chance levels by theirs",
        ),
    ]


def _separators(one: Statistic, tables: Mapping[str, ProbeStatistics]) -> list[Row]:
    last, means = len(one.layers) - 1, one.values.mean(1)
    shown = " and ".join(f'"{each}"' for each in tables["trained"].settings["separators"])
    found = [
        _row(
            "separators at the end",
            f"in the last layers attention rests on separators ({shown})",
            f"attention on them, of that on tokens that are not special (most in layer {one.layers[means.argmax()]}: "
            f"{percentage(means.max())})",
            one,
            tables,
            last,
            None,
            lambda level: True,
            "",
        )
    ]
    special = statistic(tables["trained"], "special_focus")
    if special is not None:
        there = {which: statistic(tables.get(which), "special_focus") for which in tables}
        others = _levels({which: Place(each, last) for which, each in there.items() if each is not None})
        found.append(
            Row(
                "special tokens",
                "(ours: heads may rest on such tokens and do nothing)",
                f"layer {one.layers[last]}, mean of {len(one.heads)} heads, attention on special tokens",
                level_of(special, last),
                *others,
                "measured; no claim",
                "",
                percentage,
            )
        )
    return found


def has_named_head(layers: Sequence[int], heads: Sequence[int]) -> bool:
    """Whether the source's head is there: only of a model as deep as its own, whichever way it counts."""
    return len(layers) == 12 and any(layer in layers and head in heads for layer, head in NAMED_HEADS)


def _repeated(one: Statistic, tables: Mapping[str, ProbeStatistics]) -> list[Row]:
    at = best(one)
    found = [
        _row(
            "repetitions",
            "some heads find repetitions",
            "the clearest: high pairs of one token id",
            one,
            tables,
            *at,
            lambda level: True,
            "above chance by its interval; the untrained model is taken by its own clearest head",
            chosen=True,
        )
    ]
    for layer, head in NAMED_HEADS:
        if has_named_head(one.layers, one.heads) and layer in one.layers and head in one.heads:
            counted = "0" if (layer, head) == NAMED_HEADS[0] else "1"
            place = one.layers.index(layer), one.heads.index(head)
            found.append(
                _row(
                    f"head 8 of layer 11, from {counted}",
                    f"head 8 of layer 11 finds them (counted from {counted})",
                    "high pairs of one token id",
                    one,
                    tables,
                    *place,
                    lambda level: True,
                    "",
                )
            )
    distance = statistic(tables["trained"], "distance")
    far = _row(
        "repetitions far apart",
        "... across the whole text",
        "mean distance of its high pairs in tokens",
        distance,
        tables,
        *at,
        lambda level: level.interval[0] >= WHOLE * level.chance,
        f"it finds repetitions (the row above, whose reservations hold here too), and its mean distance is at least "
        f"{WHOLE:g} of that of all pairs, by its interval",
        chance=False,
    )
    verdict = far.verdict
    if verdict.startswith("agrees"):
        verdict = (
            found[0].verdict if found[0].verdict.startswith("agrees") else "does not agree: it finds no repetitions"
        )
    return [*found, dataclasses.replace(far, verdict=verdict)]


def _last(
    key: str, source: str, seen: str, one: Statistic, tables: Mapping[str, ProbeStatistics], rule: str = ""
) -> Row:
    """A finding about the last layer's mean, which is above chance or not."""
    return _row(key, source, seen, one, tables, len(one.layers) - 1, None, lambda level: True, rule)


def _unique(one: Statistic, tables: Mapping[str, ProbeStatistics]) -> list[Row]:
    source = "each head has a most common token of its own"
    seen = "distinct most common tokens, over heads (100%: each head has its own)"
    rule = "above what heads with random pairs have, by its interval"
    return [_last("own token", source, seen, one, tables, rule)]


def _top(one: Statistic, tables: Mapping[str, ProbeStatistics]) -> list[Row]:
    source = "a head's pairs gather around that token"
    return [_last("one token", source, "ends of high pairs that the most common token takes", one, tables)]


def _region(one: Statistic, tables: Mapping[str, ProbeStatistics]) -> list[Row]:
    source = "regions of high attention delineate those of high similarity"
    return [_last("region", source, "high pairs that are also among as many of the highest attention", one, tables)]


def _noise(one: Statistic, tables: Mapping[str, ProbeStatistics]) -> list[Row]:
    signal = statistic(tables["trained"], "signal")
    at = np.unravel_index(np.nan_to_num(one.values).argmax(), one.values.shape)
    more = int((one.excess_interval[..., 0] > 0).sum())
    noise = _row(
        "noise",
        "... and some has none (noise), which may be pruned",
        "the noisiest: high pairs of neither",
        one,
        tables,
        *(int(place) for place in at),
        lambda level: True,
        "",
    )
    return [
        _last(
            "signal",
            "similarity shows linguistic relation (signal)",
            "high pairs of one sentence or one token id",
            signal,
            tables,
        ),
        dataclasses.replace(noise, verdict=f"measured; {more} of {one.values.size} heads have more than by chance"),
    ]
