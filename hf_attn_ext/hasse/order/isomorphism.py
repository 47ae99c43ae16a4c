"""Isomorphism of orders: equality up to the names of the classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import networkx

    from .poset import Poset


def isomorphic(first: Poset, second: Poset) -> bool:
    """Whether the classes of two posets can be matched so that the order is the same: VF2++ on their diagrams."""
    import networkx

    if len(first) != len(second) or first.num_covers != second.num_covers:
        return False
    one, other = _without_twins(first), _without_twins(second)
    same: bool = networkx.vf2pp_is_isomorphic(one, other, node_label="facts")
    return same


def _without_twins(poset: Poset) -> networkx.DiGraph:
    """The diagram with one class of each set with equal covers; ``facts`` are the level and the number of classes."""
    diagram = poset.hasse_diagram()
    groups: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for number, level in enumerate(poset.level_of.tolist()):
        key = tuple(poset.lower_covers(number)), tuple(poset.upper_covers(number))
        twins = groups.setdefault(key, [])
        twins.append(number)
        diagram.nodes[twins[0]]["facts"] = level, len(twins)
    return diagram.subgraph(twins[0] for twins in groups.values())
