"""Check of a joint task by the definitions alone: is it a smallest common supergraph?"""

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

SMALL = 1000  # number of ways to unite nodes up to which all are tried


@dataclasses.dataclass(frozen=True)
class Verification:
    """Result of :meth:`.JointTask.verify`; true if there is no problem.

    Attributes:
        nodes: classes of the joint task.
        types: equivalence classes of the family's nodes. A down-closed part keeps what is upstream, so nodes of
            different types stay different in every common supergraph: none has fewer nodes than this.
        exhaustive: nodes of the smallest supergraph among all ways to unite nodes, or None if there are too many ways.
        problems: one line each.
    """

    nodes: int
    types: int
    exhaustive: int | None
    problems: tuple[str, ...]

    def __bool__(self) -> bool:
        return not self.problems


def verify(joint: JointTask) -> Verification:
    """Check a joint task; see :meth:`.JointTask.verify`."""
    problems = []
    flow = expanded(joint.poset)
    for which, (task, images) in enumerate(zip(joint.tasks, _images(joint), strict=True)):
        problems += [f"task {which}: {problem}" for problem in _embedding(joint, flow, task, images)]
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
    """Return the number of different nodes of a task family, by their labelled down-sets in full.

    A node is described by all nodes of its down-set, each with its inputs and those of its own down-set. As inputs
    differ within a task, two descriptions are equal exactly if an isomorphism keeps the inputs.
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


def _images(joint: JointTask) -> list[list[list[int]]]:
    """For every task and each of its positions, the positions of the joint task that stand for it."""
    images: list[list[list[int]]] = [[[] for _ in task.inputs] for task in joint.tasks]
    for position, pairs in enumerate(joint.sources):
        for which, source in pairs:
            images[which][source].append(position)
    return images


def _embedding(joint: JointTask, flow: np.ndarray, task: Task, images: list[list[int]]) -> list[str]:
    for source, positions in enumerate(images):
        if len(positions) != 1:
            return [f"position {source} has {len(positions)} positions in the joint task"]
    image = [position for (position,) in images]
    if len(set(image)) < len(image):
        return ["two of its positions have the same position in the joint task"]
    problems = []
    for source, position in enumerate(image):
        if joint.inputs[position] != task.inputs[source]:
            problems.append(f"the input of position {source} is not kept")
        if source in task.labels:
            kept = joint.labels.get(position, ())
            targets = kept if joint.conflicts == "keep" else (kept,)
            if position not in joint.labels or not any(same_value(task.labels[source], x) for x in targets):
                problems.append(f"the label of position {source} is not kept")
    own = expanded(task.poset)
    if not np.array_equal(flow[np.ix_(image, image)], own):
        problems.append("its order is not kept")
    if not np.array_equal(flow[image].sum(1), own.sum(1)):
        problems.append("it is not a down-closed part")
    return problems
