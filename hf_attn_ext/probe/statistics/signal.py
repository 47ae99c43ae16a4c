"""Pairs with a linguistic relation, and noise, the pairs without one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hf_attn_ext.probe.counting.pair_set import PairSet

from .base import PairStatistic, Reduced
from .findings import Claim
from .registry import register_statistic


@register_statistic("signal")
class Signal(PairStatistic):
    """Share of high pairs inside one sentence or with the same token id.

    Source: 2512.21956 (signal and noise); the relations and chance levels are ours.
    """

    title = "signal: one sentence or one token"
    description = "share of high pairs inside one sentence or with the same token id"
    needs_sentences = True

    def of_pair(self, pairs: PairSet) -> np.ndarray:
        return pairs.same_sentence | pairs.same_token

    def loop_pair(self, ids: Sequence[int], sentences: Sequence[int], i: int, j: int) -> float:
        return sentences[i] == sentences[j] or ids[i] == ids[j]


@register_statistic("noise")
class Noise(Signal):
    """Share of high pairs that are neither inside one sentence nor of one token id: 1 less :class:`Signal`.

    Source: 2512.21956 (a cue for pruning).
    """

    title = "noise: neither"
    description = "share of high pairs that are neither"
    counted_as = "signal"
    report_order = 100
    claim = Claim(
        "noise_head",
        "noise, similarity without linguistic relation, shows what may be pruned",
        "{where} is the noisiest: {value} of its high pairs are neither in one sentence nor one token; {tally}",
        at="highest head",
    )

    def reduce(self, counts: np.ndarray, of_texts: np.ndarray) -> Reduced:
        signal = super().reduce(counts, of_texts)
        return Reduced(1 - signal.values, 1 - signal.chance, 1 - signal.matched, signal.texts)

    def loop_pair(self, ids: Sequence[int], sentences: Sequence[int], i: int, j: int) -> float:
        return not super().loop_pair(ids, sentences, i, j)
