"""Two methods that divide a sequence of sentences into segments, from the similarities between sentences.

``scatter`` chooses all boundaries together so that the sentences of each segment are closest to their mean (kernel
change-point detection, Harchaoui and Cappe 2007). ``depth`` chooses gaps where the similarity of the blocks on both
sides is far below the peaks next to it (TextTiling, Hearst 1997).

Gap g is between sentences g - 1 and g, for g from 1 to n - 1; arrays over gaps begin with g = 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hf_attn_ext.errors import AttnExtError

# The least distance in sentences between two boundaries by depth or by focus, if there is room; ours.
APART = 2
# The maximum number of sentences for the method scatter: the costs of all segments are n^2 numbers.
MOST_SENTENCES = 4000


def scatter_costs(similarities: np.ndarray) -> np.ndarray:
    """Return the scatter of every segment: the sum of squared distances of its sentences to their mean.

    The dot products of the sentences' vectors are (n, n). Entry (i, j) of the result (n + 1, n + 1) is the scatter of
    sentences i to j - 1, infinite unless i < j.

    Example:
        >>> float(scatter_costs(np.eye(2))[0, 2])  # two orthogonal vectors of length 1
        1.0
    """
    count = len(similarities)
    if count > MOST_SENTENCES:
        raise AttnExtError(
            f"method='scatter' takes at most {MOST_SENTENCES} sentences, got {count}; use method='depth', or divide "
            "the text"
        )
    sums = _prefix_sums(similarities)
    squares = np.concatenate([[0.0], np.diagonal(similarities).cumsum()])
    i, j = np.arange(count + 1)[:, None], np.arange(count + 1)
    inside = np.diagonal(sums) + np.diagonal(sums)[:, None] - sums - sums.T
    with np.errstate(divide="ignore", invalid="ignore"):
        costs = squares[j] - squares[i] - inside / (j - i)
    return np.where(i < j, costs, np.inf)


def least_scatter(costs: np.ndarray, price: np.ndarray, segments: int | None = None) -> tuple[list[int], np.ndarray]:
    """Find the boundaries with the least total cost, by dynamic programming.

    The ``price`` (n - 1,) of a boundary is added to the ``costs`` of :func:`scatter_costs`. Without ``segments``, the
    number with the least total cost is taken. Returns the chosen gaps, ascending, and the gain of each gap (n - 1,):
    how much a boundary there lowers the total cost if the nearest chosen boundaries on both sides stay.

    Example:
        >>> least_scatter(scatter_costs(np.kron(np.eye(2), np.ones((3, 3)))), np.zeros(5), segments=2)[0]
        [3]
    """
    count = len(costs) - 1
    priced = costs + np.concatenate([[0.0], price, [0.0]])[:, None]
    gaps = _cheapest(priced) if segments is None else _cheapest_of(priced, segments)
    edges = np.array([0, *gaps, count])
    gap = np.arange(1, count)
    left, right = edges[np.searchsorted(edges, gap) - 1], edges[np.searchsorted(edges, gap, side="right")]
    return gaps, costs[left, right] - costs[left, gap] - costs[gap, right] - price


def _prefix_sums(similarities: np.ndarray) -> np.ndarray:
    """Return (n + 1, n + 1): entry (i, j) is the sum of the first i rows and j columns."""
    sums = np.zeros((len(similarities) + 1, len(similarities) + 1))
    sums[1:, 1:] = similarities.cumsum(0).cumsum(1)
    return sums


def _cheapest(priced: np.ndarray) -> list[int]:
    count = len(priced) - 1
    best, before = np.zeros(count + 1), np.zeros(count + 1, dtype=np.int64)
    for end in range(1, count + 1):
        totals = best[:end] + priced[:end, end]
        before[end] = totals.argmin()
        best[end] = totals[before[end]]
    gaps, end = [], int(before[count])
    while end:
        gaps.append(end)
        end = int(before[end])
    return gaps[::-1]


def _cheapest_of(priced: np.ndarray, segments: int) -> list[int]:
    best, back = priced[0], []
    for _ in range(segments - 1):
        totals = best[:, None] + priced
        back.append(totals.argmin(0))
        best = np.take_along_axis(totals, back[-1][None], axis=0)[0]
    gaps, end = [], len(priced) - 1
    for before in reversed(back):
        end = int(before[end])
        gaps.append(end)
    return gaps[::-1]


def block_similarities(similarities: np.ndarray, block: int) -> np.ndarray:
    """Return the cosine of the sums of up to ``block`` vectors on both sides of each gap, (n - 1,), from dot products.

    Example:
        >>> block_similarities(np.eye(2), 1)
        array([0.])
    """
    count = len(similarities)
    sums = _prefix_sums(similarities)
    gap = np.arange(1, count)
    left, right = np.maximum(gap - block, 0), np.minimum(gap + block, count)

    def between(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> Any:
        return sums[b, d] - sums[a, d] - sums[b, c] + sums[a, c]

    squares = between(left, gap, left, gap) * between(gap, right, gap, right)
    lengths = np.sqrt(np.maximum(squares, np.finfo(float).tiny))
    similarity: np.ndarray = between(left, gap, gap, right) / lengths
    return similarity


def depths(values: np.ndarray) -> np.ndarray:
    """Return the depth of each value: its distances to the nearest peaks on the left and on the right, added up.

    Example:
        >>> depths(np.array([3.0, 1.0, 2.0]))
        array([0., 3., 0.])
    """
    result = np.empty(len(values))
    for index in range(len(values)):
        left = right = index
        while left and values[left - 1] >= values[left]:
            left -= 1
        while right < len(values) - 1 and values[right + 1] >= values[right]:
            right += 1
        result[index] = values[left] + values[right] - 2 * values[index]
    return result


def highest(scores: np.ndarray, segments: int | None, threshold: float) -> list[int]:
    """Return the gaps with the highest scores (n - 1,), ascending.

    Of gaps closer than :data:`APART`, only the highest is chosen unless too few remain; among equals the first. Without
    ``segments``, only scores more than ``threshold`` standard deviations above the mean are chosen.

    Example:
        >>> highest(np.array([0.0, 9, 8, 0, 7, 0]), 3, 0.0)
        [2, 5]
    """
    wanted = len(scores) if segments is None else segments - 1
    order = np.argsort(-scores, kind="stable")
    if segments is None:
        bound = scores.mean() + threshold * scores.std()
        order = order[scores[order] > bound]
    chosen: list[int] = []
    for gap in order:
        if len(chosen) < wanted and all(abs(gap - other) >= APART for other in chosen):
            chosen.append(int(gap))
    if segments is not None:
        rest = [int(gap) for gap in order if gap not in chosen]
        chosen += rest[: wanted - len(chosen)]
    return sorted(gap + 1 for gap in chosen)


def standardised(values: np.ndarray) -> np.ndarray:
    """Shift and scale ``values`` to mean 0 and standard deviation 1; zeros if all values are equal."""
    spread = values.std()
    return (values - values.mean()) / spread if spread > 1e-12 * max(1.0, np.abs(values).max()) else values * 0.0
