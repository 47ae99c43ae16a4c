"""From a mask to its partial order: classes of mutually reachable positions, then down-sets and cover relation.

Rows are Python integers: bit j of row i says that i sees j.
"""

from __future__ import annotations

import itertools
import operator
from array import array
from typing import NamedTuple

import numpy as np

from .bits import BitMatrix, bits_of
from .products import boolean_product


class Order(NamedTuple):
    """A partial order of classes of positions, as :func:`partial_order` returns it.

    Classes are numbered along a linear extension: a class has a larger number than all classes below it.

    Attributes:
        classes: the positions of each class, rising.
        down: the down-set (order ideal) of each class as the bits of an integer: the class and all below it.
        starts, lower: the cover relation: the lower covers of class c are ``lower[starts[c] : starts[c + 1]]``,
            falling; both int32.
    """

    classes: list[tuple[int, ...]]
    down: list[int]
    starts: np.ndarray
    lower: np.ndarray


def partial_order(mask: BitMatrix) -> Order:
    """Return the partial order behind a mask (N, N): mutually reachable positions are one class.

    Source: arXiv 2606.09951 for the order; the algorithm is ours.
    """
    rows = mask.with_diagonal(False)
    integers = rows.integers()
    classes: list[tuple[int, ...]]
    if _only_below(integers):
        classes = [(position,) for position in range(len(integers))]  # already numbered from below, and no cycle
    else:
        classes = strong_classes(integers)
        del integers
        integers = _between_classes(rows, classes)
    return Order(classes, *closure_and_covers(integers))


def strong_classes(rows: list[int]) -> list[tuple[int, ...]]:
    """Return the classes of mutually reachable positions, each after all that it sees.

    A depth-first search keeps the path of unfinished classes. What the last class sees is new (the path grows), on the
    path (all from there to the last become one class), or finished. When nothing of the first two kinds is left, the
    class is finished. One of its positions represents a class.

    Row i of ``rows`` has no bit i.
    """
    unseen = alive = (1 << len(rows)) - 1  # not walked to yet; not in a finished class
    united: dict[int, tuple[list[int], int, int]] = {}  # positions, their bits and row, of classes with more than one
    classes: list[tuple[int, ...]] = []
    while unseen:
        last = (unseen & -unseen).bit_length() - 1
        unseen ^= 1 << last
        row = rows[last]
        path: list[int] = []  # below the last
        while True:
            new = row & unseen
            if new:
                path.append(last)
                last = new.bit_length() - 1
                unseen ^= 1 << last
                row = rows[last]
                continue
            seen = row & alive
            if seen:
                members, inside, row = united.get(last) or ([last], 1 << last, row)
                while seen:
                    previous = path.pop()
                    more, bits, sees = united.pop(previous, None) or ((previous,), 1 << previous, rows[previous])
                    if len(more) > len(members):
                        more, members = members, more
                    members += more
                    inside |= bits
                    row |= sees
                    seen = (seen | bits) ^ bits
                row = (row | inside) ^ inside
                united[last] = members, inside, row
                continue
            if united and last in united:
                members, inside, _ = united.pop(last)
                alive ^= inside
                classes.append(tuple(sorted(members)))
            else:
                alive ^= 1 << last
                classes.append((last,))
            if not path:
                break
            last = path.pop()
            row = united[last][2] if united and last in united else rows[last]
    return classes


def closure_and_covers(rows: list[int], many: int = 16) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Return down-sets and lower covers in the form of :class:`Order`.

    Candidates are taken from above: the highest neighbour that no earlier neighbour has reached is a cover, and only
    the down-sets of covers are united. Most orders have a few covers per class, whatever the number of edges. With
    ``many`` covers per class or more, the rest is computed in blocks by matrix products, whose cost does not depend on
    the number of covers.

    Row c of ``rows`` has bits below c only.
    """
    down: list[int] = []
    starts, lower = [0], []
    most = many * len(rows)
    bit = 1
    for left in rows:
        reached = bit
        while left:
            cover = left.bit_length() - 1
            below = down[cover]
            reached |= below
            left = (left | below) ^ below
            lower.append(cover)
        down.append(reached)
        starts.append(len(lower))
        if len(lower) > most:
            return _in_blocks(rows, down, array("i", starts), array("i", lower))
        bit <<= 1
    return down, np.array(array("i", starts)), np.array(array("i", lower))


def _in_blocks(
    rows: list[int], down: list[int], starts: array[int], lower: array[int], block: int = 1024
) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Finish what :func:`closure_and_covers` began.

    What is below any neighbour of a class follows from a product of two matrices for neighbours before the block, and
    from a loop for neighbours in the block. A neighbour that is below another one is not a cover.
    """
    while len(down) < len(rows):
        start = len(down)
        stop = min(start + block, len(rows))
        before = (1 << start) - 1
        outside = BitMatrix.from_integers([row & before for row in rows[start:stop]], start)
        below = BitMatrix.from_integers([row ^ (1 << number) for number, row in enumerate(down)], start)
        for number, reached in enumerate(boolean_product(outside, below).integers(), start):
            left = rows[number] >> start << start
            while left:
                neighbour = left.bit_length() - 1
                reached |= down[neighbour] ^ (1 << neighbour)
                left = (left ^ (1 << neighbour)) & ~reached
            lower.frombytes(bits_of(rows[number] & ~reached)[::-1].astype(np.int32).tobytes())
            starts.append(len(lower))
            down.append(reached | rows[number] | 1 << number)
    return down, np.array(starts), np.array(lower)


def _only_below(rows: list[int]) -> bool:
    """Return whether every row i has only bits below i."""
    return all(map(operator.le, map(int.bit_length, rows), range(len(rows))))


def _between_classes(rows: BitMatrix, classes: list[tuple[int, ...]]) -> list[int]:
    """Rows among classes: whether any position of one sees any position of the other."""
    if len(classes) == 1:
        return [0]
    positions = np.fromiter(itertools.chain.from_iterable(classes), np.int64, rows.columns)
    if len(classes) == len(positions):
        return rows.reordered(positions).integers()
    starts = np.cumsum([0] + [len(members) for members in classes[:-1]])
    columns = rows.united_rows(positions, starts).transposed()
    return columns.united_rows(positions, starts).transposed().with_diagonal(False).integers()
