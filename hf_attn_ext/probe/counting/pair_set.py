"""Pairs of one text's tokens, per head, and what statistics read from them; each is computed once."""

from __future__ import annotations

import functools

import numpy as np

from .texts import DISTANCE_BINS, Text, distance_bins, starts_at


class PairSet:
    """Pairs i < j of one text: the high pairs of each head, or pairs that chance draws.

    ``i`` and ``j`` are token positions (H, k), or (k,) without an axis of heads. ``index`` (H, k) numbers the pairs
    among ``text.pairs``, if that is known.
    """

    def __init__(self, text: Text, i: np.ndarray, j: np.ndarray, index: np.ndarray | None = None) -> None:
        self.text, self.i, self.j, self.index = text, i, j, index

    @classmethod
    def at(cls, text: Text, index: np.ndarray) -> PairSet:
        """Return the pairs that ``index`` (H, k) selects, in the same order."""
        first, second, _ = text.pairs
        return cls(text, first[index], second[index], index)

    @classmethod
    def every(cls, text: Text) -> PairSet:
        """Return all n(n-1)/2 pairs of the text, (k,)."""
        return text.once("every pair", lambda: cls(text, *text.pairs[:2]))

    @classmethod
    def drawn(cls, text: Text) -> PairSet:
        """Return pairs drawn at random, as many per head as are high: the null model of a text."""
        return text.once("drawn pairs", lambda: cls.at(text, text.draws))

    def of_heads(self, heads: slice) -> PairSet:
        """Return the pairs of some heads."""
        index = None if self.index is None else self.index[heads]
        return PairSet(self.text, self.i[heads], self.j[heads], index)

    @functools.cached_property
    def matched(self) -> PairSet:
        """Pairs drawn at the same distances as these, (H, k)."""
        start = starts_at(self.distance, self.text)
        return PairSet(self.text, start, start + self.distance)

    @functools.cached_property
    def distance(self) -> np.ndarray:
        """``j - i`` in tokens, int64."""
        return (self.j - self.i).astype(np.int64)

    @functools.cached_property
    def same_token(self) -> np.ndarray:
        """Bool: both tokens have the same id."""
        return self.text.types[self.i] == self.text.types[self.j]

    @functools.cached_property
    def same_sentence(self) -> np.ndarray:
        """Bool: both tokens are in one sentence; False where sentences are not known."""
        sentences = self.text.sentences
        return np.zeros(self.i.shape, bool) if sentences is None else sentences[self.i] == sentences[self.j]

    def up_to(self, values: np.ndarray) -> np.ndarray:
        """Sum values (H, k) over the pairs that are high at each percentage: (H, P)."""
        return values.astype(np.float32) @ _up_to(self.text.counts)

    @functools.cached_property
    def by_distance(self) -> np.ndarray:
        """(P, H, bins) numbers of pairs in each of :data:`.DISTANCE_BINS`."""
        return counted(distance_bins(self.distance), len(DISTANCE_BINS), self.text.counts)

    @functools.cached_property
    def most_common(self) -> tuple[np.ndarray, np.ndarray]:
        """The token that occurs most often in each head's pairs, and its number of occurrences: (P, H) and (P, H).

        Tokens are given by their index among the text's distinct ids. Ties go to the token that comes first in the
        text.
        """
        types = self.text.types
        kinds = int(types.max()) + 1
        ends = counted(types[self.i], kinds, self.text.counts) + counted(types[self.j], kinds, self.text.counts)
        return ends.argmax(2), ends.max(2)


def counted(numbers: np.ndarray, kinds: int, counts: tuple[int, ...]) -> np.ndarray:
    """(P, H, kinds): how often each number below ``kinds`` occurs in the first ``counts`` columns of (H, k)."""
    heads, levels = len(numbers), len(counts)
    offset = (_steps(counts) * heads + np.arange(heads)[:, None]) * kinds
    occurrences = np.bincount((numbers + offset).ravel(), minlength=levels * heads * kinds)
    return occurrences.reshape(levels, heads, kinds).cumsum(0)


@functools.lru_cache(maxsize=16)
def _steps(counts: tuple[int, ...]) -> np.ndarray:
    """(k,): the smallest percentage that each column of a selection belongs to."""
    return np.repeat(np.arange(len(counts)), np.diff((0, *counts)))


@functools.lru_cache(maxsize=16)
def _up_to(counts: tuple[int, ...]) -> np.ndarray:
    """(k, P): which columns of a selection each percentage takes."""
    return (_steps(counts)[:, None] <= np.arange(len(counts))).astype(np.float32)
