"""From streamed sums to statistics: ratios, chance levels, intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hf_attn_ext.probe.counting.sums import Sums, drawn_as_one, interval, ratio
from hf_attn_ext.probe.results import Statistic

from .measures import CHANCE_SUMS, FOCUS_SUMS, PAIR_SUMS, REGION_SUMS, UNIQUE_SUMS

# public name: (sum, whether it needs sentences)
_PAIR_STATISTICS = {
    "within_sentence": ("within", True),
    "repeated_tokens": ("repeated", False),
    "signal": ("related", True),
    "noise": ("related", True),
    "distance": ("distance", False),
    "top_token": ("top", False),
}


def pair_statistics(
    sums: Sums, measure: str, group: str, layers: Sequence[int], heads: list[int], percents: Sequence[float]
) -> list[Statistic]:
    """The statistics of the high pairs of one measure; ``group`` is the texts it was taken on."""
    if f"{measure}/pairs/{layers[0]}" not in sums:
        return []
    pairs = np.stack([sums[f"{measure}/pairs/{layer}"] for layer in layers], 1)  # (R + 1, L, H, P, 9)
    unique = np.stack([sums[f"{measure}/unique/{layer}"] for layer in layers], 1)  # (R + 1, L, P, 2)
    chance, below = sums[f"{group}/chance"], sums[f"{group}/below"]  # (R + 1, P, 6), (R + 1, P, 3)
    found = []
    for level, percent in enumerate(percents):
        texts = below[:, level, 2]
        for name, (key, sentences) in _PAIR_STATISTICS.items():
            over = below[:, level, int(sentences)]
            values = ratio(pairs[:, :, :, level, PAIR_SUMS.index(key)], over[:, None, None])
            by_count = ratio(chance[:, level, CHANCE_SUMS.index(key)], over)[:, None, None]
            by_count = np.broadcast_to(by_count, values.shape)
            matched = np.full(values.shape, np.nan)
            if f"{key}_matched" in PAIR_SUMS:
                matched = ratio(pairs[:, :, :, level, PAIR_SUMS.index(f"{key}_matched")], over[:, None, None])
            if name == "noise":
                values, by_count, matched = 1 - values, 1 - by_count, 1 - matched
            used = texts if not sentences else below[:, level, 3]
            found.append(_statistic(name, measure, percent, layers, heads, values, by_count, matched, used))
        over = below[:, level, 2][:, None]
        values, matched = (ratio(unique[:, :, level, UNIQUE_SUMS.index(n)], over) for n in UNIQUE_SUMS)
        by_count = np.broadcast_to(ratio(chance[:, level, CHANCE_SUMS.index("unique")][:, None], over), values.shape)
        found.append(_statistic("unique_tokens", measure, percent, layers, None, values, by_count, matched, texts))
        if f"{measure}/spread/{layers[0]}" in sums:
            spread = np.stack([sums[f"{measure}/spread/{layer}"][:, level] for layer in layers], 1)  # (R + 1, L, bins)
            everywhere, drawn = np.moveaxis(sums[f"{group}/spread"][:, :, level], 1, 0)[:, :, None]  # (R + 1, 1, bins)
            values, by_count = _overlap(spread, everywhere), _overlap(drawn, everywhere)
            by_count, matched = np.broadcast_to(by_count, values.shape), np.full(values.shape, np.nan)
            found.append(
                _statistic("distance_overlap", measure, percent, layers, None, values, by_count, matched, texts)
            )
    return found


def _overlap(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """(...): one less the total variation between two distributions, from counts (..., bins)."""
    one, other = (ratio(each, each.sum(-1, keepdims=True)) for each in (one, other))
    return 1 - 0.5 * np.abs(one - other).sum(-1)


def attention_statistics(
    sums: Sums, layers: Sequence[int], heads: list[int], percents: Sequence[float]
) -> list[Statistic]:
    """The statistics of the attention map, taken on the sample."""
    if f"focus/{layers[0]}" not in sums:
        return []
    focus = np.stack([sums[f"focus/{layer}"] for layer in layers], 1)
    region = np.stack([sums[f"region/{layer}"] for layer in layers], 1)
    rows, below = sums["sample/rows"], sums["sample/below"]
    nothing = np.full(focus.shape[:3], np.nan)
    texts = below[:, 0, 2]
    counted = focus[..., FOCUS_SUMS.index("rows")] * (rows[:, 1, None, None] > 0)
    separators = [ratio(focus[..., FOCUS_SUMS.index(n)], counted) for n in FOCUS_SUMS[:3]]
    special = ratio(focus[..., FOCUS_SUMS.index("special")], rows[:, 0, None, None])
    found = [
        _statistic("separator_focus", "dot", None, layers, heads, *separators, rows[:, 2]),
        _statistic("special_focus", "dot", None, layers, heads, special, nothing, nothing, texts),
    ]
    for level, percent in enumerate(percents):
        over = below[:, level, 0][:, None, None]
        parts = [ratio(region[:, :, :, level, place], over) for place in range(len(REGION_SUMS))]
        found.append(_statistic("region", "dot", percent, layers, heads, *parts, texts))
    return found


def rows_left_out(sums: Sums, layers: Sequence[int]) -> tuple[int, int]:
    """How many rows of the heads' attention maps could not be normalised again, and how many there are."""
    if f"focus/{layers[0]}" not in sums:
        return 0, 0
    counted = np.stack([sums[f"focus/{layer}"][0, :, FOCUS_SUMS.index("rows")] for layer in layers])
    there = round(sums["sample/rows"][0, 0]) * counted.size
    return there - round(counted.sum()), there


def _statistic(
    name: str,
    measure: str,
    percent: float | None,
    layers: Sequence[int],
    heads: list[int] | None,
    values: np.ndarray,
    chance: np.ndarray,
    matched: np.ndarray,
    texts: np.ndarray,
) -> Statistic:
    """One entry from arrays whose first axis is the sum and its replicates; ``texts`` is how many were counted."""
    alone = drawn_as_one(texts)

    least, most = (1.0, np.inf) if name == "distance" else (0.0, 1.0)

    def bounds(each: np.ndarray) -> np.ndarray:
        bounds = interval(each[1:], each[0])
        return np.full(bounds.shape, np.nan) if alone else bounds

    return Statistic(
        name,
        measure,
        percent,
        list(layers),
        heads,
        values[0],
        # a bound that no text could give says nothing; shares of attention of a signed kernel may be outside themselves
        np.clip(bounds(values), np.minimum(values[0], least)[..., None], np.maximum(values[0], most)[..., None]),
        np.array(chance[0]),
        matched[0],
        bounds(values - chance),
        bounds(values - matched),
        round(texts[0]),
        np.stack([values[1:], np.broadcast_to(chance, values.shape)[1:], matched[1:]]),
    )
