"""When two nodes, of one task or of several, are the same: equal inputs and the same structure upstream."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .task import Task


def equivalence_classes(tasks: Sequence[Task]) -> list[list[int]]:
    """Return a number for every node (class of positions) of every task; equivalent nodes have the same number.

    Two nodes are equivalent when an isomorphism of their down-sets keeps the multisets of inputs. Within a task inputs
    differ, so such an isomorphism can only match nodes by their inputs, and a node's type follows from its inputs and
    the set of its lower covers' types: the isomorphisms of the lower covers' down-sets agree where these overlap, and
    together they are the one of the whole. So types are numbered as they come up, in a dictionary whose keys are
    compared in full: equal numbers are equivalence itself, no hash that might collide.

    Numbers rise along every task's linear extension: what is below has the smaller one.

    Args:
        tasks: each with inputs that differ.

    Returns:
        ``numbers[task][node]``.

    Source: 2606.09951 for equivalence; the numbering is ours.
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
