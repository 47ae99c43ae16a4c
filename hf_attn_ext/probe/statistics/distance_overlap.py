"""Statistic of the uniformity of the distances of a layer's high pairs."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from hf_attn_ext.probe.counting.pair_set import PairSet
from hf_attn_ext.probe.counting.sums import ratio
from hf_attn_ext.probe.counting.texts import DISTANCE_BINS, Text, distance_shares

from .base import HeadStatistic, Reduced
from .findings import Claim
from .registry import register_statistic

_BINS = len(DISTANCE_BINS)


@register_statistic("distance_overlap")
class DistanceOverlap(HeadStatistic):
    """Overlap of the distances of a layer's high pairs, heads together, with those of all pairs.

    One less the total variation between the two distributions over :data:`.DISTANCE_BINS`. Chance is the overlap of as
    many pairs drawn at random, which is just below 1.

    Source: 2512.21956 (early layers compare nearly uniformly); the measure is ours.
    """

    title = "overlap with the distances of all pairs"
    description = "overlap of the distances of a layer's high pairs, heads together, with those of all pairs"
    per_head = False
    controls = False
    figures = ("curve",)
    report_order = 20
    verdicts = MappingProxyType({"below": ("uneven", "less uniform than by chance")})
    claim = Claim(
        "distance_overlap",
        "early layers compare nearly uniformly",
        "layer {layer}: the distances of its high pairs overlap by {value} with those of all pairs",
        at="first layer",
    )

    def count(self, pairs: PairSet) -> np.ndarray:
        return pairs.by_distance.sum(1).T

    def count_text(self, text: Text) -> np.ndarray:
        expected = np.outer(distance_shares(text), text.counts)
        drawn = PairSet.drawn(text).by_distance.sum(1).T
        return np.concatenate([expected, drawn, np.ones((1, len(text.counts)))])

    def reduce(self, counts: np.ndarray, of_texts: np.ndarray) -> Reduced:
        every, drawn, texts = of_texts[:_BINS], of_texts[_BINS:-1], of_texts[-1]
        return self.reduced(overlap(counts, every), overlap(drawn, every), np.array(np.nan), texts)


def overlap(counts: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return one less the total variation between two distributions, from counts (bins, ...)."""
    one, other = (ratio(each, each.sum(0, keepdims=True)) for each in (counts, others))
    return 1 - 0.5 * np.abs(one - other).sum(0)
