"""Attention on special tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hf_attn_ext.probe.counting.attention_rows import AttentionRows
from hf_attn_ext.probe.counting.sums import ratio
from hf_attn_ext.probe.counting.texts import Text

from .base import HeadStatistic, Reduced
from .findings import Finding
from .registry import register_statistic

if TYPE_CHECKING:
    from hf_attn_ext.probe.results import ProbeStatistics, Statistic


@register_statistic("special_focus")
class SpecialFocus(HeadStatistic):
    """Share of attention on special tokens; there is no chance level.

    Source: ours; the confound is that of Clark et al. 2019.
    """

    title = "attention on special tokens"
    description = "share of attention on special tokens"
    needs_attention = True
    by_percent = False
    report_order = 80

    def count(self, rows: AttentionRows) -> np.ndarray:
        return rows.special[None, :, None]

    def count_text(self, text: Text) -> np.ndarray:
        return np.array([[text.length], [1.0]])

    def reduce(self, counts: np.ndarray, of_texts: np.ndarray) -> Reduced:
        over, texts = of_texts
        return self.reduced(ratio(counts[0], over), np.array(np.nan), np.array(np.nan), texts)

    def findings(self, one: Statistic, statistics: ProbeStatistics) -> list[Finding]:
        most = one.layers[int(one.values.mean(1).argmax())]
        text = (
            f"{{where}}: special tokens take {{value}} of all attention, most in layer {most}; such heads may rest "
            "there and do nothing"
        )
        claim = "separators and special tokens may be a place to rest (a confound)"
        return [self.finding("special_last", claim, text, one, len(one.layers) - 1)]
