"""The map of a comparison: every head's score, and marks where its function is lost or found elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hf_attn_ext.probe.report.figures import OPTIONS, Drawing, map_figure

if TYPE_CHECKING:
    from .comparison import HeadComparison


def draw_comparison(comparison: HeadComparison) -> Drawing:
    """Layer x head, coloured from 0 (what distances alone give) to 1 (the same pairs).

    Example:
        >>> draw_comparison(found).save("heads.png", "png")  # doctest: +SKIP
    """
    import matplotlib
    from matplotlib.colors import Normalize

    with matplotlib.rc_context(OPTIONS):
        figure, axis = map_figure(
            np.clip(comparison.score, 0.0, 1.0),
            comparison.layers,
            comparison.heads,
            Normalize(0.0, 1.0),
            "RdYlGn",
            "score",
        )
        found = [
            [comparison.verdict(i, j) for j in range(len(comparison.heads))] for i in range(len(comparison.layers))
        ]
        for verdict, marker in (("lost", "x"), ("moved", "D")):
            y, x = np.nonzero(np.array(found) == verdict)
            face = {"facecolor": "none", "edgecolor": "black"} if marker == "D" else {"color": "black"}
            axis.scatter(x, y, s=20, marker=marker, linewidth=1.0, **face)
        percent, texts = comparison.settings["percent"], comparison.counts["texts"]
        axis.set_title(
            f"kept of each head's top {percent:g}% pairs, {texts} texts\n"
            "x: no more than nearness gives, diamond: another head fits better",
            fontsize=8,
        )
    return Drawing("comparison", "map", "which heads kept their function", figure)
