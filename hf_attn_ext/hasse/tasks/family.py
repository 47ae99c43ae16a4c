"""Task families from which masks are derived, and the derivation itself.

A task family says what a model is asked at inference: one task per question. The minimal joint task of the family is
the mask that trains all of them in one pass. Source: arXiv 2606.09951; the families of the masks outside its three
case studies are ours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from hf_attn_ext.errors import AttnExtError, short
from hf_attn_ext.hasse.order.reading import is_whole, read_list
from hf_attn_ext.hasse.spec import MaskSpec, check_spec

from .joint import minimal_joint_task
from .task import Task


@dataclasses.dataclass
class TaskFamily:
    """Tasks, and where the mask's layout has the positions of each.

    Attributes:
        tasks: the tasks.
        positions: for each task, the position in the mask's layout of each of its own positions. The derivation uses
            it only to list the derived positions in the layout's order.
    """

    tasks: list[Task] = dataclasses.field(default_factory=list)
    positions: list[tuple[int, ...]] = dataclasses.field(default_factory=list)

    def add(
        self, inputs: Iterable[Hashable], labels: Mapping[int, int], mask: Tensor, positions: Iterable[int]
    ) -> None:
        """Add a task; see :class:`.Task` for the first three arguments."""
        self.tasks.append(Task(list(inputs), dict(labels), mask))
        self.positions.append(tuple(positions))


def groups(sizes: Sequence[int]) -> Tensor:
    """Return the dense mask of consecutive groups: each group sees itself and all groups before it.

    Args:
        sizes: positions in each group; groups of 0 are skipped.

    Returns:
        bool ``(sum, sum)``.

    Raises:
        AttnExtError: a size that is not a whole number of at least 0.

    Example:
        >>> groups([1, 2]).int().tolist()
        [[1, 0, 0], [1, 1, 1], [1, 1, 1]]
    """
    sizes = read_list(sizes, "group sizes")
    if not all(is_whole(size) and size >= 0 for size in sizes):
        raise AttnExtError(f"group sizes must be whole numbers of at least 0, got {short(sizes)}")
    group = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes, dtype=torch.int64))
    return group[:, None] >= group[None, :]


def chain(length: int) -> list[int]:
    """Return the sizes for :func:`groups` of ``length`` positions, one after the other."""
    return [1] * length


def derive(spec: MaskSpec) -> MaskSpec:
    """Derive a mask from its task family, by way of the minimal joint task of the family.

    The closed form determines only the order of the positions. The inputs, the mask and the labels are the
    result of the derivation.

    Args:
        spec: a mask that has a task family.

    Returns:
        The derived mask, in the layout of ``spec``; equal to ``spec`` if the closed form is right.

    Raises:
        AttnExtError: the mask has no task family; or the nodes of the joint task and the positions of the layout do
            not match one to one.

    Example:
        >>> from hf_attn_ext.hasse import masks
        >>> spec = masks.butterfly(4)
        >>> bool((derive(spec).dense() == spec.dense()).all())
        True
    """
    check_spec(spec)
    if spec.task_family is None:
        raise AttnExtError(f"{spec.title} has no task family to derive it from")
    family = spec.task_family()
    if not isinstance(family, TaskFamily):
        raise AttnExtError(f"{spec.title}: task_family must return a TaskFamily, got {short(family)}")
    joint = minimal_joint_task(family.tasks)
    if spec.window is not None:
        joint = joint.sparsify(spec.window, within="full")
    nodes: dict[int, int] = {}
    for node, sources in enumerate(joint.sources):
        positions = {family.positions[task][position] for task, position in sources}
        if len(positions) > 1:
            raise AttnExtError(f"{spec.title}: one node stands for the positions {sorted(positions)}")
        if nodes.setdefault(positions.pop(), node) != node:
            raise AttnExtError(f"{spec.title}: two nodes stand for one position: {nodes}")
    if sorted(nodes) != list(range(len(spec))):
        raise AttnExtError(
            f"{spec.title}: the task family names the positions {short(sorted(nodes))}, "
            f"but the mask has positions 0 to {len(spec) - 1}"
        )
    joint = joint.permuted([nodes[position] for position in range(len(spec))])
    return MaskSpec.from_mask(
        joint.mask,
        labels=joint.labels,
        inputs=joint.inputs,
        roles=spec.roles,
        position_ids=spec.position_ids,
        tokens=spec.tokens,
        name=spec.name,
        names=spec.names,
    )
