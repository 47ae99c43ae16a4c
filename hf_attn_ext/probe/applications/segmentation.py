"""Text segmentation by context similarity and by the attention to separators.

arXiv 2512.21956 observes in the last layers that similarity falls across sentences and that attention concentrates on
separators, and suggests both for segmentation without a method. The method is ours: compare the sentences' mean outputs
and choose boundaries by :mod:`.boundaries`, with the attention to separators (the focus) as a second cue.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.probe.options import finite, one_of, whole

from .boundaries import block_similarities, depths, highest, least_scatter, scatter_costs, standardised
from .sentence_vectors import SENTENCE, SEPARATORS, SentenceVectors, sentence_vectors

CUES = ("similarity", "focus", "both")
SIMILARITIES = ("cosine", "dot")
METHODS = ("scatter", "depth")
# Chosen for MiniLM by the study `segmentation`, on addresses of the training years, without the number of segments.
THRESHOLDS = {"scatter": 1.4, "depth": 0.75, "focus": 1.5}
FOCUS_WEIGHT = 0.05
BLOCK = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Segmentation:
    """The segments of a text with n sentences; the result of :func:`segment`.

    Attributes:
        sentences: int64 (n, 2), the first character of each sentence and of the next one.
        boundaries: the indices of the sentences that begin a segment, from 1 to n - 1, ascending.
        scores: float64 (n - 1,), the score of a boundary after each sentence but the last. For the method scatter, how
            much the boundary lowers the scatter, minus its price, given the boundaries next to it; above 0 it pays.
            For the method depth and the cue focus, standard deviations above the mean.
        similarity: float64 (n - 1,), the cosine of the blocks on both sides of each candidate.
        focus: float64 (n - 1,), the attention to the separator before each candidate, mean over heads, 1 for equal
            attention; None if it was not read.
    """

    sentences: np.ndarray
    boundaries: tuple[int, ...]
    scores: np.ndarray
    similarity: np.ndarray
    focus: np.ndarray | None

    @property
    def offsets(self) -> list[int]:
        """The first character of each segment, without the first segment's 0."""
        offsets: list[int] = self.sentences[list(self.boundaries), 0].tolist()
        return offsets

    def parts(self, text: str) -> list[str]:
        """Return the segments of the text, which joined are the text again.

        Args:
            text: the text that was segmented.
        """
        edges = [0, *self.offsets, len(text)]
        return [text[first:end] for first, end in itertools.pairwise(edges)]


def segment(
    model: nn.Module,
    tokenizer: Any,
    text: str,
    *,
    segments: int | None = None,
    threshold: float | None = None,
    cue: str = "similarity",
    layers: Sequence[int | str] | int | str | None = None,
    heads: Sequence[int] | int | None = None,
    window: int | str = SENTENCE,
    similarity: str = "cosine",
    method: str = "scatter",
    block: int = BLOCK,
    focus_weight: float = FOCUS_WEIGHT,
    separators: Sequence[str] = SEPARATORS,
    language: str = "en",
    batch_size: int = 8,
) -> Segmentation:
    """Divide a text into segments about different topics; every boundary is at the end of a sentence.

    Args:
        model: an encoder or a decoder that the probe can capture, converted or not.
        tokenizer: its fast tokenizer.
        text: two sentences or more, of any length.
        segments: the number of segments; None to decide by ``threshold``.
        threshold: the least gain of a boundary for the method scatter; standard deviations above the mean for the
            method depth and the cue focus. None for the value that was best on training texts.
        cue: ``"similarity"``, ``"focus"`` (attention to separators) or ``"both"``.
        layers: layer numbers or patterns of module names; None for the last two layers.
        heads: head numbers; None for all heads.
        window: ``"sentence"`` to read every sentence by itself, or the size of overlapping windows in tokens.
        similarity: ``"dot"`` for dot products of mean outputs, as in the source, or ``"cosine"``.
        method: ``"scatter"`` or ``"depth"``, see :mod:`.boundaries`.
        block: the number of sentences on each side of a gap, for the depth and for :attr:`Segmentation.similarity`.
        focus_weight: the weight of one standard deviation of the focus. With a negative weight, low focus marks a
            boundary.
        separators, language, batch_size: see :func:`.sentence_vectors.sentence_vectors`.

    Returns:
        The boundaries with the scores of all candidates.

    Raises:
        AttnExtError: an option is unknown, there are more segments than sentences, or
            :func:`.sentence_vectors.sentence_vectors` raises.

    Example:
        >>> segments = segment(model, tokenizer, text, segments=3)  # doctest: +SKIP
        >>> [part[:40] for part in segments.parts(text)]  # doctest: +SKIP

    Source:
        Ours; the observations are from arXiv 2512.21956.
    """
    options: dict[str, Any] = {"threshold": threshold, "cue": cue, "similarity": similarity, "method": method}
    options |= {"segments": segments, "block": block, "focus_weight": focus_weight}
    _check(**options)
    vectors = sentence_vectors(
        model,
        tokenizer,
        text,
        layers=layers,
        heads=heads,
        window=window,
        focus=cue != "similarity",
        separators=separators,
        language=language,
        batch_size=batch_size,
    )
    return segment_sentences(vectors, **options)


