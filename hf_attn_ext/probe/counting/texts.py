"""One text of a forward pass, as the statistics see it: its real tokens, its pairs, and what chance would give."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from .similarity import Pairs, high_counts, pairs_of

# Half-octaves of the distance |i - j| in tokens: the lower bounds of the bins.
DISTANCE_BINS = (1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65, 97, 129, 193, 257, 385, 513, 769, 1025, 2049, 4097, 8193)

T = TypeVar("T")

_BIN_OF = np.searchsorted(np.array(DISTANCE_BINS), np.arange(DISTANCE_BINS[-1] + 1), side="right") - 1

# Shuffles of a text that heads share, each beginning elsewhere; fewer where they would take more than 2 MiB.
SHUFFLES = 4
SHUFFLE_ENTRIES = 2**20


@dataclasses.dataclass
class Text:
    """The real tokens of one text that are not special, n of them, and their pairs i < j.

    Attributes:
        row: its place in the batch.
        places: (n,) where its tokens stand in the batch.
        length: n.
        pairs: :func:`.similarity.pairs_of` n.
        types: (n,) number of the token's id among the text's distinct ids, in order of appearance.
        sentences: (n,) sentence numbers, or None where they are not known.
        separators: (n,) bool, or None where it is not known which tokens separate.
        special_places: where its special tokens stand.
        counts: how many pairs are high, for each percentage.
        key: 64 bits that depend on its token ids and the seed alone.
        weights: (R + 1,), 1 and then its weight in each bootstrap replicate.
        draws: (H, k) the numbers of pairs that a head would have by chance: all different, in random order.
        shuffles: see :func:`shuffled_starts`.
        shifts: (H, n) where in its shuffle a head begins at each distance.
    """

    row: int
    places: np.ndarray
    length: int
    pairs: Pairs
    types: np.ndarray
    sentences: np.ndarray | None
    separators: np.ndarray | None
    special_places: np.ndarray
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
        """Drop what :meth:`once` keeps, which refers to the text: memory is freed at once, without a collection."""
        self._kept.clear()

    def in_sample(self, share: float) -> bool:
        """Whether the text is in a sample of that share: a matter of its tokens and the seed alone."""
        return self.key < share * 2.0**64


def make_text(
    row: int,
    ids: np.ndarray,
    places: np.ndarray,
    special_places: np.ndarray,
    sentences: np.ndarray | None,
    separators: np.ndarray | None,
    percents: tuple[float, ...],
    replicates: int,
    heads: int,
    seed: int,
    document: str | None = None,
) -> Text:
    """Prepare one text; ``ids``, ``sentences`` and ``separators`` are those of the tokens at ``places``.

    Texts of one ``document`` have the same weights; None: a text's own.
    """
    length = len(ids)
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    types = np.argsort(np.argsort(first))[inverse]
    key = text_key(ids, seed)
    # what is drawn for a text depends on the text and the seed, never on the batch or the process it came in
    generator = np.random.Generator(np.random.Philox(key=[key, seed % 2**64]))
    drawn = generator.poisson(1.0, replicates)  # also where it is not used: a document changes nothing else
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
        places,
        length,
        pairs,
        types,
        None if sentences is None else sentences.astype(np.int32),
        separators,
        special_places,
        counts,
        key,
        weights,
        draws,
        shuffles,
        shifts,
    )


def text_key(ids: np.ndarray, seed: int) -> int:
    """64 bits that depend on the token ids (n,) and the seed alone."""
    digest = hashlib.blake2b(ids.astype("<i8").tobytes(), digest_size=8, key=str(seed).encode()).digest()
    return int.from_bytes(digest, "little")


@functools.lru_cache(maxsize=64)
def _document_weights(document: str, replicates: int, seed: int) -> np.ndarray:
    """(R,): what hangs on the document's name and the seed alone."""
    key = hashlib.blake2b(document.encode("utf-8", "surrogatepass"), digest_size=8, key=f"document {seed}".encode())
    generator = np.random.Generator(np.random.Philox(key=[int.from_bytes(key.digest(), "little"), seed % 2**64]))
    return generator.poisson(1.0, replicates)


def shuffled_starts(length: int, heads: int, generator: np.random.Generator) -> np.ndarray:
    """(R, n(n-1)/2): of each distance d, from 1 on, the n - d places that a pair may start at, in random order.

    A head that begins anywhere in one of the R draws without replacement, exactly; heads of one shuffle are not quite
    independent, which no mean can tell.
    """
    size = length * (length - 1) // 2
    shuffles = max(1, min(heads, SHUFFLES, SHUFFLE_ENTRIES // size))
    starts = np.empty((shuffles, size), dtype=np.int16 if length < 2**15 else np.int32)
    end = 0
    for there in range(length - 1, 0, -1):
        starts[:, end : end + there] = np.arange(there)
        generator.permuted(starts[:, end : end + there], axis=1, out=starts[:, end : end + there])
        end += there
    return starts


def starts_at(distance: np.ndarray, text: Text) -> np.ndarray:
    """(H, k) starts of pairs at the given distances (H, k), drawn at random: no pair of a head twice."""
    heads, count = distance.shape
    row = np.arange(heads)[:, None]
    # how many of the head's pairs before this one have its distance: by sorting distances with their places behind them
    packed = distance << 32 | np.arange(count)
    packed.sort(axis=1)
    ordered = packed >> 32
    first = np.zeros(distance.shape, dtype=np.int64)
    np.multiply(ordered[:, 1:] != ordered[:, :-1], np.arange(1, count), out=first[:, 1:])
    rank = np.empty(distance.size, dtype=np.int64)
    rank[(packed & 0xFFFFFFFF) + row * count] = np.arange(count) - np.maximum.accumulate(first, axis=1)
    there = text.length - distance
    place = (rank.reshape(heads, count) + text.shifts.take(distance + row * text.length)) % there
    before = (distance - 1) * (2 * text.length - distance) // 2
    return text.shuffles.take(before + place + row % len(text.shuffles) * text.shuffles.shape[1])


def distance_bins(distance: np.ndarray) -> np.ndarray:
    """Return the number of each distance's bin in :data:`DISTANCE_BINS`."""
    return _BIN_OF[np.minimum(distance, DISTANCE_BINS[-1])]


def distance_shares(text: Text) -> np.ndarray:
    """Return the share of all pairs of the text in each bin of distances, (bins,)."""
    gaps = np.arange(1, text.length)
    pairs = np.bincount(distance_bins(gaps), weights=text.length - gaps, minlength=len(DISTANCE_BINS))
    return pairs / len(text.pairs[0])
