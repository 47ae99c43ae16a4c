"""Context similarity: dot products of one head's output vectors, and which of them are high (2512.21956).

The matrix of a head is ``O O^T`` of its un-normalised outputs ``O = A V`` before the output projection, with the
diagonal set to zero (the paper's). The paper does not define "high"; here it is the top p percent of a text's own pairs
(ours).
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_attn_ext.errors import AttnExtError

# Similarities that differ by less than this share of the product of their tokens' norms are a tie. It is above the
# rounding of float32 models, so that equal outputs tie in every batch.
TIE = 2e-6

_SCRATCH = threading.local()


def similarity_matrices(outputs: Tensor) -> Tensor:
    """Return context similarity matrices (..., N, N) of outputs (..., N, d): at least float32, diagonal zero.

    Example:
        >>> similarity_matrices(torch.tensor([[1.0, 0.0], [2.0, 1.0]]))
        tensor([[0., 2.],
                [2., 0.]])
    """
    outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
    matrices = outputs @ outputs.mT
    matrices.diagonal(dim1=-2, dim2=-1).zero_()
    return matrices


Pairs = tuple[np.ndarray, np.ndarray, np.ndarray]


@functools.lru_cache(maxsize=8)
def pairs_of(length: int) -> Pairs:
    """Return all pairs i < j of ``length`` tokens: i, j, and the index ``i * length + j`` in the flat matrix."""
    first, second = np.triu_indices(length, 1)
    small = np.int16 if length < 2**15 else np.int32
    return first.astype(small), second.astype(small), first * length + second


def pair_values(outputs: Tensor, pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    """Return the similarities of all pairs i < j, and the norms that decide on ties, from outputs (H, n, d).

    The similarities are (H, n(n-1)/2) in the order of :func:`pairs_of`, and the thread's next call overwrites them. The
    tokens' norms are (H, n).
    """
    heads, length, _ = outputs.shape
    outputs = outputs.to("cpu", torch.promote_types(outputs.dtype, torch.float32))
    dtype = np.float64 if outputs.dtype == torch.float64 else np.float32
    matrices = _scratch("matrices", (heads, length, length), dtype)
    torch.matmul(outputs, outputs.mT, out=torch.from_numpy(matrices))
    norms = np.sqrt(np.einsum("hii->hi", matrices))
    if not np.isfinite(norms).all():
        raise AttnExtError(
            "a head's outputs are not finite (overflow of half precision?): their similarities mean nothing; load the "
            "model in float32"
        )
    values = _scratch("values", (heads, len(pairs[0])), dtype)
    return np.take(matrices.reshape(heads, -1), pairs[2], axis=1, out=values, mode="clip"), norms


def _scratch(name: str, shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """Memory that a thread reuses; fresh pages would cost as much as the product."""
    kept: dict[Any, np.ndarray] = _SCRATCH.__dict__
    size = math.prod(shape)
    if (name, dtype) not in kept or len(kept[name, dtype]) < size:
        kept[name, dtype] = np.empty(size, dtype)
    return kept[name, dtype][:size].reshape(shape)


def high_counts(pairs: int, percents: Sequence[float]) -> list[int]:
    """Return how many of ``pairs`` are high at each percentage: rounded, at least one.

    Example:
        >>> high_counts(8128, (1, 2, 5))
        [81, 163, 406]
    """
    return [min(pairs, max(1, int(pairs * percent / 100 + 0.5))) for percent in percents]


def select_high(values: np.ndarray, counts: Sequence[int], norms: np.ndarray, pairs: Pairs, key: int = 0) -> np.ndarray:
    """Return the indices of each head's highest pairs, (H, counts[-1]); a row begins with its ``counts[0]`` highest.

    Ties at a threshold are broken by a shuffle of the pairs that depends on the text's ``key`` alone. A head of equal
    outputs is therefore at chance, with no preference for near or early pairs. ``values`` and ``norms`` are those of
    :func:`pair_values`; ``counts`` says how many to select, ascending.
    """
    bound = _lower_bound(values, counts[-1])
    widest = TIE * _largest_product(norms)
    picked = _candidates(values, bound, widest, counts)
    if picked is None:  # the sample's bound was too high for a head, or ties may lie below it
        exact = np.partition(values, values.shape[1] - counts[-1], axis=1)[:, values.shape[1] - counts[-1]]
        picked = _candidates(values, exact - 2 * widest, widest, counts)
        assert picked is not None  # the bound is exact
    value, pair, thresholds = picked
    near = _ties(value, pair, thresholds, norms, pairs)
    heads = len(values)
    level = np.zeros((heads, counts[-1]), dtype=np.int8)
    for step in range(len(counts) - 1, -1, -1):  # from many to few, each among the one before
        ties = near[step]
        taken = (value > thresholds[:, step : step + 1]) | ties
        if np.count_nonzero(taken) > heads * counts[step]:
            taken ^= ties
            _drop_excess(ties, pair, counts[step] - taken.sum(1), pairs, key)
            taken |= ties
        if step == len(counts) - 1:
            near = [each[taken].reshape(heads, -1) for each in near]
            value, pair = value[taken].reshape(heads, -1), pair[taken].reshape(heads, -1)
        else:
            near = [each & taken for each in near]
            value[~taken] = -np.inf
            level -= taken
    return np.take_along_axis(pair, np.argsort(level, axis=1, kind="stable"), axis=1)


def _ties(
    value: np.ndarray, pair: np.ndarray, thresholds: np.ndarray, norms: np.ndarray, pairs: Pairs
) -> list[np.ndarray]:
    """For each threshold, bool (H, C): which candidates tie with it, by the norms of their own tokens.

    A token of far greater norm therefore makes no ties of the others. Thresholds within one tie share that tie.
    """
    row = np.arange(len(value))[:, None]
    width = (TIE * norms[row, pairs[0][pair]] * norms[row, pairs[1][pair]]).astype(value.dtype)
    near = [np.abs(value - each[:, None]) <= width for each in thresholds.T]
    steps = range(len(near) - 1)
    for one, other in [(step, step + 1) for step in reversed(steps)] + [(step + 1, step) for step in steps]:
        joined = (near[one] & near[other]).any(1)
        if joined.any():
            near[one] |= near[other] & joined[:, None]
    return near


def _largest_product(norms: np.ndarray) -> np.ndarray:
    """(H,): the product of the two largest norms (H, n)."""
    return np.partition(norms, norms.shape[1] - 2, axis=1)[:, -2:].prod(1)


def _lower_bound(values: np.ndarray, count: int) -> np.ndarray:
    """(H,): a value that is nearly always below a head's ``count`` highest pairs, from every sixteenth pair."""
    heads, pairs = values.shape
    if pairs < 2048:
        return np.full(heads, -np.inf, dtype=values.dtype)
    sample = values[:, ::16]
    expected = count / 16
    rank = min(sample.shape[1], int(expected + 4 * expected**0.5 + 4))
    return np.partition(sample, sample.shape[1] - rank, axis=1)[:, sample.shape[1] - rank]