def segment_sentences(
    vectors: SentenceVectors,
    *,
    segments: int | None = None,
    threshold: float | None = None,
    cue: str = "similarity",
    similarity: str = "cosine",
    method: str = "scatter",
    block: int = BLOCK,
    focus_weight: float = FOCUS_WEIGHT,
) -> Segmentation:
    """Divide a text whose sentence vectors were computed before.

    Args:
        vectors: from :func:`.sentence_vectors.sentence_vectors`.
        segments, threshold, cue, similarity, method, block, focus_weight: see :func:`segment`.

    Returns:
        The boundaries with the scores of all candidates.

    Raises:
        AttnExtError: an option is unknown, there are more segments than sentences, or the cue needs the focus and
            ``vectors`` has none.

    Example:
        >>> vectors = sentence_vectors(model, tokenizer, text)  # doctest: +SKIP
        >>> segment_sentences(vectors, segments=3).boundaries  # doctest: +SKIP
        (4, 9)
    """
    _check(segments, threshold, block, focus_weight, cue=cue, similarity=similarity, method=method)
    similarities = sentence_similarities(vectors, similarity)
    focus = bonus = None
    if vectors.focus is not None:
        focus = vectors.focus.mean((0, 1))[:-1]
    if cue != "similarity":
        if focus is None:
            raise AttnExtError(f"cue={cue!r} needs the focus; call sentence_vectors with focus=True")
        bonus = focus_weight * standardised(focus)
    boundaries, scores = cut(
        None if cue == "focus" else similarities,
        bonus,
        segments=segments,
        threshold=threshold,
        method=method,
        block=block,
    )
    return Segmentation(vectors.spans, tuple(boundaries), scores, block_similarities(similarities, block), focus)


def sentence_similarities(vectors: SentenceVectors, similarity: str = "cosine") -> np.ndarray:
    """Return the context similarity of all pairs of sentences, (n, n), averaged over heads and layers.

    Each head's mean vector over the text is subtracted first, because it does not distinguish sentences (ours).
    ``"cosine"`` scales each vector to length 1; ``"dot"`` scales each head's vectors to mean squared length 1.
    """
    total, heads = np.zeros((len(vectors.tokens), len(vectors.tokens))), 0
    for of_layer in vectors.vectors:
        centred = of_layer - of_layer.mean(1, keepdims=True)
        squares = (centred**2).sum(-1, keepdims=True)
        scale = squares if similarity == "cosine" else squares.mean(1, keepdims=True)
        scaled = centred / np.sqrt(np.where(scale > 0, scale, 1.0))
        total, heads = total + np.einsum("hid,hjd->ij", scaled, scaled), heads + len(scaled)
    return total / heads


def cut(
    similarities: np.ndarray | None,
    bonus: np.ndarray | None = None,
    *,
    segments: int | None = None,
    threshold: float | None = None,
    method: str = "scatter",
    block: int = BLOCK,
) -> tuple[list[int], np.ndarray]:
    """Divide n sentences by similarities (n, n) between them, by a bonus (n - 1,) for every gap, or by both.

    Returns the indices of the sentences that begin a segment, ascending, and the scores of all gaps (n - 1,).

    Example:
        >>> cut(np.kron(np.eye(2), np.ones((3, 3))), segments=2)[0]
        [3]
    """
    if similarities is not None:
        count = len(similarities)
    elif bonus is not None:
        count = len(bonus) + 1
    else:
        raise AttnExtError("there are neither similarities nor a bonus; pass at least one")
    if segments is not None and segments > count:
        raise AttnExtError(f"segments is {segments}, but the text has {count} sentences; give at most {count}")
    if threshold is None:
        threshold = THRESHOLDS["focus" if similarities is None else method]
    if similarities is not None and method == "scatter":
        price = np.zeros(count - 1) if bonus is None else -bonus
        price = price + (0.0 if segments is not None else threshold)
        return least_scatter(scatter_costs(similarities), price, segments)
    scores = np.zeros(count - 1) if bonus is None else bonus
    if similarities is not None:
        scores = scores + standardised(depths(block_similarities(similarities, block)))
    scores = standardised(scores)
    return highest(scores, segments, threshold), scores


def _check(segments: int | None, threshold: float | None, block: int, focus_weight: float, **words: str) -> None:
    """Check the options of :func:`segment`."""
    for name, known in (("cue", CUES), ("similarity", SIMILARITIES), ("method", METHODS)):
        one_of(words[name], known, name)
    if segments is not None:
        whole(segments, 1, "segments")
    whole(block, 1, "block")
    if threshold is not None:
        finite(threshold, "threshold")
    finite(focus_weight, "focus_weight")
