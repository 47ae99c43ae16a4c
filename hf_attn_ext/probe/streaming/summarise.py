"""From streamed sums to statistics: values, chance levels, intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hf_attn_ext.probe.counting.sums import Sums, drawn_as_one, interval
from hf_attn_ext.probe.results import Statistic
from hf_attn_ext.probe.statistics import HeadStatistic, Reduced

if TYPE_CHECKING:
    from .stream import Settings


def summarise(sums: Sums, kinds: Sequence[HeadStatistic], settings: Settings) -> list[Statistic]:
    """Return every statistic that was counted: by measure, then by percentage, then in the registry's order."""
    of_pairs = [kind for kind in kinds if not kind.needs_attention]
    controlled = [kind for kind in of_pairs if kind.controls]
    results = list(_of_measure(sums, of_pairs, "dot", "all", settings))
    for measure in settings.controls:
        results += _of_measure(sums, controlled, measure, "sample", settings)
    of_attention = [kind for kind in kinds if kind.needs_attention]
    return results + list(_of_measure(sums, of_attention, "dot", "sample", settings))


def _of_measure(
    sums: Sums, kinds: Sequence[HeadStatistic], measure: str, group: str, settings: Settings
) -> Iterator[Statistic]:
    reduced = {}
    for kind in kinds:
        name = kind.counted_as or kind.name
        names = [f"{measure}/{name}/{layer}" for layer in settings.layers]
        if names[0] in sums:
            counts = np.stack([sums[each] for each in names], 1)  # (R + 1, L, C, H, P), or without H
            of_texts = sums[f"{group}/{name}"]  # (R + 1, C, P)
            of_texts = np.moveaxis(of_texts, 1, 0).reshape(
                of_texts.shape[1], len(of_texts), *(1,) * (counts.ndim - 3), of_texts.shape[2]
            )
            reduced[kind] = kind.reduce(np.moveaxis(counts, 2, 0), of_texts)
    yield from (
        _statistic(kind, measure, None, 0, each, settings) for kind, each in reduced.items() if not kind.by_percent
    )
    for level, percent in enumerate(settings.percents):
        for kind, each in reduced.items():
            if kind.by_percent:
                yield _statistic(kind, measure, percent, level, each, settings)


def _statistic(
    kind: HeadStatistic, measure: str, percent: float | None, level: int, reduced: Reduced, settings: Settings
) -> Statistic:
    values, chance, matched = (each[..., level] for each in (reduced.values, reduced.chance, reduced.matched))
    texts = reduced.texts[:, level]
    alone = drawn_as_one(texts)

    def bounds(each: np.ndarray) -> np.ndarray:
        bounds = interval(each[1:], each[0])
        return np.full(bounds.shape, np.nan) if alone else bounds

    least, most = kind.bounds
    return Statistic(
        kind.name,
        measure,
        percent,
        list(settings.layers),
        list(settings.heads) if kind.per_head else None,
        values[0],
        # no text could give a bound outside; shares of attention of a signed kernel may themselves lie outside
        np.clip(bounds(values), np.minimum(values[0], least)[..., None], np.maximum(values[0], most)[..., None]),
        np.array(chance[0]),
        matched[0],
        bounds(values - chance),
        bounds(values - matched),
        round(texts[0]),
        np.stack([values[1:], chance[1:], matched[1:]]),
    )


def rows_left_out(plain: Sums, layers: Sequence[int]) -> tuple[int, int]:
    """Return how many rows of the heads' attention maps could not be normalised again, and how many there are."""
    if f"rows/{layers[0]}" not in plain:
        return 0, 0
    counted = np.stack([plain[f"rows/{layer}"][0] for layer in layers])
    rows = round(float(plain["rows"][0])) * counted.size
    return rows - round(counted.sum()), rows
