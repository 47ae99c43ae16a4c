"""Whether two orders are the same but for the names of their classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .poset import Poset

_LOWER, _UPPER = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)  # odd, for mixing


def isomorphic(one: Poset, other: Poset) -> bool:
    """Whether two posets' classes can be matched so that the order is the same.

    The two diagrams are coloured as one: by level and twins, then by the neighbours' colours until nothing changes. A
    colour that comes more often in one of them refuses. Where a colour comes twice, one of its classes is matched with
    each of the other poset's in turn, which gets a colour of their own. A matching is compared edge by edge, so mixing
    colours into one word can cost time, and never truth.

    Source: ours; colour refinement with individualisation.
    """
    if len(one) != len(other) or one.num_covers != other.num_covers:
        return False
    sides = [_without_twins(poset) for poset in (one, other)]
    if len(sides[0][0]) != len(sides[1][0]):
        return False
    count = len(sides[0][0])
    edges = np.concatenate([sides[0][1], sides[1][1] + count])
    colours = np.unique(np.concatenate([sides[0][0], sides[1][0]]), axis=0, return_inverse=True)[1].reshape(-1)
    stack = [iter([colours])]
    while stack:
        colours = next(stack[-1], None)
        if colours is None:
            stack.pop()
            continue
        colours = _refined(colours, edges)
        found = np.bincount(colours[:count], minlength=2 * count)
        if not np.array_equal(found, np.bincount(colours[count:], minlength=2 * count)):
            continue
        if found.max() > 1:
            stack.append(_matched(colours, count, np.flatnonzero(found > 1)[0]))
        elif _same_edges(colours, sides[0][1], sides[1][1], count):
            return True
    return False


def _without_twins(poset: Poset) -> tuple[np.ndarray, np.ndarray]:
    """One class for all with the same lower and the same upper covers, as these can be exchanged.

    Returns:
        Level and number of twins, int64 (classes, 2), and covers among those left, int64 (covers, 2).
    """
    groups: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for number in range(len(poset)):
        key = tuple(poset.lower_covers(number)), tuple(poset.upper_covers(number))
        groups.setdefault(key, []).append(number)
    place = {twins[0]: number for number, twins in enumerate(groups.values())}
    level = {number: depth for depth, numbers in enumerate(poset.levels()) for number in numbers}
    facts = np.array([(level[twins[0]], len(twins)) for twins in groups.values()], np.int64)
    edges = [(place[lower], place[upper]) for lower, upper in poset.covers if lower in place and upper in place]
    return facts, np.array(edges, np.int64).reshape(-1, 2)


def _refined(colours: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Split colours by the colours of neighbours, until that splits nothing more."""
    lower, upper = edges.T
    known = len(np.unique(colours))
    while True:
        words = _scattered(colours)
        from_below, from_above = np.zeros_like(words), np.zeros_like(words)
        np.add.at(from_below, upper, words[lower])
        np.add.at(from_above, lower, words[upper])
        words = _scattered(words + from_below * _LOWER + _scattered(from_above * _UPPER))
        values, split = np.unique(words, return_inverse=True)
        if len(values) <= known:
            return colours
        colours, known = split, len(values)


def _scattered(values: np.ndarray) -> np.ndarray:
    """Numbers as words without pattern, so that sums of them tell multisets apart (splitmix64's last step)."""
    words = values.astype(np.uint64) + _LOWER
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _matched(colours: np.ndarray, count: int, colour: int) -> Iterator[np.ndarray]:
    """Colourings that match the first poset's first class of a colour with each of the other's."""
    first = np.flatnonzero(colours[:count] == colour)[0]
    for partner in np.flatnonzero(colours[count:] == colour) + count:
        alone = colours.copy()
        alone[[first, partner]] = colours.max() + 1
        yield alone


def _same_edges(colours: np.ndarray, one: np.ndarray, other: np.ndarray, count: int) -> bool:
    """Whether classes of one colour, now a single one of each poset, are joined alike."""
    named = [np.sort(colours[edges] @ np.array([2 * count + 1, 1])) for edges in (one, other + count)]
    return np.array_equal(*named)