def _candidates(
    values: np.ndarray, bound: np.ndarray, widest: np.ndarray, counts: Sequence[int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Values from ``bound`` on and their pairs, (H, C) padded with -inf, and the thresholds (H, P) of the counts.

    None where a selection may need lower values: those less than ``widest`` below the last threshold may tie with it.
    """
    heads, total = values.shape
    if np.isneginf(bound).all():
        value, pair = values, np.broadcast_to(np.arange(total), values.shape)
    else:
        flat = np.flatnonzero(values >= bound[:, None])
        starts = np.arange(heads + 1) * total
        sizes = np.diff(np.searchsorted(flat, starts))
        if (sizes < counts[-1]).any():
            return None
        filled = np.arange(sizes.max()) < sizes[:, None]
        value, pair = np.full(filled.shape, -np.inf, dtype=values.dtype), np.zeros(filled.shape, dtype=np.int64)
        value[filled], pair[filled] = values.ravel()[flat], flat
        pair -= starts[:-1, None] * filled
    ranks = [value.shape[1] - count for count in counts]
    thresholds = np.partition(value, sorted(set(ranks)), axis=1)[:, ranks]
    return None if (bound > thresholds[:, -1] - widest).any() else (value, pair, thresholds)


def _drop_excess(near: np.ndarray, pair: np.ndarray, wanted: np.ndarray, pairs: Pairs, key: int) -> None:
    """Keep only the first ``wanted`` tied pairs of each head, in the shuffled order; in place."""
    head, column = np.nonzero(near)
    tied = pair[head, column]
    first, second = (each[tied].astype(np.uint64) for each in pairs[:2])
    order = np.lexsort((_mixed(_mixed(first ^ np.uint64(key)) + second), head))
    owner = head[order]
    rank = np.arange(len(owner)) - np.searchsorted(owner, owner)
    dropped = order[rank >= wanted[owner]]
    near[head[dropped], column[dropped]] = False


def _mixed(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: every bit of the result depends on every bit of ``x``."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
