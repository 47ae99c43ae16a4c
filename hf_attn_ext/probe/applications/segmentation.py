"""Text segmentation from context similarity and from the attention that separators draw.

That similarity falls outside a sentence in the last layers, that attention rests on separators there, and that this may
serve to segment texts, is from the source (2512.21956). It gives no method; what follows is ours: sentences' mean
outputs compared, the text cut where that is cheapest (:mod:`.boundaries`), the focus on separators as a second cue.
"""

from __future__ import annotations

import dataclasses
import itertools
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from hf_attn_ext.errors import AttnExtError, short, suggest
from hf_attn_ext.probe.options import whole

from .boundaries import block_similarities, depths, highest, least_scatter, scatter_costs, standardised
from .sentence_vectors import SENTENCE, SEPARATORS, SentenceVectors, sentence_vectors

CUES = ("similarity", "focus", "both")
SIMILARITIES = ("cosine", "dot")
METHODS = ("scatter", "depth")
# For MiniLM: the study `segmentation` chose them on addresses of the training years, the number of segments unknown.
THRESHOLDS = {"scatter": 1.4, "depth": 0.75, "focus": 1.5}
FOCUS_WEIGHT = 0.05
BLOCK = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Segmentation:
    """Where a text of n sentences is cut.

    Attributes:
        sentences: int64 (n, 2), where each sentence begins and where the next one does, in characters.
        boundaries: ascending numbers of the sentences, from 1 to n - 1, that begin a new segment.
        scores: float64 (n - 1,), what every candidate brings, the end of sentence 0 first. By scatter: how much a cut
            there lowers the scatter, in squared lengths of a sentence's vector, beyond its price, between the cuts
            beside it; above 0, a cut pays. By depth, and by focus alone: standard deviations above the mean.
        similarity: float64 (n - 1,), of the blocks left and right of each candidate, a cosine.
        focus: float64 (n - 1,), the attention that the separator before each candidate draws, mean over heads, 1 is
            equal attention; None where it was not read.
    """

    sentences: np.ndarray
    boundaries: tuple[int, ...]
    scores: np.ndarray
    similarity: np.ndarray
    focus: np.ndarray | None

    @property
    def offsets(self) -> list[int]:
        """The characters at which segments begin, without the first one's 0."""
        return self.sentences[list(self.boundaries), 0].tolist()

    def parts(self, text: str) -> list[str]:
        """The segments of the text that was cut; joined, they are the text."""
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
    """Divide a text into segments that are about different things; candidates are the ends of its sentences.

    Args:
        model: stock or converted, an encoder or a decoder, that the probe can capture.
        tokenizer: its fast tokenizer.
        text: of two sentences or more, of any length.
        segments: how many; None lets ``threshold`` decide.
        threshold: by scatter, what a cut must bring; by depth and by focus, standard deviations above the mean; None
            is what was best on training texts.
        cue: ``"similarity"``, ``"focus"`` (of the separators), ``"both"``.
        layers, heads: numbers from 0; None is the last two layers, all heads.
        window: ``"sentence"``, sentences are read one by one; or tokens of overlapping windows.
        similarity: ``"dot"`` products of mean outputs, as in the source; or their ``"cosine"``.
        method: ``"scatter"`` or ``"depth"``, see :mod:`.boundaries`.
        block: sentences on each side of a gap, for the depth and for :attr:`Segmentation.similarity`.
        focus_weight: of one standard deviation of the focus; a negative weight takes low focus for a boundary.
        separators, language, batch_size: see :func:`.sentence_vectors.sentence_vectors`.

    Raises:
        AttnExtError: an option that is not known, more segments than sentences, and what
            :func:`.sentence_vectors.sentence_vectors` raises.

    Example:
        >>> found = segment(model, tokenizer, text, segments=3)  # doctest: +SKIP
        >>> [part[:40] for part in found.parts(text)]
    """
    options = {"threshold": threshold, "cue": cue, "similarity": similarity, "method": method, "block": block}
    options["focus_weight"] = focus_weight
    _check(segments, **options)
    read = sentence_vectors(
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
    return segment_sentences(read, segments=segments, **options)


def segment_sentences(
    read: SentenceVectors,
    *,
    segments: int | None = None,
    threshold: float | None = None,
    cue: str = "similarity",
    similarity: str = "cosine",
    method: str = "scatter",
    block: int = BLOCK,
    focus_weight: float = FOCUS_WEIGHT,
) -> Segmentation:
    """:func:`segment` for a text that was read by :func:`.sentence_vectors.sentence_vectors`; arguments as there."""
    _check(segments, threshold, cue, similarity, method, block, focus_weight)
    if cue != "similarity" and read.focus is None:
        raise AttnExtError(f"cue={cue!r} needs the focus, which was not read; use sentence_vectors(..., focus=True)")
    similarities = sentence_similarities(read, similarity)
    focus = None if read.focus is None else read.focus.mean((0, 1))[:-1]
    boundaries, scores = cut(
        None if cue == "focus" else similarities,
        None if cue == "similarity" else focus_weight * standardised(focus),
        segments=segments,
        threshold=threshold,
        method=method,
        block=block,
    )
    return Segmentation(read.spans, tuple(boundaries), scores, block_similarities(similarities, block), focus)


def sentence_similarities(read: SentenceVectors, similarity: str = "cosine") -> np.ndarray:
    """(n, n): context similarity of the sentences, mean over heads and layers, diagonal included.

    Each head's vectors are taken relative to their mean over the text's sentences: what they all share says nothing
    (ours). ``"cosine"`` brings each vector to length 1; ``"dot"`` each head's vectors to mean squared length 1.
    """
    total, heads = 0.0, 0
    for vectors in read.vectors:
        vectors = vectors - vectors.mean(1, keepdims=True)
        squares = (vectors**2).sum(-1, keepdims=True)
        scale = squares if similarity == "cosine" else squares.mean(1, keepdims=True)
        vectors = vectors / np.sqrt(np.where(scale > 0, scale, 1.0))
        total, heads = total + np.einsum("hid,hjd->ij", vectors, vectors), heads + len(vectors)
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
    """Cut n sentences by any similarities between them, by a bonus for every gap, or by both.

    Args:
        similarities: (n, n), dot products of the sentences' vectors, of length about 1; None leaves them out.
        bonus: (n - 1,), added to what a cut brings; None is none.
        segments, threshold, method, block: as of :func:`segment`.

    Returns:
        The sentences that begin segments, ascending, and (n - 1,) what every gap brings.

    Raises:
        AttnExtError: more segments than sentences.

    Example:
        >>> cut(np.kron(np.eye(2), np.ones((3, 3))), segments=2)[0]
        [3]
    """
    count = len(similarities) if similarities is not None else len(bonus) + 1
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


def _check(
    segments: int | None,
    threshold: float | None,
    cue: str,
    similarity: str,
    method: str,
    block: int,
    focus_weight: float,
) -> None:
    for name, value, known in (
        ("cue", cue, CUES),
        ("similarity", similarity, SIMILARITIES),
        ("method", method, METHODS),
    ):
        if value not in known:
            raise AttnExtError(f"{name} is {short(value)};{suggest(value, known)} it must be one of {', '.join(known)}")
    if segments is not None:
        whole(segments, 1, "segments")
    whole(block, 1, "block")
    for name, value in (("threshold", threshold), ("focus_weight", focus_weight)):
        number = isinstance(value, numbers.Real) and not isinstance(value, bool) and np.isfinite(value)
        if not number and not (name == "threshold" and value is None):
            raise AttnExtError(f"{name} must be a finite number, got {short(value)}")
