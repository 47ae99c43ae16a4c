"""The most common token of each head: how many pairs it takes, and whether heads share it."""

from __future__ import annotations

import numpy as np

from hf_attn_ext.probe.counting.pair_set import PairSet
from hf_attn_ext.probe.counting.texts import Text

from .base import HeadStatistic
from .findings import Claim
from .registry import register_statistic


@register_statistic("top_token")
class TopToken(HeadStatistic):
    """Share of high pairs' ends that the most common token takes.

    Chance draws pairs at random. Vectors without any relation exceed it where some are long: see the cosine control.

    Source: 2512.21956 (each head has its own most common token); the measure is ours.
    """

    title = "share of the most common token"
    description = "share of high pairs' ends that the most common token takes"
    report_order = 60
    claim = Claim(
        "top_token",
        "a head's high pairs gather on one token",
        "{where}: the most common token takes {value} of the ends of high pairs",
    )

    def count(self, pairs: PairSet) -> np.ndarray:
        # half an end for each pair, so that the denominator is the number of pairs
        return np.stack([pairs.most_common[1].T / 2, pairs.matched.most_common[1].T / 2])

    def count_text(self, text: Text) -> np.ndarray:
        drawn = (PairSet.drawn(text).most_common[1] / 2).mean(1)
        return np.stack([drawn, text.counts, np.ones(len(text.counts))])


@register_statistic("unique_tokens")
class UniqueTokens(HeadStatistic):
    """Distinct most common tokens of a layer's heads, over the number of heads.

    Source: 2512.21956 (each head has its own most common token); the measure is ours.
    """

    title = "distinct most common tokens"
    description = "distinct most common tokens of a layer's heads, over the heads"
    per_head = False
    figures = ("curve",)
    report_order = 50
    claim = Claim(
        "unique_tokens",
        "each head has its own most common token",
        "layer {layer}: its heads' most common tokens are {value} distinct (100%: each head has its own)",
    )

    def count(self, pairs: PairSet) -> np.ndarray:
        return np.array([_distinct(pairs), _distinct(pairs.matched)])

    def count_text(self, text: Text) -> np.ndarray:
        texts = np.ones(len(text.counts))
        return np.stack([_distinct(PairSet.drawn(text)), texts, texts])


def _distinct(pairs: PairSet) -> list[float]:
    return [len(set(tokens)) / len(tokens) for tokens in pairs.most_common[0].tolist()]
