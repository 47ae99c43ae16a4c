"""Equivalence of nodes, within a task and across tasks: equal inputs and the same structure upstream."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .task import Task


def equivalence_classes(tasks: Sequence[Task]) -> list[list[int]]:
    """Return ``numbers[task][node]`` of every node (class of positions); equivalent nodes have the same number.

    Two nodes are equivalent if an isomorphism of their down-sets keeps the multisets of inputs. Inputs differ within a
    task, so such an isomorphism matches nodes by their inputs. A node's type therefore follows from its inputs and the
    set of its lower covers' types: the isomorphisms of the covers' down-sets agree where these overlap, and their union
    is the isomorphism of the whole down-set. Types are numbered in a dictionary whose keys are compared in full; equal
    numbers mean equivalent nodes; there are no hash collisions.

    Numbers rise along the linear extension of every task: a node has a larger number than all nodes below it.

    Source: arXiv 2606.09951 for equivalence; the numbering is ours.
    """
    inputs: dict[Hashable, int] = {}
    types: dict[Hashable, int] = {}
    numbers = []
    for task in tasks:
        codes = [inputs.setdefault(value, len(inputs)) for value in task.inputs]
        own: list[int] = []
        for members, lower in zip(task.poset.classes, task.poset.lower_cover_lists(), strict=True):
            held = frozenset([codes[position] for position in members])
            key = (held, frozenset([own[below] for below in lower]))
            own.append(types.setdefault(key, len(types)))
        numbers.append(own)
    return numbers
