"""Figure of a comparison: every head's score, with marks on the heads that are lost or moved."""

from __future__ import annotations

import numpy as np

from hf_attn_ext.probe.report.figures import OPTIONS, Drawing, map_figure


def draw_comparison(
    scores: np.ndarray, verdicts: np.ndarray, layers: list[int], heads: list[int], percent: float, texts: int
) -> Drawing:
    """Draw the scores (L, H), coloured from 0 to 1; a cross marks the verdict ``"lost"``, a diamond ``"moved"``."""
    import matplotlib
    from matplotlib.colors import Normalize

    with matplotlib.rc_context(OPTIONS):
        figure, axis = map_figure(np.clip(scores, 0.0, 1.0), layers, heads, Normalize(0.0, 1.0), "RdYlGn", "score")
        for verdict, marker in (("lost", "x"), ("moved", "D")):
            y, x = np.nonzero(verdicts == verdict)
            face = {"facecolor": "none", "edgecolor": "black"} if marker == "D" else {"color": "black"}
            axis.scatter(x, y, s=20, marker=marker, linewidth=1.0, **face)
        axis.set_title(
            f"share of each head's top {percent:g}% pairs that is kept, {texts} texts\n"
            "cross: no more than at equal distances, diamond: another head fits better",
            fontsize=8,
        )
    return Drawing("comparison", "map", "which heads kept their function", figure)
