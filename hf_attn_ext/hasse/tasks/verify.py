"""Whether a joint task is a smallest common supergraph, checked from the definitions and not from how it was made."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hf_attn_ext.hasse.order.bits import bits_of
from hf_attn_ext.hasse.order.poset import expanded
from hf_attn_ext.hasse.order.values import same_value

from .exhaustive import candidates, smallest_supergraph

if TYPE_CHECKING:
    from .joint import JointTask
    from .task import Task

SMALL = 1000  # ways to unite nodes, up to which all are tried


@dataclasses.dataclass(frozen=True)
class Verification:
    """What :meth:`.JointTask.verify` found; true when there is no problem.

    Attributes:
        nodes: classes of the joint task.
        types: equivalence classes of the family's nodes. A down-closed part keeps what is upstream, so nodes of
            different types stay different in every common supergraph: none has fewer nodes than this.
        exhaustive: nodes of the smallest supergraph among all ways to unite nodes, or None where these are many.
        problems: one line each.
    """

    nodes: int
    types: int
    exhaustive: int | None
    problems: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.problems


def verify(joint: JointTask) -> Verification:
    """See :meth:`.JointTask.verify`."""
    problems = []
    flow = expanded(joint.poset)
    for which, (task, places) in enumerate(zip(joint.tasks, _places(joint), strict=True)):
        problems += [f"task {which}: {problem}" for problem in _embedding(joint, flow, task, places)]
    if not all(joint.sources):
        problems.append(f"position {joint.sources.index([])} stands for no position of any task")
    nodes, types = len(joint.poset), count_types(joint.tasks)
    least = smallest_supergraph(joint.tasks) if candidates(joint.tasks) <= SMALL else None
    if nodes != types:
        problems.append(f"{nodes} nodes, but the family has {types} different ones")
    if least is not None and nodes != least:
        problems.append(f"{nodes} nodes, but the smallest supergraph has {least}")
    return Verification(nodes, types, least, tuple(problems))


def count_types(tasks: Sequence[Task]) -> int:
    """Return how many different nodes a family has, by the labelled down-sets written out in full.

    A node is described by all nodes of its down-set, each as its inputs and those of its own down-set: with inputs that
    differ within a task, two descriptions are equal exactly when an isomorphism keeps the inputs.
    """
    names: dict[Hashable, int] = {}
    types: set[Hashable] = set()
    for task in tasks:
        held = [
            names.setdefault(frozenset(task.inputs[position] for position in members), len(names))
            for members in task.poset.classes
        ]
        below = [bits_of(row).tolist() for row in task.poset.down_rows().integers()]
        nodes = [(held[number], frozenset(held[x] for x in row)) for number, row in enumerate(below)]
        coded = [names.setdefault(node, len(names)) for node in nodes]
        types.update(frozenset(coded[x] for x in row) | {-1 - coded[number]} for number, row in enumerate(below))
    return len(types)


def _places(joint: JointTask) -> list[list[list[int]]]:
    """Of every task, the joint task's positions that stand for each position."""
    places: list[list[list[int]]] = [[[] for _ in task.inputs] for task in joint.tasks]
    for position, pairs in enumerate(joint.sources):
        for which, source in pairs:
            places[which][source].append(position)
    return places


def _embedding(joint: JointTask, flow: np.ndarray, task: Task, places: list[list[int]]) -> list[str]:
    for source, found in enumerate(places):
        if len(found) != 1:
            return [f"position {source} has {len(found)} places in the joint task"]
    place = [position for (position,) in places]
    if len(set(place)) < len(place):
        return ["two of its positions have one place in the joint task"]
    problems = []
    for source, position in enumerate(place):
        if joint.inputs[position] != task.inputs[source]:
            problems.append(f"the input of position {source} is not kept")
        if source in task.labels:
            kept = joint.labels.get(position, ())
            targets = kept if joint.conflicts == "keep" else (kept,)
            if position not in joint.labels or not any(same_value(task.labels[source], x) for x in targets):
                problems.append(f"the label of position {source} is not kept")
    own = expanded(task.poset)
    if not np.array_equal(flow[np.ix_(place, place)], own):
        problems.append("its order is not kept")
    if not np.array_equal(flow[place].sum(1), own.sum(1)):
        problems.append("it is no down-closed part")
    return problems
