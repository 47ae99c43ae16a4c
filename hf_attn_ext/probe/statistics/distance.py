"""Statistic of the distance between the tokens of high pairs."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from hf_attn_ext.probe.counting.pair_set import PairSet

from .base import PairStatistic
from .findings import Finding
from .registry import register_statistic

if TYPE_CHECKING:
    from hf_attn_ext.probe.results import ProbeStatistics, Statistic


@register_statistic("distance")
class Distance(PairStatistic):
    """Mean distance of high pairs, in tokens.

    Source: 2512.21956 (early layers long-range, middle layers short-range); the chance level is ours.
    """

    title = "distance in tokens"
    description = "mean distance of high pairs, in tokens"
    unit = "tokens"
    bounds = (1.0, np.inf)
    matched = False
    report_order = 10
    verdicts = MappingProxyType(
        {"below": ("shorter", "shorter than by chance"), "above": ("longer", "longer than by chance")}
    )

    def of_pair(self, pairs: PairSet) -> np.ndarray:
        return pairs.distance

    def loop_pair(self, ids: Sequence[int], sentences: Sequence[int], i: int, j: int) -> float:
        return j - i

    def findings(self, one: Statistic, statistics: ProbeStatistics) -> list[Finding]:
        depth = len(one.layers)
        claims = {
            0: "early layers compare over long ranges",
            depth // 2: "middle layers compare over short ranges",
            depth - 1: "(the last layer's distances, to compare)",
        }
        text = "{where}: high pairs are {value} tokens apart on average"
        found = [self.finding(f"distance_{layer}", claim, text, one, layer) for layer, claim in claims.items()]
        return found[:1] if found[0].layer == found[-1].layer else found
