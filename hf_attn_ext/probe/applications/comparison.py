"""Result of a comparison of two models: scores, intervals and a verdict per head, with tables, JSON and a figure."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from hf_attn_ext._util.files import atomic_write
from hf_attn_ext.probe.json_text import JsonResult

from .comparison_figure import draw_comparison

VERDICTS = {
    "kept": "more pairs in common than equal distances give",
    "moved": "another head of the teacher's layer has more pairs in common with it",
    "lost": "no more pairs in common than equal distances give",
    "unknown": "no interval, because there are too few texts",
}


@dataclasses.dataclass(frozen=True)
class HeadComparison(JsonResult):
    """Agreement between each head of a converted model and of its teacher; the result of :func:`.compare.compare`.

    The last axis of every ``..._interval`` has size 2: 95% bounds by a bootstrap over texts, NaN if all texts were
    drawn together.

    Attributes:
        layers, heads: the numbers on the axes, L and H.
        score: (L, H), ``(overlap - overlap_matched) / (1 - overlap_matched)``: 1 for the same high pairs, 0 for what
            distances alone give, below 0 for less than that.
        overlap: (L, H), the share of high pairs that both heads have.
        overlap_matched: (L, H), the overlap if the converted head's pairs were drawn at the same distances.
        overlap_by_count: the overlap if they were drawn from all pairs.
        correlation: (L, H), Spearman's rank correlation of all similarities, mean over texts; NaN for a head whose
            similarities are all equal.
        correlation_matched: (L, H), the correlation if the converted head's similarities were shuffled among pairs of
            equal distance.
        overlaps: (L, H, H), the overlap of each head of the teacher (rows) with each converted head (columns).
        best_other: (L, H), the index of the other teacher head of the layer with the largest overlap.
        margin: (L, H), the overlap minus that of ``best_other``. The interval uses the best other head of each
            replicate.
        counts: the numbers of texts, skipped texts, tokens and pairs.
        settings: ``percent``, ``bootstrap`` and ``seed``.
    """

    layers: list[int]
    heads: list[int]
    score: np.ndarray
    score_interval: np.ndarray
    overlap: np.ndarray
    overlap_interval: np.ndarray
    overlap_matched: np.ndarray
    overlap_by_count: float
    correlation: np.ndarray
    correlation_interval: np.ndarray
    correlation_matched: np.ndarray
    overlaps: np.ndarray
    best_other: np.ndarray
    margin: np.ndarray
    margin_interval: np.ndarray
    counts: dict[str, int]
    settings: dict[str, Any]

    def verdict(self, layer: int, head: int) -> str:
        """Return the verdict on a head, a key of :data:`VERDICTS`, from the intervals.

        Args:
            layer, head: indices on the axes of ``score``, not layer and head numbers.
        """
        low, high = self.score_interval[layer, head, 0], self.margin_interval[layer, head, 1]
        if np.isnan(low):
            return "unknown"
        if low <= 0:
            return "lost"
        return "moved" if high < 0 else "kept"

    def heads_with(self, verdict: str) -> list[tuple[int, int]]:
        """Return the ``(layer, head)`` numbers of all heads with a verdict, lowest score first.

        Example:
            >>> comparison.heads_with("lost")  # doctest: +SKIP
            [(3, 7)]
        """
        indices = [index for index in np.ndindex(self.score.shape) if self.verdict(*index) == verdict]
        return [(self.layers[i], self.heads[j]) for i, j in sorted(indices, key=lambda index: self.score[index])]

    def rows(self) -> list[dict[str, Any]]:
        """Return one dictionary per head, ready for a data frame."""
        rows = []
        for i, j in np.ndindex(self.score.shape):
            row: dict[str, Any] = {"layer": self.layers[i], "head": self.heads[j], "verdict": self.verdict(i, j)}
            for name in ("score", "overlap", "correlation", "margin"):
                row[name] = float(getattr(self, name)[i, j])
                row[f"{name}_low"], row[f"{name}_high"] = map(float, getattr(self, f"{name}_interval")[i, j])
            row["overlap_matched"] = float(self.overlap_matched[i, j])
            row["overlap_by_count"] = self.overlap_by_count
            row["correlation_matched"] = float(self.correlation_matched[i, j])
            row["best_other"] = self.heads[int(self.best_other[i, j])]
            rows.append(row)
        return rows

    def figure(self, path: str | Path) -> None:
        """Write a PNG file: the score of every head, with marks on the heads that are lost or moved.

        Raises:
            AttnExtError: the file cannot be written.

        Example:
            >>> comparison.figure("heads.png")  # doctest: +SKIP
        """
        verdicts = np.array([self.verdict(*index) for index in np.ndindex(self.score.shape)]).reshape(self.score.shape)
        drawing = draw_comparison(
            self.score, verdicts, self.layers, self.heads, self.settings["percent"], self.counts["texts"]
        )
        with atomic_write(path) as temporary:
            drawing.save(temporary, "png")
