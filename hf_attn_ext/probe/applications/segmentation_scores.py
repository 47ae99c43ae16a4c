"""Quality of a segmentation against the true one: Pk, WindowDiff, precision, recall and F1."""

from __future__ import annotations

from collections.abc import Iterable

from hf_attn_ext.probe.options import whole


def segmentation_scores(predicted: Iterable[int], true: Iterable[int], sentences: int) -> dict[str, float]:
    """Compare predicted boundaries with the true ones.

    Pk (Beeferman et al. 1999) is the share of pairs of sentences at distance k that are in one segment in one of the
    two segmentations and not in the other. WindowDiff (Pevzner and Hearst 2002) is the share of windows of k sentences
    with different numbers of boundaries. Here k is half the mean length of the true segments. Lower is better for both.
    F1, precision and recall count exact matches.

    Args:
        predicted, true: the indices of the sentences that begin a segment, from 1 to ``sentences - 1``.
        sentences: the number of sentences, at least 2.

    Returns:
        ``pk``, ``windowdiff``, ``f1``, ``precision`` and ``recall``.

    Raises:
        AttnExtError: a boundary is out of range.

    Example:
        >>> segmentation_scores([3], [2], 4)["pk"]
        0.6666666666666666

    Source:
        nltk.metrics.segmentation for Pk and WindowDiff.
    """
    from nltk.metrics.segmentation import pk, windowdiff

    sentences = whole(sentences, 2, "sentences")
    chosen, expected = (
        {whole(boundary, 1, f"every boundary in {name}", sentences - 1) for boundary in boundaries}
        for name, boundaries in (("predicted", predicted), ("true", true))
    )
    strings = ["".join("01"[gap in gaps] for gap in range(1, sentences)) for gaps in (expected, chosen)]
    k = max(1, round(sentences / (2 * (len(expected) + 1))))
    hits = len(chosen & expected)
    precision = hits / len(chosen) if chosen else float(not expected)
    recall = hits / len(expected) if expected else float(not chosen)
    return {
        "pk": pk(*strings, k=k),
        "windowdiff": windowdiff(*strings, k),
        "f1": 2 * precision * recall / (precision + recall) if precision + recall else 0.0,
        "precision": precision,
        "recall": recall,
    }
