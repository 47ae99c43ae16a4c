"""Context similarity: dot products of one head's output vectors, and which of them are high (2512.21956).

The matrix of a head is ``O O^T`` of its un-normalised outputs ``O = A V`` before the output projection, with the
diagonal set to zero (the paper's). What "high" means the paper leaves open; ours is the top p percent of a text's own
pairs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..errors import AttnExtError

# Similarities closer than this share of the head's mean squared norm are a tie. Above the rounding of float32 models,
# so that equal outputs tie whatever the batch was.
TIE = 1e-5


def similarity_matrices(outputs: Tensor) -> Tensor:
    """The context similarity matrices (..., N, N) of outputs (..., N, d); at least float32, diagonal zero.

    Example:
        >>> similarity_matrices(torch.tensor([[1.0, 0.0], [2.0, 1.0]]))
        tensor([[0., 2.],
                [2., 0.]])
    """
    outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
    matrices = outputs @ outputs.mT
    matrices.diagonal(dim1=-2, dim2=-1).zero_()
    return matrices


@functools.lru_cache(maxsize=8)
def pairs_of(length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All pairs i < j of ``length`` tokens: i, j, and their place ``i * length + j`` in the flat matrix."""
    first, second = np.triu_indices(length, 1)
    small = np.int16 if length < 2**15 else np.int32
    return first.astype(small), second.astype(small), first * length + second


def pair_values(outputs: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Similarities of all pairs i < j, and the scale that ties are judged by.

    Args:
        outputs: (H, n, d), the chosen tokens only.

    Returns:
        (H, n(n-1)/2) in :func:`pairs_of`'s order, and (H,): the mean squared norm.

    Raises:
        AttnExtError: an output that is not finite.
    """
    heads, length, _ = outputs.shape
    outputs = outputs.to("cpu", torch.promote_types(outputs.dtype, torch.float32))
    matrices = (outputs @ outputs.mT).numpy()
    scale = np.einsum("hii->h", matrices) / length
    if not np.isfinite(scale).all():
        raise AttnExtError(
            "a head's outputs are not finite (overflow of half precision?): their similarities mean nothing; load the "
            "model in float32"
        )
    return np.take(matrices.reshape(heads, -1), pairs_of(length)[2], axis=1), scale


def high_counts(pairs: int, percents: Sequence[float]) -> list[int]:
    """How many of ``pairs`` are high at each percentage: rounded, at least one.

    Example:
        >>> high_counts(8128, (1, 2, 5))
        [81, 163, 406]
    """
    return [min(pairs, max(1, int(pairs * percent / 100 + 0.5))) for percent in percents]


def select_high(values: np.ndarray, counts: Sequence[int], scale: np.ndarray, length: int) -> list[np.ndarray]:
    """The indices of each head's ``counts`` highest pairs.

    Ties at the threshold are broken by a fixed shuffle of the pairs, which knows nothing of the head: deterministic,
    and without a leaning to near or early pairs.

    Args:
        values, scale: from :func:`pair_values`.
        counts: ascending.
        length: n.

    Returns:
        For each count k, (H, k) indices into the pairs, ascending.
    """
    heads, pairs = values.shape
    cuts = np.partition(values, sorted({pairs - count for count in counts}), axis=1)
    thresholds = cuts[:, [pairs - count for count in counts]]
    slack = (TIE * scale).astype(values.dtype)
    head, pair = np.nonzero(values >= (thresholds[:, -1] - slack)[:, None])
    value, slack = values[head, pair], slack[head]
    chosen = []
    for level, count in enumerate(counts):
        threshold = thresholds[head, level]
        above = value > threshold + slack
        near = (value >= threshold - slack) & ~above
        wanted = count - np.bincount(head[above], minlength=heads)
        found = np.bincount(head[near], minlength=heads)
        if (found > wanted).any():
            _drop_excess(near, head, pair, wanted, length)
        chosen.append(pair[above | near].reshape(heads, count))
    return chosen


def _drop_excess(near: np.ndarray, head: np.ndarray, pair: np.ndarray, wanted: np.ndarray, length: int) -> None:
    """Keep only the first ``wanted`` tied pairs of each head, in the shuffled order; in place."""
    tied = np.flatnonzero(near)
    first, second, _ = pairs_of(length)
    mixed = first[pair[tied]].astype(np.uint64) * 0x9E3779B97F4A7C15 + second[pair[tied]].astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    order = np.lexsort((mixed ^ (mixed >> np.uint64(32)), head[tied]))
    owner = head[tied][order]
    rank = np.arange(len(owner)) - np.searchsorted(owner, owner)
    near[tied[order[rank >= wanted[owner]]]] = False
