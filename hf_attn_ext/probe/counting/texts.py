"""One text of a forward pass: its tokens that count, its pairs, and the random draws of its null model."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from .similarity import Pairs, high_counts, pairs_of

# Lower bounds of the bins of distances j - i in tokens, half-octaves.
DISTANCE_BINS = (1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 2049, 4097, 8193)

T = TypeVar("T")

_BIN_OF = np.searchsorted(np.array(DISTANCE_BINS), np.arange(DISTANCE_BINS[-1] + 1), side="right") - 1

# Heads share shuffles of a text, each with its own shift; fewer where they would take more than 2 MiB.
SHUFFLES = 4
SHUFFLE_ENTRIES = 2**20


@dataclasses.dataclass
class Text:
    """The n tokens of one text that are neither padding nor special, and their pairs i < j.

    Attributes:
        row: its row in the batch.
        positions: (n,) positions of the tokens in the row.
        length: n.
        pairs: :func:`.similarity.pairs_of` n.
        types: (n,) number of the token's id among the text's distinct ids, in order of appearance.
        sentences: (n,) sentence numbers, or None where they are not known.
        separators: (n,) bool, or None where it is not known which tokens separate.
        special_positions: positions of the special tokens in the row.
        counts: how many pairs are high, for each percentage.
        key: 64 bits that depend on the token ids and the seed alone.
        weights: (R + 1,), 1 and then the text's weight in each bootstrap replicate.
        draws: (H, k) numbers of randomly drawn pairs, per head: all different, in random order.
        shuffles: see :func:`shuffled_starts`.
        shifts: (H, n) where each head starts in its shuffle, at each distance.
    """

    row: int
    positions: np.ndarray
    length: int
    pairs: Pairs
    types: np.ndarray
    sentences: np.ndarray | None
    separators: np.ndarray | None
    special_positions: np.ndarray
    counts: tuple[int, ...]
    key: int
    weights: np.ndarray
    draws: np.ndarray
    shuffles: np.ndarray
    shifts: np.ndarray
    _kept: dict[Any, Any] = dataclasses.field(default_factory=dict, repr=False)

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """Return ``make()``, computed for this text and key the first time only."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def forget(self) -> None:
        """Drop what :meth:`once` keeps. It refers to the text, so that its memory would wait for a collection."""
        self._kept.clear()

    def in_sample(self, share: float) -> bool:
        """Return whether the text is in a sample of that share; it depends on the tokens and the seed alone."""
        return self.key < share * 2.0**64


def make_text(
    row: int,
    ids: np.ndarray,
    positions: np.ndarray,
    special_positions: np.ndarray,
    sentences: np.ndarray | None,
    separators: np.ndarray | None,
    percents: tuple[float, ...],
    replicates: int,
    heads: int,
    seed: int,
    document: str | None = None,
) -> Text:
    """Prepare one text from the n ``ids`` at its ``positions``; the other arrays are as in :class:`Text`.

    ``seed`` is that of all draws. Texts of one ``document`` share their bootstrap weights; None gives a text its own.
    """
    length = len(ids)
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    types = np.argsort(np.argsort(first))[inverse]
    key = text_key(ids, seed)
    # the draws depend on the text and the seed, never on the batch or the process
    generator = np.random.Generator(np.random.Philox(key=[key, seed % 2**64]))
    drawn = generator.poisson(1.0, replicates)  # also with a document, so that a document changes no other draw
    if document is not None:
        drawn = _document_weights(document, replicates, seed)
    weights = np.concatenate([[1.0], drawn])
    pairs = pairs_of(length)
    counts = tuple(high_counts(len(pairs[0]), percents))
    draws = np.stack([generator.choice(len(pairs[0]), counts[-1], replace=False) for _ in range(heads)])
    shuffles = shuffled_starts(length, heads, generator)
    shifts = generator.integers(0, length - np.arange(length), (heads, length))
    return Text(
        row,
        positions,
        length,
        pairs,
        types,
        None if sentences is None else sentences.astype(np.int32),
        separators,
        special_positions,
        counts,
        key,
        weights,
        draws,
        shuffles,
        shifts,
    )


def text_key(ids: np.ndarray, seed: int) -> int:
    """Return 64 bits that depend on the token ids (n,) and the seed alone."""
    digest = hashlib.blake2b(ids.astype("<i8").tobytes(), digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest, "little")


@functools.lru_cache(maxsize=64)
def _document_weights(document: str, replicates: int, seed: int) -> np.ndarray:
    """(R,): weights that depend on the document's name and the seed alone."""
    key = hashlib.blake2b(document.encode("utf-8", "surrogatepass"), digest_size=8, key=f"document {seed}".encode())
    generator = np.random.Generator(np.random.Philox(key=[int.from_bytes(key.digest(), "little"), seed % 2**64]))
    return generator.poisson(1.0, replicates)


def shuffled_starts(length: int, heads: int, generator: np.random.Generator) -> np.ndarray:
    """Return (S, n(n-1)/2): for each distance d from 1 on, the n - d positions where a pair may start, shuffled.

    A head that reads one of the S shuffles from any shift on draws without replacement, exactly. Heads of one shuffle
    are not quite independent, which changes no mean.
    """
    size = length * (length - 1) // 2
    shuffles = max(1, min(heads, SHUFFLES, SHUFFLE_ENTRIES // size))
    starts = np.empty((shuffles, size), dtype=np.int16 if length < 2**15 else np.int32)
    end = 0
    for count in range(length - 1, 0, -1):
        of_distance = starts[:, end : end + count]
        of_distance[:] = np.arange(count)
        generator.permuted(of_distance, axis=1, out=of_distance)
        end += count
    return starts


def starts_at(distance: np.ndarray, text: Text) -> np.ndarray:
    """Return starts (H, k) of random pairs at the given distances (H, k), no pair twice per head."""
    heads, count = distance.shape
    row = np.arange(heads)[:, None]
    # rank: how many earlier pairs of the head have the same distance, found by sorting distances with their columns
    packed = distance << 32 | np.arange(count)
    packed.sort(axis=1)
    ordered = packed >> 32
    first = np.zeros(distance.shape, dtype=np.int64)
    np.multiply(ordered[:, 1:] != ordered[:, :-1], np.arange(1, count), out=first[:, 1:])
    rank = np.empty(distance.size, dtype=np.int64)
    rank[(packed & 0xFFFFFFFF) + row * count] = np.arange(count) - np.maximum.accumulate(first, axis=1)
    entry = (rank.reshape(heads, count) + text.shifts.take(distance + row * text.length)) % (text.length - distance)
    before = (distance - 1) * (2 * text.length - distance) // 2
    return text.shuffles.take(before + entry + row % len(text.shuffles) * text.shuffles.shape[1])


def distance_bins(distance: np.ndarray) -> np.ndarray:
    """Return the number of each distance's bin in :data:`DISTANCE_BINS`."""
    return _BIN_OF[np.minimum(distance, DISTANCE_BINS[-1])]


def distance_shares(text: Text) -> np.ndarray:
    """Return the share of all pairs of the text in each bin of distances, (bins,)."""
    gaps = np.arange(1, text.length)
    pairs = np.bincount(distance_bins(gaps), weights=text.length - gaps, minlength=len(DISTANCE_BINS))
    return pairs / len(text.pairs[0])
