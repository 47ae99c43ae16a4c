"""Isomorphism of orders: equality up to the names of the classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .poset import Poset

_LOWER, _UPPER = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)  # odd, for mixing


def isomorphic(first: Poset, second: Poset) -> bool:
    """Whether the classes of two posets can be matched so that the order is the same.

    The two diagrams are coloured together: by level and twins, then by the neighbours' colours until nothing changes.
    The posets differ if a colour is more frequent in one of them. Where several classes have a colour, one of them is
    matched with each class of that colour in the other poset in turn, and the pair gets a new colour. A complete
    matching is compared edge by edge, so a collision of hashed colours costs time but never gives a wrong answer.

    Source: ours; colour refinement with individualisation.
    """
    if len(first) != len(second) or first.num_covers != second.num_covers:
        return False
    sides = [_without_twins(poset) for poset in (first, second)]
    if len(sides[0][0]) != len(sides[1][0]):
        return False
    count = len(sides[0][0])
    edges = np.concatenate([sides[0][1], sides[1][1] + count])
    colours = np.unique(np.concatenate([sides[0][0], sides[1][0]]), axis=0, return_inverse=True)[1].reshape(-1)
    stack: list[Iterator[np.ndarray]] = [iter([colours])]
    while stack:
        coloured = next(stack[-1], None)
        if coloured is None:
            stack.pop()
            continue
        colours = _refined(coloured, edges)
        sizes = np.bincount(colours[:count], minlength=2 * count)
        if not np.array_equal(sizes, np.bincount(colours[count:], minlength=2 * count)):
            continue
        if sizes.max() > 1:
            stack.append(_matched(colours, count, int(np.flatnonzero(sizes > 1)[0])))
        elif _same_edges(colours, sides[0][1], sides[1][1], count):
            return True
    return False


def _without_twins(poset: Poset) -> tuple[np.ndarray, np.ndarray]:
    """Unite classes with the same lower and the same upper covers, as these can be exchanged.

    Returns:
        Level and number of twins, int64 (classes, 2), and covers among those left, int64 (covers, 2).
    """
    groups: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for number in range(len(poset)):
        key = tuple(poset.lower_covers(number)), tuple(poset.upper_covers(number))
        groups.setdefault(key, []).append(number)
    number_of = {twins[0]: number for number, twins in enumerate(groups.values())}
    level = {number: depth for depth, numbers in enumerate(poset.levels()) for number in numbers}
    facts = np.array([(level[twins[0]], len(twins)) for twins in groups.values()], np.int64)
    kept = [pair for pair in poset.covers if pair[0] in number_of and pair[1] in number_of]
    edges = [(number_of[lower], number_of[upper]) for lower, upper in kept]
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
    """Hashes of numbers whose sums tell multisets apart (the last step of splitmix64)."""
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


def _same_edges(colours: np.ndarray, first: np.ndarray, second: np.ndarray, count: int) -> bool:
    """Whether classes of equal colours, now one of each poset, are joined alike."""
    named = [np.sort(colours[edges] @ np.array([2 * count + 1, 1])) for edges in (first, second + count)]
    return np.array_equal(named[0], named[1])
