"""Where a sequence of sentences is best cut, from the similarities between them; two ways.

``scatter``: segments whose sentences lie closest to their own mean, all cuts chosen together (least squares in the
space that the similarities span: kernel change-point detection, Harchaoui and Cappe 2007). ``depth``: how deep the
similarity of the blocks left and right of a gap lies under the peaks beside it (TextTiling, Hearst 1997).

Gap g lies between sentences g - 1 and g, for g from 1 to n - 1; arrays over gaps begin with g = 1.
"""

from __future__ import annotations

import numpy as np

from hf_attn_ext.errors import AttnExtError

# A cut by depth or by focus is at least so many sentences from the next one, where there is room; ours.
APART = 2
# Sentences that are cut by scatter at once: the costs of all segments are n^2 numbers.
MOST_SENTENCES = 4000


def scatter_costs(similarities: np.ndarray) -> np.ndarray:
    """(n + 1, n + 1): entry i, j is the scatter of the segment of sentences i to j - 1, infinite unless i < j.

    The scatter is the sum of squared distances to the segment's mean, from the dot products (n, n) alone.

    Raises:
        AttnExtError: there are more sentences than :data:`MOST_SENTENCES`.

    Example:
        >>> scatter_costs(np.eye(2))[0, 2]  # two orthogonal vectors of length 1
        1.0
    """
    count = len(similarities)
    if count > MOST_SENTENCES:
        raise AttnExtError(
            f"{count} sentences are more than method='scatter' takes, {MOST_SENTENCES}; use method='depth', or cut the "
            "text into parts"
        )
    sums = np.zeros((count + 1, count + 1))
    sums[1:, 1:] = similarities.cumsum(0).cumsum(1)
    squares = np.concatenate([[0.0], np.diagonal(similarities).cumsum()])
    i, j = np.arange(count + 1)[:, None], np.arange(count + 1)
    inside = np.diagonal(sums) + np.diagonal(sums)[:, None] - sums - sums.T
    with np.errstate(divide="ignore", invalid="ignore"):
        costs = squares[j] - squares[i] - inside / (j - i)
    return np.where(i < j, costs, np.inf)


def least_scatter(costs: np.ndarray, price: np.ndarray, segments: int | None = None) -> tuple[list[int], np.ndarray]:
    """The cuts of the least total cost, by dynamic programming.

    Args:
        costs: (n + 1, n + 1), from :func:`scatter_costs`.
        price: (n - 1,), what a cut at each gap costs.
        segments: how many; None is as many as pay.

    Returns:
        The gaps, ascending, and (n - 1,) what each gap brings: how much a cut there lowers the total, its neighbours
        among the chosen cuts being what they are.
    """
    count = len(costs) - 1
    priced = costs + np.concatenate([[0.0], price, [0.0]])[:, None]
    gaps = _cheapest(priced) if segments is None else _cheapest_of(priced, segments)
    edges = np.array([0, *gaps, count])
    place = np.arange(1, count)
    left, right = edges[np.searchsorted(edges, place) - 1], edges[np.searchsorted(edges, place, side="right")]
    return gaps, costs[left, right] - costs[left, place] - costs[place, right] - price


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
    """(n - 1,): the cosine of the sums of up to ``block`` sentences left and right of each gap."""
    count = len(similarities)
    sums = np.zeros((count + 1, count + 1))
    sums[1:, 1:] = similarities.cumsum(0).cumsum(1)
    gap = np.arange(1, count)
    left, right = np.maximum(gap - block, 0), np.minimum(gap + block, count)

    def between(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray) -> np.ndarray:
        return sums[b, d] - sums[a, d] - sums[b, c] + sums[a, c]

    squares = between(left, gap, left, gap) * between(gap, right, gap, right)
    lengths = np.sqrt(np.maximum(squares, np.finfo(float).tiny))
    return between(left, gap, gap, right) / lengths


def depths(values: np.ndarray) -> np.ndarray:
    """How far each value lies under the peaks that are reached by climbing to the left and to the right.

    Example:
        >>> depths(np.array([3.0, 1.0, 2.0]))
        array([0., 3., 0.])
    """
    found = np.empty(len(values))
    for place in range(len(values)):
        left = right = place
        while left and values[left - 1] >= values[left]:
            left -= 1
        while right < len(values) - 1 and values[right + 1] >= values[right]:
            right += 1
        found[place] = values[left] + values[right] - 2 * values[place]
    return found


def highest(scores: np.ndarray, segments: int | None, threshold: float) -> list[int]:
    """The gaps of the highest scores: so many, or those above the mean by ``threshold`` standard deviations.

    Of gaps nearer than :data:`APART` the higher one, unless there are not enough; of equals the first.
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
    """Mean 0 and standard deviation 1; zeros where all are equal."""
    spread = values.std()
    return (values - values.mean()) / spread if spread > 1e-12 * max(1.0, np.abs(values).max()) else values * 0.0
