"""Statistic of the overlap between pairs of high similarity and pairs of high attention."""

from __future__ import annotations

import numpy as np

from hf_attn_ext.probe.counting.attention_rows import AttentionRows
from hf_attn_ext.probe.counting.pair_set import counted
from hf_attn_ext.probe.counting.similarity import select_high
from hf_attn_ext.probe.counting.texts import Text

from .base import HeadStatistic
from .findings import Claim
from .registry import register_statistic


@register_statistic("region")
class Region(HeadStatistic):
    """Share of high pairs that are also among the same number of pairs with the highest attention.

    A pair's attention is the greater of both directions, over the tokens that are not special.

    Source: 2512.21956 (high-attention regions delineate the high-similarity areas); the measure is ours.
    """

    title = "high pairs in regions of high attention"
    description = "share of high pairs where attention is as high"
    needs_attention = True
    report_order = 90
    claim = Claim(
        "region_last",
        "regions of high attention delineate those of high similarity",
        "{where}: {value} of the high pairs are also among as many of the highest attention; {tally}",
    )

    def count(self, rows: AttentionRows) -> np.ndarray:
        text, chosen = rows.text, rows.high.index
        assert chosen is not None  # high pairs have numbers
        heads, length, pairs = len(chosen), text.length, len(text.pairs[0])
        first, second, _ = text.pairs
        gaps = (second - first).astype(np.int64)
        inside = select_high(rows.strength, text.counts, np.ones((heads, length)), text.pairs, text.key)
        by_gap = counted(gaps[inside], length, text.counts)
        sums = np.empty((2, heads, len(text.counts)))
        for level, count in enumerate(text.counts):
            high = chosen[:, :count]
            mask = np.zeros((heads, pairs), dtype=bool)
            np.put_along_axis(mask, inside[:, :count], True, axis=1)
            sums[0, :, level] = np.take_along_axis(mask, high, axis=1).sum(1)
            shares = by_gap[level] / (length - np.arange(length))
            sums[1, :, level] = np.take_along_axis(shares, gaps[high], axis=1).sum(1)
        return sums

    def count_text(self, text: Text) -> np.ndarray:
        counts = np.array(text.counts, dtype=np.float64)
        return np.stack([counts * counts / len(text.pairs[0]), counts, np.ones_like(counts)])
