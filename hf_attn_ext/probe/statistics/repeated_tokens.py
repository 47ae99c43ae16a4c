"""Pairs of a token and its repetition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hf_attn_ext.probe.counting.pair_set import PairSet

from .base import PairStatistic
from .findings import Claim
from .registry import register_statistic


@register_statistic("repeated_tokens")
class RepeatedTokens(PairStatistic):
    """Share of high pairs with the same token id.

    Source: 2512.21956 (head 8 of layer 11 finds repetitions across the whole text); chance levels ours.
    """

    title = "pairs of repeated tokens"
    description = "share of high pairs with the same token id"
    controls_figure = True
    report_order = 40
    claim = Claim(
        "repetition_head",
        "some heads find repetitions across the whole text",
        "{where} finds repetitions most clearly: {value} of its high pairs have the same token id; {tally}",
        at="clearest head",
    )

    def of_pair(self, pairs: PairSet) -> np.ndarray:
        return pairs.same_token

    def loop_pair(self, ids: Sequence[int], sentences: Sequence[int], i: int, j: int) -> float:
        return ids[i] == ids[j]
