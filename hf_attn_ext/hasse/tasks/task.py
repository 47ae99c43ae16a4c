"""A training task as the source defines it: inputs, labels and a mask."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch

from hf_attn_ext.errors import AttnExtError, short, suggest
from hf_attn_ext.hasse.order.bits import BitMatrix, row_of
from hf_attn_ext.hasse.order.closure import partial_order
from hf_attn_ext.hasse.order.flow import convergence_depth
from hf_attn_ext.hasse.order.poset import Poset, expanded
from hf_attn_ext.hasse.order.reading import is_whole, read_list, read_mask
from hf_attn_ext.hasse.order.values import read_inputs, read_labels

WITHIN = ("cycle", "full")


class Task:
    """Inputs at positions, labels at some of them, and who may attend to whom.

    Args:
        inputs: one a position, hashable and all different: a token together with its position.
        labels: ``{position: label}``.
        mask: (N, N), True = may attend; as :meth:`.Poset.from_mask` takes it.

    Attributes:
        inputs: a tuple.
        labels: a dictionary, by position.
        mask: torch.bool (N, N), as given.

    Raises:
        AttnExtError: an input that is unhashable, a tensor, not equal to itself (NaN, also inside a tuple), or repeated
            (two equal ones with the same context would be merged, and merging inside one task would change the
            softmax's weights); a label that is a tensor or not equal to itself, or at a position that is not there; a
            mask of another size or not Boolean-like.

    Example:
        >>> task = Task([("a", 0), ("b", 1)], {1: "c"}, [[1, 0], [1, 1]])
        >>> task.is_dense, task.poset.classes, task.depth
        (True, [(0,), (1,)], 1)

    Source: 2606.09951; that equal inputs are refused is ours.
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
        """The order behind the mask; the inputs are on its diagram's nodes."""
        return Poset(partial_order(self._bits), self.inputs)

    @functools.cached_property
    def depth(self) -> int:
        """Layers until nothing more arrives, see :func:`.convergence_depth`."""
        return convergence_depth(self._bits)

    @property
    def is_dense(self) -> bool:
        """Whether one layer lets through all that any number of layers does (with the residual): mask = limit."""
        return self._bits.with_diagonal(True) == self._limit()

    def densify(self) -> Task:
        """Return the task with the limit of the flow as its mask: the same diagram, one layer deep."""
        return self._with_mask(self._limit())

    def sparsify(self, window: int = 1, within: str = "cycle") -> Task:
        """Return the task with the same diagram and fewer edges; its ``depth`` says how many layers it needs then.

        Every class sees itself and the classes at most ``window`` covers below it. A larger window needs more edges and
        fewer layers; on a chain of single positions it is the sliding window of ``window + 1`` positions.

        Args:
            window: covers, from 1 on.
            within: "cycle" joins the positions of a class in a ring, of which only the first sees other classes'
                first: with a window of 1, no mask with the same diagram has fewer edges. "full" lets every position
                see its whole class, and all of the classes seen.

        Raises:
            AttnExtError: a window below 1, an unknown ``within``.

        Example:
            >>> sparse = Task("abcd", {}, torch.ones(4, 4).tril()).sparsify()
            >>> sparse.mask.sum().item(), sparse.depth
            (7, 3)

        Source: 2606.09951 names sparse variants; this construction is ours.
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
        for members, seen in zip(
            classes, _near(self.poset, window, [1 << first for first, *_ in classes]), strict=True
        ):
            for position, previous in zip(members, (members[-1], *members[:-1]), strict=True):
                rows[position] |= 1 << previous
            rows[members[0]] |= seen
        return self._with_mask(BitMatrix.from_integers(rows, len(self)))

    def permuted(self, order: Sequence[int]) -> Task:
        """Return the same task with its positions in another order: the new position i is the old ``order[i]``.

        Raises:
            AttnExtError: ``order`` is no permutation of the positions.
        """
        order = self._read_order(order)
        place = {old: new for new, old in enumerate(order)}
        labels = {place[old]: label for old, label in self.labels.items()}
        return self._rebuilt(order, dict(sorted(labels.items())), self._bits.reordered(order))

    def _with_mask(self, bits: BitMatrix) -> Task:
        return self._rebuilt(range(len(self)), self.labels, bits)

    def _rebuilt(self, order: Sequence[int], labels: dict[int, Any], bits: BitMatrix) -> Task:
        return Task([self.inputs[old] for old in order], labels, bits)

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
    """Raise :class:`AttnExtError` where an input comes twice."""
    first: dict[Hashable, int] = {}
    for position, value in enumerate(inputs):
        if first.setdefault(value, position) != position:
            raise AttnExtError(
                f"{name}input {short(value)} is repeated at positions {first[value]} and {position}; inputs within one "
                "task must differ (a token with its position), as equal ones may be merged, and merging inside one "
                "task changes the softmax's weights"
            )


def mask_of_classes(classes: Sequence[Sequence[int]], seen: Sequence[int], count: int) -> BitMatrix:
    """Return the mask (count, count) whose row, for every position of a class, is the bits in ``seen`` of the class."""
    rows = [0] * count
    for members, row in zip(classes, seen, strict=True):
        for position in members:
            rows[position] = row
    return BitMatrix.from_integers(rows, count)


def _near(poset: Poset, window: int, own: list[int]) -> list[int]:
    """The united ``own`` bits of the classes at most ``window`` covers below each, and of itself."""
    lower = poset.lower_cover_lists()
    near = own
    for _ in range(min(window, len(poset) - 1)):
        wider = list(own)
        for number, some in enumerate(lower):
            for below in some:
                wider[number] |= near[below]
        near = wider
    return near
