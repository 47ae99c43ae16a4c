"""What comparing two models head by head found: tables to read and write, and a map to look at.

The JSON form, which :meth:`HeadComparison.to_json` writes, holds ``format`` (1) and the fields of
:class:`HeadComparison`; NaN is null.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from hf_attn_ext._util.files import atomic_write
from hf_attn_ext.probe.json_text import json_text, plain

FORMAT = 1
VERDICTS = {
    "kept": "more in common than nearness gives",
    "moved": "another head of the teacher's layer has more in common with it",
    "lost": "no more in common than nearness gives",
    "unknown": "no interval: too few texts",
}


@dataclasses.dataclass(frozen=True)
class HeadComparison:
    """How far every head of a converted model does what the teacher's head did; see :func:`.compare.compare`.

    Every ``..._interval`` has a last axis of 2: 95% bounds by a bootstrap over texts, NaN where all were drawn
    together.

    Attributes:
        layers, heads: the numbers of the axes, L and H.
        score: (L, H), ``(overlap - overlap_matched) / (1 - overlap_matched)``: 1 is the same high pairs, 0 what
            distances alone give; below 0 is less than that.
        overlap: (L, H), the share of the high pairs that both heads have.
        overlap_matched: (L, H), the same if the converted head's pairs were drawn at the same distances.
        overlap_by_count: the same if they were drawn from all pairs.
        correlation: (L, H), Spearman's, of all similarities, mean over texts; NaN for a head whose are all the same.
        correlation_matched: (L, H), if the converted head's similarities were shuffled among pairs of one distance.
        overlaps: (L, H, H), the overlap of each head of the teacher (rows) with each converted one (columns).
        best_other: (L, H), the other head of the teacher's layer with the largest overlap.
        margin: (L, H), the overlap less that of ``best_other``; in the interval, less the best other of each replicate.
        counts: texts, those skipped, tokens, pairs.
        settings: ``percent``, ``bootstrap``, ``seed``.
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
        """A key of :data:`VERDICTS`, by the intervals; ``layer`` and ``head`` are places on the axes."""
        low, high = self.score_interval[layer, head, 0], self.margin_interval[layer, head, 1]
        if np.isnan(low):
            return "unknown"
        if low <= 0:
            return "lost"
        return "moved" if high < 0 else "kept"

    def heads_with(self, verdict: str) -> list[tuple[int, int]]:
        """``(layer, head)`` of all heads with a verdict, worst score first.

        Example:
            >>> found.heads_with("lost")  # doctest: +SKIP
            [(3, 7)]
        """
        places = [place for place in np.ndindex(self.score.shape) if self.verdict(*place) == verdict]
        return [(self.layers[i], self.heads[j]) for i, j in sorted(places, key=lambda place: self.score[place])]

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary a head: what a data frame is made of."""
        found = []
        for i, j in np.ndindex(self.score.shape):
            row: dict[str, Any] = {"layer": self.layers[i], "head": self.heads[j], "verdict": self.verdict(i, j)}
            for name in ("score", "overlap", "correlation", "margin"):
                row[name] = float(getattr(self, name)[i, j])
                row[f"{name}_low"], row[f"{name}_high"] = map(float, getattr(self, f"{name}_interval")[i, j])
            row["overlap_matched"] = float(self.overlap_matched[i, j])
            row["overlap_by_count"] = self.overlap_by_count
            row["correlation_matched"] = float(self.correlation_matched[i, j])
            row["best_other"] = self.heads[int(self.best_other[i, j])]
            found.append(row)
        return found

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, **plain(vars(self))}

    def to_json(self, path: str | Path | None = None) -> str:
        """The JSON text; written to ``path``, beside and then renamed, where one is given."""
        return json_text(self.to_dict(), path)

    def figure(self, path: str | Path) -> None:
        """Write a PNG: the score of every head, with marks on those that are lost or moved.

        Raises:
            AttnExtError: the system refuses to write.
        """
        from .comparison_figure import draw_comparison

        with atomic_write(path) as beside:
            draw_comparison(self).save(beside, "png")
