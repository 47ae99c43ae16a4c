"""The minimal joint task: the smallest diagram that contains the diagrams of a whole task family."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from hf_attn_ext.errors import AttnExtError, short, suggest
from hf_attn_ext.hasse.order.bits import BitMatrix, row_of
from hf_attn_ext.hasse.order.reading import is_whole, read_list, read_mask
from hf_attn_ext.hasse.order.values import read_inputs, read_labels, same_value

from .equivalence import equivalence_classes
from .task import Task, check_distinct, mask_of_classes
from .verify import Verification, verify

if TYPE_CHECKING:
    from typing_extensions import Self

CONFLICTS = ("error", "keep")


class JointTask(Task):
    """A task that contains all tasks of a family, made by :func:`minimal_joint_task`.

    Inputs may be repeated: a token has one node for every context in which it is seen.

    Attributes:
        inputs, labels, mask: as in :class:`.Task`. The mask of :func:`minimal_joint_task` is dense. The methods that
            change a task, such as :meth:`sparsify`, return a joint task.
        tasks: the task family, a tuple.
        sources: for every position, the ``(task, position)`` pairs for which it stands, in the family's order.
        conflicts: "error", or "keep", where every label is a tuple of different targets.

    Example:
        >>> short, long = Task("a", {0: "b"}, [[1]]), Task("ab", {1: "c"}, [[1, 0], [1, 1]])
        >>> joint = minimal_joint_task([short, long])
        >>> joint.inputs, joint.labels, joint.sources
        (('a', 'b'), {0: 'b', 1: 'c'}, [[(0, 0), (1, 0)], [(1, 1)]])

    Source: arXiv 2606.09951.
    """

    def __init__(
        self,
        inputs: Sequence[Hashable],
        labels: dict[int, Any],
        mask: BitMatrix,
        tasks: Sequence[Task],
        sources: Sequence[Sequence[tuple[int, int]]],
        conflicts: str = "error",
    ) -> None:
        if not isinstance(mask, BitMatrix):
            raise AttnExtError(
                f"a joint task comes from minimal_joint_task; its mask is a BitMatrix, not {short(mask)}"
            )
        size = mask.columns
        self._set(read_inputs(inputs, size), read_labels(labels, size), read_mask(mask))
        self.tasks = _read_tasks(tasks)
        self.sources = [read_list(pairs, "sources") for pairs in read_list(sources, "sources")]
        if len(self.sources) != size or not all(map(self._is_source, itertools.chain(*self.sources))):
            raise AttnExtError(
                f"sources must list (task, position) pairs for each of {size} positions, got {short(self.sources)}"
            )
        self.conflicts = conflicts

    def _is_source(self, pair: Any) -> bool:
        whole = isinstance(pair, tuple) and len(pair) == 2 and all(map(is_whole, pair))
        return whole and 0 <= pair[0] < len(self.tasks) and 0 <= pair[1] < len(self.tasks[pair[0]])

    def verify(self) -> Verification:
        """Check by the definitions alone that this is a common supergraph of the family and that no smaller one exists.

        Returns:
            A :class:`.Verification`, true if there is no problem; its ``problems`` name what is wrong.

        Example:
            >>> bool(minimal_joint_task([Task("a", {}, [[1]])]).verify())
            True
        """
        return verify(self)

    def _rebuilt(self, order: Sequence[int], labels: dict[int, Any], bits: BitMatrix) -> Self:
        inputs, sources = [self.inputs[old] for old in order], [self.sources[old] for old in order]
        return type(self)(inputs, labels, bits, self.tasks, sources, self.conflicts)


def minimal_joint_task(tasks: Sequence[Task], conflicts: str = "error") -> JointTask:
    """Return the smallest task that contains every task of a family as a down-closed part.

    Its nodes are the family's nodes up to equivalence (see :func:`.equivalence_classes`), its order is induced, its
    mask is the order. Positions are in the order in which the family first names them, each after those it sees.

    Args:
        tasks: at least one.
        conflicts: what to do if nodes that become one have different labels: "error" raises; "keep" keeps all, and
            every label, also a single one, becomes a tuple of different targets in the family's order.

    Raises:
        AttnExtError: no tasks; a value that is not a task; a joint task that repeats an input; inputs such as 1 and
            True, which are equal in Python but differ in meaning; conflicting labels; an unknown ``conflicts``.

    Example:
        >>> family = [Task(range(n), {n - 1: n}, torch.ones(n, n).tril()) for n in range(1, 5)]
        >>> minimal_joint_task(family).mask.int().tolist()
        [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]

    Source: arXiv 2606.09951; several targets at a node are ours.
    """
    if not isinstance(conflicts, str) or conflicts not in CONFLICTS:
        raise AttnExtError(
            f"unknown conflicts {short(conflicts)}.{suggest(conflicts, CONFLICTS)} Choose from: {', '.join(CONFLICTS)}"
        )
    tasks = _read_tasks(tasks)
    numbers = equivalence_classes(tasks)
    inputs: list[Hashable] = []
    sources: list[list[tuple[int, int]]] = []
    members: list[list[int]] = []  # the joint task's positions of every node
    down: list[int] = []  # the bits of every node's positions and of all below
    for which, (task, own) in enumerate(zip(tasks, numbers, strict=True)):
        lower = task.poset.lower_cover_lists()
        for node, (number, positions) in enumerate(zip(own, task.poset.classes, strict=True)):
            if number == len(members):
                members.append(list(range(len(inputs), len(inputs) + len(positions))))
                inputs += [task.inputs[position] for position in positions]
                sources += [[] for _ in positions]
                row = row_of(members[number])
                for below in lower[node]:
                    row |= down[own[below]]
                down.append(row)
            position_of = {inputs[position]: position for position in members[number]}
            for position in positions:
                sources[position_of[task.inputs[position]]].append((which, position))
    mask = mask_of_classes(members, down, len(inputs))
    return JointTask(inputs, _labels(tasks, inputs, sources, conflicts), mask, tasks, sources, conflicts)


def _read_tasks(tasks: Sequence[Task]) -> tuple[Task, ...]:
    if isinstance(tasks, Task):
        raise AttnExtError("tasks must be a list of tasks, got one task; put it in a list")
    tasks = tuple(read_list(tasks, "tasks"))
    if not tasks:
        raise AttnExtError("tasks must hold at least one task, got an empty list")
    for number, task in enumerate(tasks):
        if not isinstance(task, Task):
            raise AttnExtError(f"tasks[{number}] must be a Task, got {type(task).__name__}")
        if isinstance(task, JointTask):
            check_distinct(task.inputs, f"tasks[{number}] is a joint task, give the tasks it was made from instead: ")
    _check_kinds(tasks)
    return tasks


def _check_kinds(tasks: Sequence[Task]) -> None:
    """Raise where inputs of two tasks are equal in Python only, as 1 and True: they would become one node."""
    first: dict[Hashable, tuple[Hashable, int]] = {}
    for number, task in enumerate(tasks):
        for value in task.inputs:
            other, at = first.setdefault(value, (value, number))
            if other is not value and not same_value(other, value):
                raise AttnExtError(
                    f"inputs {short(other)} of task {at} and {short(value)} of task {number} are equal in Python but "
                    "differ in meaning; write both as a number or both as a truth value"
                )


def _labels(
    tasks: Sequence[Task], inputs: list[Hashable], sources: list[list[tuple[int, int]]], conflicts: str
) -> dict[int, Any]:
    labels = {}
    for position, pairs in enumerate(sources):
        targets: list[Any] = []
        named: list[tuple[int, int]] = []
        for which, source in pairs:
            if source not in tasks[which].labels:
                continue
            label = tasks[which].labels[source]
            if any(same_value(label, target) for target in targets):
                continue
            targets.append(label)
            named.append((which, source))
        if len(targets) > 1 and conflicts == "error":
            (first, at), (second, other) = named[:2]
            raise AttnExtError(
                f"position {position} of the joint task (input {short(inputs[position])}) has two labels: "
                f"{short(targets[0])} by task {first} at {at}, {short(targets[1])} by task {second} at {other}; "
                "conflicts='keep' keeps both as targets"
            )
        if targets:
            labels[position] = tuple(targets) if conflicts == "keep" else targets[0]
    return labels
