"""How good a segmentation is: Pk, WindowDiff, and boundaries found."""

from __future__ import annotations

from collections.abc import Iterable

from hf_attn_ext.errors import AttnExtError, short
from hf_attn_ext.probe.options import whole


def segmentation_scores(found: Iterable[int], true: Iterable[int], sentences: int) -> dict[str, float]:
    """Compare boundaries with the true ones.

    Pk (Beeferman et al. 1999) is the share of pairs of sentences, k apart, that one segmentation has in one segment and
    the other has not; WindowDiff (Pevzner and Hearst 2002) that of windows with another number of boundaries. k is half
    the mean length of the true segments. For both less is better. F1, precision and recall count exact positions.

    Args:
        found, true: the sentences, from 1 to ``sentences - 1``, that begin a new segment.
        sentences: how many there are, two or more.

    Returns:
        ``pk``, ``windowdiff``, ``f1``, ``precision``, ``recall``.

    Raises:
        AttnExtError: a boundary that is no sentence's beginning.

    Example:
        >>> segmentation_scores([3], [2], 4)["pk"]
        0.6666666666666666
    """
    from nltk.metrics.segmentation import pk, windowdiff

    sentences = whole(sentences, 2, "sentences")
    found, true = _checked(found, sentences, "found"), _checked(true, sentences, "true")
    strings = ["".join("01"[gap in chosen] for gap in range(1, sentences)) for chosen in (true, found)]
    k = max(1, round(sentences / (2 * (len(true) + 1))))
    hits = len(found & true)
    precision = hits / len(found) if found else float(not true)
    recall = hits / len(true) if true else float(not found)
    return {
        "pk": pk(*strings, k=k),
        "windowdiff": windowdiff(*strings, k),
        "f1": 2 * precision * recall / (precision + recall) if precision + recall else 0.0,
        "precision": precision,
        "recall": recall,
    }


def _checked(boundaries: Iterable[int], sentences: int, name: str) -> set[int]:
    boundaries = list(boundaries)
    for one in boundaries:
        if not 1 <= one < sentences:
            raise AttnExtError(
                f"{name} has boundary {short(one)}; of {sentences} sentences, 1 to {sentences - 1} may be one"
            )
    return {int(one) for one in boundaries}
