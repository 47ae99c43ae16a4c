"""Families of tasks that masks are derived from, and the derivation itself.

A family says what a model will be asked at inference, one task a question. Their minimal joint task is the mask that
trains all of them in one pass. Source: arXiv 2606.09951; the families of the masks outside its three case studies
are ours.
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
class Family:
    """Tasks, and where the closed form of the mask keeps the positions of each.

    Attributes:
        tasks: the tasks.
        places: for each task, the position in the mask's layout of each of its own positions. The derivation does
            not use it, except to compare: it puts derived positions in the layout's order.
    """

    tasks: list[Task] = dataclasses.field(default_factory=list)
    places: list[tuple[int, ...]] = dataclasses.field(default_factory=list)

    def add(self, inputs: Iterable[Hashable], labels: Mapping[int, int], mask: Tensor, places: Iterable[int]) -> None:
        """Add a task; see :class:`Task` for the first three arguments."""
        self.tasks.append(Task(list(inputs), dict(labels), mask))
        self.places.append(tuple(places))


def groups(sizes: Sequence[int]) -> Tensor:
    """The dense mask of groups in a row: each sees itself whole, and all before it.

    Args:
        sizes: positions in each group; groups of 0 are skipped.

    Returns:
        bool ``(sum, sum)``.

    Raises:
        AttnExtError: a size that is no whole number of at least 0.

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
    """Sizes for :func:`groups`: ``length`` positions, one after the other."""
    return [1] * length


def derive(spec: MaskSpec) -> MaskSpec:
    """Derive a mask from its family of tasks: family -> minimal joint task -> mask, cut where the mask is cut.

    The closed form is used for one thing only: the order in which positions are listed. What stands in a position,
    what it may see and what it must predict come out of the derivation.

    Args:
        spec: a mask that has a family.

    Returns:
        The derived mask, in the layout of ``spec``; equal to it if the closed form is right.

    Raises:
        AttnExtError: the mask has no family; a node of the joint task stands for two positions of the layout, or two
            nodes for one, or none for one.

    Example:
        >>> from hf_attn_ext.hasse import masks
        >>> spec = masks.butterfly(4)
        >>> bool((derive(spec).dense() == spec.dense()).all())
        True
    """
    check_spec(spec)
    if spec.family is None:
        raise AttnExtError(f"{spec.title} has no family of tasks to derive it from")
    family = spec.family()
    if not isinstance(family, Family):
        raise AttnExtError(f"{spec.title}: its family must be a Family, got {short(family)}")
    joint = minimal_joint_task(family.tasks)
    if spec.window is not None:
        joint = joint.sparsify(spec.window, within="full")
    nodes: dict[int, int] = {}
    for node, sources in enumerate(joint.sources):
        places = {family.places[task][position] for task, position in sources}
        if len(places) > 1:
            raise AttnExtError(f"{spec.title}: one node stands for the positions {sorted(places)}")
        if nodes.setdefault(places.pop(), node) != node:
            raise AttnExtError(f"{spec.title}: two nodes stand for one position: {nodes}")
    if sorted(nodes) != list(range(len(spec))):
        raise AttnExtError(f"{spec.title}: {len(nodes)} positions were derived, {len(spec)} are laid out")
    joint = joint.permuted([nodes[place] for place in range(len(spec))])
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
