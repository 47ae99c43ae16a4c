"""The smallest common supergraph by exhaustive search: the slow, readable reference for the joint task."""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .task import Task

Node = tuple[int, int]  # task, class


def smallest_supergraph(tasks: Sequence[Task]) -> int:
    """Return the number of nodes of a smallest order in which every task is a down-closed part with its inputs kept.

    Nodes outside the tasks' parts can be left out, so such an order consists of the family's nodes with some of them
    united: never two of one task, never nodes with different inputs. What is below a node follows from any part that
    contains it, so these parts must agree. All ways to unite nodes are tried.

    Source: ours.
    """
    below = {
        (which, number): [(which, other) for other in task.poset.down_set(number)]
        for which, task in enumerate(tasks)
        for number in range(len(task.poset))
    }
    least = len(below)
    for choice in itertools.product(*(list(_partitions(nodes)) for nodes in _groups(tasks).values())):
        blocks = [block for partition in choice for block in partition]
        if len(blocks) < least and _agrees(blocks, below):
            least = len(blocks)
    return least


def candidates(tasks: Sequence[Task]) -> int:
    """Return the number of ways to unite nodes that :func:`smallest_supergraph` would try."""
    return math.prod(_bell(len(nodes)) for nodes in _groups(tasks).values())


def _agrees(blocks: list[list[Node]], below: dict[Node, list[Node]]) -> bool:
    block_of = {node: number for number, block in enumerate(blocks) for node in block}
    return all(
        len({frozenset(block_of[other] for other in below[node]) for node in block}) == 1
        for block in blocks
        if len(block) > 1
    )


def _groups(tasks: Sequence[Task]) -> dict[Hashable, list[Node]]:
    """Nodes by their inputs; those of a group are of different tasks, as inputs differ within a task."""
    groups: dict[Hashable, list[Node]] = {}
    for which, task in enumerate(tasks):
        for number, members in enumerate(task.poset.classes):
            groups.setdefault(frozenset(task.inputs[position] for position in members), []).append((which, number))
    return groups


def _partitions(nodes: list[Node]) -> Iterator[list[list[Node]]]:
    if not nodes:
        yield []
        return
    first, *rest = nodes
    for partition in _partitions(rest):
        yield [[first], *partition]
        for number, block in enumerate(partition):
            yield [*partition[:number], [first, *block], *partition[number + 1 :]]


def _bell(count: int) -> int:
    """The number of partitions of a set."""
    row = [1]
    for _ in range(count):
        following = [row[-1]]
        for value in row:
            following.append(following[-1] + value)
        row = following
    return row[0]
