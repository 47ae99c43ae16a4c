"""Attention on separators."""

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


@register_statistic("separator_focus")
class SeparatorFocus(HeadStatistic):
    """Share of attention on separators, among the attention on tokens that are not special.

    Rows are renormalised over the tokens that are not special; rows without such attention are left out. The chance
    level is the share of separators among the keys that a row sees. The chance level at the same distances replaces
    each weight of a head by the head's mean weight at that signed distance.

    Source: 2512.21956 (last layers rest on "." and ","); the measure and chance levels are ours.
    """

    title = "attention on separators"
    description = "share of attention on separators, of that on tokens that are not special"
    needs_attention = True
    by_percent = False
    report_order = 70

    def count(self, rows: AttentionRows) -> np.ndarray:
        heads, text = len(rows.weights), rows.text
        if text.separators is None:
            return np.zeros((4, heads, 1))
        by_count, at_distance = _chances(text, rows.visible)
        columns = [
            rows.weights[:, :, text.separators].sum((1, 2)),
            (rows.counted * by_count).sum(1),
            (rows.weights.reshape(heads, -1) * at_distance).sum(1),
            rows.counted.sum(1),
        ]
        return np.stack(columns)[..., None]

    def count_text(self, text: Text) -> np.ndarray:
        return np.array([[float(text.separators is not None)]])

    def reduce(self, counts: np.ndarray, of_texts: np.ndarray) -> Reduced:
        values, chance, matched = (ratio(each, counts[3]) for each in counts[:3])
        return self.reduced(values, chance, matched, of_texts[0])

    def findings(self, one: Statistic, statistics: ProbeStatistics) -> list[Finding]:
        shown = " and ".join(f'"{each}"' for each in statistics.settings["separators"])
        text = f"{{where}}: {{value}} of attention among words rests on the separators {shown}"
        claim = "in the last layers attention rests on separators"
        return [self.finding("separators_last", claim, text, one, len(one.layers) - 1)]


def _chances(text: Text, visible: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of separators among the keys that rows see, (G, n), and at each signed distance, (G, n * n)."""
    return text.once(("separators", visible.shape[0], np.packbits(visible).tobytes()), lambda: _shares(text, visible))


def _shares(text: Text, visible: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    groups, length = visible.shape[:2]
    positions = np.arange(length)
    size = 2 * length - 1
    offset = (positions[:, None] - positions + length - 1).ravel()
    slots = (np.arange(groups)[:, None] * size + offset).ravel()
    separates = visible & text.separators
    available = np.bincount(slots, weights=visible.ravel(), minlength=groups * size)
    hits = np.bincount(slots, weights=separates.ravel(), minlength=groups * size)
    share = (hits / np.maximum(available, 1)).reshape(groups, size)
    return separates.sum(-1) / np.maximum(visible.sum(-1), 1), share[:, offset]
