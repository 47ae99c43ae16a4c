"""Whether two orders are the same but for the names of their classes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .poset import Poset


def isomorphic(one: Poset, other: Poset) -> bool:
    """Whether two posets' classes can be matched so that the order is the same.

    Classes are coloured by what every isomorphism keeps (levels, sizes of down-sets and up-sets, then neighbours'
    colours until nothing changes); where colours do not decide, networkx searches among classes of equal colour.
    """
    if len(one) != len(other) or len(one.covers) != len(other.covers):
        return False
    palette: dict[object, int] = {}
    colours = [_start(poset, palette) for poset in (one, other)]
    while True:
        if Counter(colours[0]) != Counter(colours[1]):
            return False
        palette = {}
        refined = [_refine(poset, own, palette) for poset, own in zip((one, other), colours, strict=True)]
        if len(set(refined[0])) == len(set(colours[0])):
            break
        colours = refined
    if len(set(colours[0])) == len(one):
        place = {colour: number for number, colour in enumerate(colours[1])}
        match = [place[colour] for colour in colours[0]]
        return {(match[lower], match[upper]) for lower, upper in one.covers} == set(other.covers)
    return _search(one, other, colours)


def _start(poset: Poset, palette: dict[object, int]) -> list[int]:
    rows = poset.down_rows()
    below, above = (matrix.dense().sum(1).tolist() for matrix in (rows, rows.transposed()))
    level = {number: depth for depth, numbers in enumerate(poset.levels()) for number in numbers}
    facts = ((level[number], below[number], above[number]) for number in range(len(poset)))
    return [palette.setdefault(fact, len(palette)) for fact in facts]


def _refine(poset: Poset, colours: list[int], palette: dict[object, int]) -> list[int]:
    facts = (
        (
            colours[number],
            tuple(sorted(colours[lower] for lower in poset.lower_covers(number))),
            tuple(sorted(colours[upper] for upper in poset.upper_covers(number))),
        )
        for number in range(len(poset))
    )
    return [palette.setdefault(fact, len(palette)) for fact in facts]


def _search(one: Poset, other: Poset, colours: list[list[int]]) -> bool:
    from networkx.algorithms.isomorphism import DiGraphMatcher

    graphs = []
    for poset, own in zip((one, other), colours, strict=True):
        graph = poset.hasse_diagram()
        for number, colour in enumerate(own):
            graph.nodes[number]["colour"] = colour
        graphs.append(graph)
    same = DiGraphMatcher(*graphs, node_match=lambda a, b: a["colour"] == b["colour"])
    return same.is_isomorphic()
