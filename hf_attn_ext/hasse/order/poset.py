"""The partial order (poset) behind a mask: classes of positions that see each other, and which reaches which.

The terms are those of Davey & Priestley and of Sage: down-set (order ideal), cover relation, chain decomposition.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hf_attn_ext.errors import AttnExtError, short

from .bits import BitMatrix, bits_of
from .chains import chains_and_antichain
from .closure import Order, closure_and_covers, partial_order
from .isomorphism import isomorphic
from .reading import is_whole, read_list, read_mask
from .serial import order_from_json, order_to_json
from .values import read_inputs

if TYPE_CHECKING:
    import networkx


class Poset:
    """Classes of mutually reachable positions, ordered by where information flows after enough layers.

    It is made by :meth:`from_mask`, :meth:`from_covers` or :meth:`from_json` and never changes. Classes are numbered
    along a linear extension: a class has a larger number than all classes below it. ``a <= b`` says that a's
    information reaches b. Two posets are equal if their classes, the order among them and their inputs are equal.

    Attributes:
        classes: the positions of each class, rising.
        inputs: the input of each position as the caller gave it, or None.

    Example:
        >>> poset = Poset.from_mask([[1, 0, 0], [1, 1, 1], [1, 1, 1]])
        >>> poset.classes, poset.covers
        ([(0,), (1, 2)], [(0, 1)])
        >>> poset.leq.tolist()
        [[True, True], [False, True]]
        >>> poset.height(), poset.width(), poset.chains()
        (2, 1, [[0, 1]])

    Source: arXiv 2606.09951 for the classes, the order and the diagram; the algorithms, chains and files are ours.
    """

    def __init__(self, order: Order, inputs: Sequence[Hashable] | None = None) -> None:
        if not isinstance(order, Order):
            raise AttnExtError(f"expected an Order, got {short(order)}; use Poset.from_mask, from_covers or from_json")
        self.classes = order.classes
        self._order = order
        self.inputs = None if inputs is None else tuple(inputs)

    @classmethod
    def from_mask(cls, mask: Any, inputs: Sequence[Hashable] | None = None) -> Poset:
        """Return the order behind a mask.

        Args:
            mask: (N, N), True = may attend; the diagonal is taken as True, as the residual makes it. torch or numpy,
                bool or numbers that are all 0 or 1, nested lists of these, or a :class:`.BitMatrix`.
            inputs: one per position, kept for the diagram.

        Raises:
            AttnExtError: a mask that is not square, empty or not Boolean-like; inputs of another length, unhashable,
                or not equal to themselves.
        """
        bits = read_mask(mask)
        return cls(partial_order(bits), None if inputs is None else read_inputs(inputs, bits.columns))

    @classmethod
    def from_covers(
        cls,
        classes: Sequence[Sequence[int]],
        covers: Sequence[tuple[int, int]],
        inputs: Sequence[Hashable] | None = None,
    ) -> Poset:
        """Return the order whose diagram is given.

        Args:
            classes: positions of each class; every position from 0 on is in exactly one.
            covers: (lower, upper) indices of ``classes``.

        Raises:
            AttnExtError: a missing or repeated position, an index out of range, a cycle, or a pair that is not a cover
                because a longer path joins it.

        Example:
            >>> Poset.from_covers([[0], [1]], [(0, 1)]) == Poset.from_mask([[1, 0], [1, 1]])
            True
        """
        members = _read_classes(classes)
        count, rows = len(members), [0] * len(members)
        pairs: list[tuple[Any, ...]] = [tuple(read_list(pair, "a cover")) for pair in read_list(covers, "covers")]
        for pair in pairs:
            if len(pair) != 2 or not all(is_whole(end) and 0 <= end < count for end in pair) or pair[0] == pair[1]:
                raise AttnExtError(
                    f"a cover must be a pair of different class numbers from 0 to {count - 1}, got {short(pair)}"
                )
            lower, upper = map(int, pair)
            rows[upper] |= 1 << lower
        order = partial_order(BitMatrix.from_integers(rows, count))
        if len(order.classes) < count:
            cycle = next(numbers for numbers in order.classes if len(numbers) > 1)
            raise AttnExtError(f"covers run in a circle through classes {list(cycle)}; an order has no cycle")
        if len(order.lower) < sum(row.bit_count() for row in rows):
            known = {(order.classes[a][0], order.classes[b][0]) for a, b in _pairs(order)}
            extra = next(pair for pair in pairs if pair not in known)
            raise AttnExtError(f"{extra!r} is not a cover: a longer path already joins the two")
        renumbered = [members[numbers[0]] for numbers in order.classes]
        given = None if inputs is None else read_inputs(inputs, sum(map(len, members)))
        return cls(order._replace(classes=renumbered), given)

    def __len__(self) -> int:
        return len(self.classes)

    def __repr__(self) -> str:
        return f"Poset({self.num_positions} positions, {len(self)} classes, {self.num_covers} covers)"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Poset):
            return NotImplemented
        if self is other:
            return True
        if self.inputs != other.inputs or len(self) != len(other) or set(self.classes) != set(other.classes):
            return False
        return self._named_covers() == other._named_covers()

    def __hash__(self) -> int:
        return hash(frozenset(self.classes))

    @property
    def num_positions(self) -> int:
        """The number N of positions."""
        return sum(map(len, self.classes))

    @property
    def num_covers(self) -> int:
        """The number of pairs in :attr:`covers`, without making the list."""
        return len(self._order.lower)

    @functools.cached_property
    def class_of(self) -> np.ndarray:
        """The class of every position, int64 (N,)."""
        class_of = np.empty(self.num_positions, np.int64)
        for number, positions in enumerate(self.classes):
            class_of[list(positions)] = number
        return class_of

    @functools.cached_property
    def leq(self) -> torch.Tensor:
        """torch.bool (C, C): ``leq[a, b]`` says that a's information reaches b. Unpacked on first access."""
        return torch.from_numpy(np.ascontiguousarray(self.down_rows().dense().T))

    def reaches(self, lower: int, upper: int) -> bool:
        """Return whether ``lower <= upper``, without unpacking the order."""
        return bool(self._order.down[self._index(upper)] >> self._index(lower) & 1)

    def down_rows(self) -> BitMatrix:
        """Return the down-sets (order ideals) as bit rows (C, C): row b holds every a <= b."""
        return BitMatrix.from_integers(self._order.down, len(self))

    @functools.cached_property
    def covers(self) -> list[tuple[int, int]]:
        """The cover relation: pairs (lower, upper) with nothing in between, sorted by the upper, then the lower."""
        return sorted(_pairs(self._order), key=lambda pair: (pair[1], pair[0]))

    def lower_covers(self, number: int) -> list[int]:
        """Return the lower covers of a class, rising."""
        start, stop = self._order.starts[self._index(number) :][:2]
        return sorted(self._order.lower[start:stop].tolist())

    def lower_cover_lists(self) -> list[list[int]]:
        """Return the lower covers of every class, falling; faster than one call per class."""
        starts, lower = self._order.starts.tolist(), self._order.lower.tolist()
        return [lower[start:stop] for start, stop in itertools.pairwise(starts)]

    def upper_covers(self, number: int) -> list[int]:
        """Return the upper covers of a class, rising."""
        starts, upper = self._upper
        start, stop = starts[self._index(number) :][:2]
        covers: list[int] = upper[start:stop].tolist()
        return covers

    def below_others(self) -> np.ndarray:
        """Return the classes that are below another class, rising, int64."""
        return np.unique(self._order.lower).astype(np.int64)

    def down_set(self, number: int) -> frozenset[int]:
        """Return the down-set (order ideal) that a class generates: the class and all whose information reaches it."""
        return frozenset(bits_of(self._order.down[self._index(number)]).tolist())

    def hasse_diagram(self) -> networkx.DiGraph:
        """Return the diagram: a node per class with ``positions`` and, if given, ``inputs``; edges lower -> upper."""
        import networkx

        graph = networkx.DiGraph()
        for number, positions in enumerate(self.classes):
            graph.add_node(number, positions=positions)
            if self.inputs is not None:
                graph.nodes[number]["inputs"] = tuple(self.inputs[position] for position in positions)
        graph.add_edges_from(self.covers)
        return graph

    def linear_extension(self) -> list[int]:
        """Return the class numbers so that each follows all below it; classes are numbered that way."""
        return list(range(len(self)))

    def levels(self) -> list[list[int]]:
        """Return classes by the length of the longest chain below them; the first level holds the minimal ones."""
        levels: list[list[int]] = [[] for _ in range(self.height())]
        for number, level in enumerate(self.level_of.tolist()):
            levels[level].append(number)
        return levels

    def height(self) -> int:
        """Return the number of classes in a longest chain."""
        return int(self.level_of.max()) + 1

    def width(self) -> int:
        """Return the number of classes in a largest antichain, which equals that of :meth:`chains` (Dilworth)."""
        return len(self._chains[0])

    def chains(self) -> list[list[int]]:
        """Return a chain decomposition with the fewest chains: every class is in one; each from below, by lowest class.

        Sage calls it ``dilworth_decomposition``.
        """
        return [list(chain) for chain in self._chains[0]]

    def antichain(self) -> list[int]:
        """Return a largest antichain; it has as many classes as there are :meth:`chains`, which proves both optimal."""
        return list(self._chains[1])

    def dual(self) -> Poset:
        """Return the dual order; class c becomes class ``len(self) - 1 - c``."""
        last = len(self) - 1
        rows = [0] * len(self)
        for lower, upper in _pairs(self._order):
            rows[last - lower] |= 1 << (last - upper)
        return Poset(Order(self.classes[::-1], *closure_and_covers(rows)), self.inputs)

    def is_isomorphic(self, other: Poset) -> bool:
        """Return whether the classes can be matched so that the order is the same; sizes and inputs do not matter.

        Raises:
            AttnExtError: ``other`` is not a poset.
        """
        if not isinstance(other, Poset):
            raise AttnExtError(f"a poset is compared with another poset, got {short(other)}")
        return isomorphic(self, other)

    def to_json(self) -> str:
        """Return classes, covers and inputs as JSON text.

        Raises:
            AttnExtError: an input that is not a text, finite number, bool, None, or tuple of these.
        """
        return order_to_json(self.classes, self.covers, self.inputs)

    @classmethod
    def from_json(cls, text: str) -> Poset:
        """Read what :meth:`to_json` wrote.

        Raises:
            AttnExtError: a text that is not JSON or not a poset.

        Example:
            >>> poset = Poset.from_mask([[1, 0], [1, 1]])
            >>> Poset.from_json(poset.to_json()) == poset
            True
        """
        return cls.from_covers(*order_from_json(text))

    @functools.cached_property
    def _upper(self) -> tuple[np.ndarray, np.ndarray]:
        """Upper covers in the layout of the lower ones in ``Order``, rising."""
        owners = np.repeat(np.arange(len(self)), np.diff(self._order.starts))
        starts = np.concatenate([[0], np.cumsum(np.bincount(self._order.lower, minlength=len(self)))])
        return starts, owners[np.argsort(self._order.lower, kind="stable")]

    @functools.cached_property
    def level_of(self) -> np.ndarray:
        """The level of every class, int64 (C,): the length of the longest chain below it."""
        levels = np.zeros(len(self), np.int64)
        starts, lower = self._order.starts.tolist(), self._order.lower
        for number, (start, stop) in enumerate(itertools.pairwise(starts)):
            if start < stop:
                levels[number] = levels[lower[start:stop]].max() + 1
        return levels

    @functools.cached_property
    def _chains(self) -> tuple[list[list[int]], list[int]]:
        return chains_and_antichain(self._order.down)

    def _named_covers(self) -> set[tuple[int, int]]:
        """Covers by the classes' first positions: independent of the numbering."""
        return {(self.classes[lower][0], self.classes[upper][0]) for lower, upper in _pairs(self._order)}

    def _index(self, number: int) -> int:
        if not is_whole(number) or not 0 <= number < len(self):
            raise AttnExtError(f"there is no class {short(number)}; the classes are 0 to {len(self) - 1}")
        return number


def _read_classes(classes: Any) -> list[tuple[int, ...]]:
    members = [read_list(positions, "a class") for positions in read_list(classes, "classes")]
    positions = [position for some in members for position in some]
    whole = all(map(is_whole, positions))
    if not positions or not all(members) or not whole or sorted(positions) != list(range(len(positions))):
        raise AttnExtError(f"classes must hold every position from 0 on once, got {short(members)}")
    return [tuple(sorted(map(int, some))) for some in members]


def expanded(poset: Poset) -> np.ndarray:
    """Return the order among positions, numpy bool (N, N): [i, j] says that j's information reaches i."""
    down = poset.down_rows().dense()
    if len(poset) == poset.num_positions and np.array_equal(poset.class_of, np.arange(len(poset))):
        return down
    return np.take(down[poset.class_of], poset.class_of, axis=1)


def _pairs(order: Order) -> list[tuple[int, int]]:
    owners = np.repeat(np.arange(len(order.classes)), np.diff(order.starts))
    return list(zip(order.lower.tolist(), owners.tolist(), strict=True))
