"""A training task: inputs, labels and a mask."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hf_attn_ext.errors import AttnExtError, short, suggest
from hf_attn_ext.hasse.order.bits import BitMatrix, row_of
from hf_attn_ext.hasse.order.closure import partial_order
from hf_attn_ext.hasse.order.flow import convergence_depth
from hf_attn_ext.hasse.order.poset import Poset, expanded
from hf_attn_ext.hasse.order.reading import is_whole, read_list, read_mask
from hf_attn_ext.hasse.order.values import read_inputs, read_labels

if TYPE_CHECKING:
    from typing_extensions import Self

WITHIN = ("cycle", "full")


class Task:
    """Inputs at positions, labels at some of them, and a mask.

    Args:
        inputs: one per position, hashable and all different, such as a token with its position.
        labels: ``{position: label}``.
        mask: (N, N), True = may attend, in any form that :meth:`.Poset.from_mask` takes.

    Attributes:
        inputs: a tuple.
        labels: a dictionary, by position.
        mask: torch.bool (N, N), as given.

    Raises:
        AttnExtError: an input that is unhashable, a tensor, not equal to itself (NaN, also inside a tuple), or
            repeated; a label that is a tensor, not equal to itself, or at a position out of range; a mask of another
            size or not Boolean-like.

    Example:
        >>> task = Task([("a", 0), ("b", 1)], {1: "c"}, [[1, 0], [1, 1]])
        >>> task.is_dense, task.poset.classes, task.depth
        (True, [(0,), (1,)], 1)

    Source: arXiv 2606.09951. We refuse equal inputs: merging them would change the softmax's weights.
    """

    def __init__(self, inputs: Iterable[Hashable], labels: Mapping[int, Any], mask: Any) -> None:
        bits = read_mask(mask)
        self._set(read_inputs(inputs, bits.columns), read_labels(labels, bits.columns), bits)
        check_distinct(self.inputs)

    def _set(self, inputs: tuple[Hashable, ...], labels: dict[int, Any], bits: BitMatrix) -> None:
        self.inputs, self.labels, self._bits = inputs, labels, bits
        self.mask = torch.from_numpy(bits.dense())

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} positions, {len(self.labels)} labelled)"

    @functools.cached_property
    def poset(self) -> Poset:
        """The partial order behind the mask; its diagram's nodes hold the inputs."""
        return Poset(partial_order(self._bits), self.inputs)

    @functools.cached_property
    def depth(self) -> int:
        """Layers after which no further information arrives, see :func:`.convergence_depth`."""
        return convergence_depth(self._bits)

    @property
    def is_dense(self) -> bool:
        """Whether one layer passes on all that any number of layers does (with the residual): mask = limit."""
        return self._bits.with_diagonal(True) == self._limit()

    def densify(self) -> Self:
        """Return the task with the limit of the flow as its mask: the same diagram, one layer deep."""
        return self._with_mask(self._limit())

    def sparsify(self, window: int = 1, within: str = "cycle") -> Self:
        """Return the task with the same diagram, fewer edges and a larger ``depth``.

        Every class sees itself and the classes at most ``window`` covers below it. A larger window has more edges and
        needs fewer layers; on a chain of single positions it is the sliding window of ``window + 1`` positions.

        Args:
            window: covers, at least 1.
            within: "cycle" joins the positions of a class in a ring; only its first position sees the first positions
                of other classes. With a window of 1, no mask with the same diagram has fewer edges. "full" lets every
                position see its whole class and all positions of the classes seen.

        Raises:
            AttnExtError: a window below 1, an unknown ``within``.

        Example:
            >>> sparse = Task("abcd", {}, torch.ones(4, 4).tril()).sparsify()
            >>> sparse.mask.sum().item(), sparse.depth
            (7, 3)

        Source: arXiv 2606.09951 mentions sparse variants; this construction is ours.
        """
        if not is_whole(window) or window < 1:
            raise AttnExtError(f"window must be a whole number of at least 1, got {short(window)}")
        if not isinstance(within, str) or within not in WITHIN:
            raise AttnExtError(
                f"unknown within {short(within)}.{suggest(within, WITHIN)} Choose from: {', '.join(WITHIN)}"
            )
        classes = self.poset.classes
        if within == "full":
            seen = _near(self.poset, window, [row_of(members) for members in classes])
            return self._with_mask(mask_of_classes(classes, seen, len(self)))
        rows = [1 << position for position in range(len(self))]
        firsts = _near(self.poset, window, [1 << first for first, *_ in classes])
        for members, row in zip(classes, firsts, strict=True):
            for position, previous in zip(members, (members[-1], *members[:-1]), strict=True):
                rows[position] |= 1 << previous
            rows[members[0]] |= row
        return self._with_mask(BitMatrix.from_integers(rows, len(self)))

    def permuted(self, order: Sequence[int]) -> Self:
        """Return the same task with its positions in another order: the new position i is the old ``order[i]``.

        Raises:
            AttnExtError: ``order`` is not a permutation of the positions.
        """
        order = self._read_order(order)
        new_position = {old: new for new, old in enumerate(order)}
        labels = {new_position[old]: label for old, label in self.labels.items()}
        return self._rebuilt(order, dict(sorted(labels.items())), self._bits.reordered(np.array(order)))

    def _with_mask(self, bits: BitMatrix) -> Self:
        return self._rebuilt(range(len(self)), self.labels, bits)

    def _rebuilt(self, order: Sequence[int], labels: dict[int, Any], bits: BitMatrix) -> Self:
        return type(self)([self.inputs[old] for old in order], labels, bits)

    def _limit(self) -> BitMatrix:
        return BitMatrix.from_dense(expanded(self.poset))

    def _read_order(self, order: Sequence[int]) -> list[int]:
        read = read_list(order.tolist() if isinstance(order, torch.Tensor) else order, "the new order")
        if not all(map(is_whole, read)) or sorted(read) != list(range(len(self))):
            raise AttnExtError(
                f"the new order must hold every position from 0 to {len(self) - 1} once, got {short(read)}"
            )
        return list(map(int, read))


def check_distinct(inputs: Sequence[Hashable], name: str = "") -> None:
    """Raise :class:`AttnExtError` where an input is repeated."""
    first: dict[Hashable, int] = {}
    for position, value in enumerate(inputs):
        if first.setdefault(value, position) != position:
            raise AttnExtError(
                f"{name}input {short(value)} is repeated at positions {first[value]} and {position}; inputs within one "
                "task must differ (a token with its position), as equal ones may be merged, and merging inside one "
                "task changes the softmax's weights"
            )


def mask_of_classes(classes: Sequence[Sequence[int]], seen: Sequence[int], count: int) -> BitMatrix:
    """Return the mask (count, count) in which every position of a class has the bits of the class in ``seen``."""
    rows = [0] * count
    for members, row in zip(classes, seen, strict=True):
        for position in members:
            rows[position] = row
    return BitMatrix.from_integers(rows, count)


def _near(poset: Poset, window: int, own: list[int]) -> list[int]:
    """For each class, the union of the ``own`` bits of the class and of those at most ``window`` covers below it."""
    lower = poset.lower_cover_lists()
    near = own
    for _ in range(min(window, len(poset) - 1)):
        wider = list(own)
        for number, some in enumerate(lower):
            for below in some:
                wider[number] |= near[below]
        near = wider
    return near
