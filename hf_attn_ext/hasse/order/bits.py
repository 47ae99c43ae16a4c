"""Boolean matrices as rows of bits: an eighth of the memory, and 64 positions per operation.

Long rows are processed as Python integers: up to some tens of thousands of bits, their ``|``, ``&`` and ``bit_length``
cost less than one call of numpy.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence

import numpy as np

from hf_attn_ext.errors import AttnExtError, short

WORD = 64
_MOST = 1 << 31  # columns
_SMALL = 1 << 16  # words, up to which the number of operations decides and not the memory access


class BitMatrix:
    """A Boolean matrix (rows, columns), 64 columns per word, the lowest bit first; bits past the last column are 0.

    Functions of :mod:`hf_attn_ext.hasse` that take a mask take one, so a mask of 32,768 positions needs 128 MiB.

    Args:
        words: numpy.uint64 (rows, ceil(columns / 64)).
        columns: the number of columns.

    Raises:
        AttnExtError: another dtype or shape, or a bit set past the last column.

    Example:
        >>> bits = BitMatrix.from_dense(np.tri(3, dtype=bool))
        >>> bits.integers()
        [1, 3, 7]
        >>> bits.dense()[1].tolist()
        [True, True, False]

    Source: ours.
    """

    __slots__ = ("columns", "words")

    def __init__(self, words: np.ndarray, columns: int) -> None:
        columns = _read_count(columns)
        width = _width(columns)
        if not isinstance(words, np.ndarray) or words.dtype != np.uint64 or words.ndim != 2 or words.shape[1] != width:
            kind = f"{words.dtype} {words.shape}" if isinstance(words, np.ndarray) else type(words).__name__
            raise AttnExtError(f"bit rows of {columns} columns must be numpy.uint64 (rows, {width}), got {kind}")
        if columns % WORD and (words[:, -1] >> np.uint64(columns % WORD)).any():
            raise AttnExtError(f"bit rows of {columns} columns have a bit set past the last column; clear it")
        self.words, self.columns = words, columns

    @classmethod
    def _made(cls, words: np.ndarray, columns: int) -> BitMatrix:
        """Return a matrix of words that need no checks."""
        made = cls.__new__(cls)
        made.words, made.columns = words, columns
        return made

    @classmethod
    def from_dense(cls, dense: np.ndarray) -> BitMatrix:
        """Pack a numpy bool (rows, columns).

        Raises:
            AttnExtError: another dtype or shape.
        """
        if not isinstance(dense, np.ndarray) or dense.dtype != np.bool_ or dense.ndim != 2:
            kind = f"{dense.dtype} {dense.shape}" if isinstance(dense, np.ndarray) else short(dense)
            raise AttnExtError(f"a matrix to pack must be numpy.bool (rows, columns), got {kind}")
        rows, columns = dense.shape
        packed = np.packbits(np.ascontiguousarray(dense), axis=1, bitorder="little")
        width = _width(columns) * 8
        if packed.shape[1] != width:
            padded = np.zeros((rows, width), np.uint8)
            padded[:, : packed.shape[1]] = packed
            packed = padded
        return cls._made(_as_words(packed), columns)

    @classmethod
    def from_integers(cls, rows: Sequence[int], columns: int) -> BitMatrix:
        """Pack integers, one per row.

        Raises:
            AttnExtError: an integer with a bit past the last column, or another value than a list of integers.
        """
        columns = _read_count(columns)
        size = _width(columns) * 8
        if not isinstance(rows, list | tuple) or any(type(row) is not int or row >> columns for row in rows):
            raise AttnExtError(
                f"bit rows of {columns} columns must be a list of ints of at most {columns} bits, got {short(rows)}"
            )
        joined = b"".join([row.to_bytes(size, "little") for row in rows])
        return cls._made(_as_words(np.frombuffer(joined, np.uint8).reshape(len(rows), size)), columns)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows and of columns."""
        return self.words.shape[0], self.columns

    def __getitem__(self, index: tuple[int, int]) -> bool:
        row, column = index
        return bool(int(self.words[row, column // WORD]) >> column % WORD & 1)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BitMatrix):
            return NotImplemented
        return self.shape == other.shape and np.array_equal(self.words, other.words)

    __hash__ = None  # type: ignore[assignment]  # equal matrices may be changed

    def __repr__(self) -> str:
        return f"BitMatrix{self.shape}"

    def dense(self, rows: slice | np.ndarray = slice(None)) -> np.ndarray:
        """Unpack to a numpy bool (rows, columns), or some of the rows."""
        taken = np.ascontiguousarray(self.words[rows]).astype("<u8", copy=False).view(np.uint8)
        return np.unpackbits(taken, axis=1, count=self.columns, bitorder="little").view(np.bool_)

    def integers(self) -> list[int]:
        """Return one Python integer per row; bit j is column j."""
        size = self.words.shape[1] * 8
        if not size:
            return [0] * len(self.words)
        rows = np.ascontiguousarray(self.words).astype("<u8", copy=False).view(f"V{size}")
        return [int.from_bytes(row, "little") for row in rows.ravel().tolist()]

    def with_diagonal(self, value: bool) -> BitMatrix:
        """Return a copy whose diagonal is ``value`` everywhere."""
        words = self.words.copy()
        index = np.arange(min(self.shape))
        bit = np.uint64(1) << (index % WORD).astype(np.uint64)
        if value:
            words[index, index // WORD] |= bit
        else:
            words[index, index // WORD] &= ~bit
        return BitMatrix._made(words, self.columns)

    def transposed(self) -> BitMatrix:
        """Return the transpose."""
        rows, columns = self.shape
        words = np.zeros((_width(rows) * WORD, self.words.shape[1]), np.uint64)
        words[:rows] = self.words
        turned = _turned_small(words) if words.size <= _SMALL else _turned(words)
        return BitMatrix._made(turned[:columns], rows)

    def reordered(self, order: np.ndarray) -> BitMatrix:
        """Return a square matrix with rows and columns in another order: [i, j] is the old [order[i], order[j]]."""
        return self.united_rows(order).transposed().united_rows(order).transposed()

    def united_rows(self, order: np.ndarray, starts: np.ndarray | None = None) -> BitMatrix:
        """Return the rows in the order given, int (rows',); ``starts`` unites each run of rows that begins there."""
        words = self.words[order]
        return BitMatrix._made(words if starts is None else np.bitwise_or.reduceat(words, starts, axis=0), self.columns)


def bits_of(row: int) -> np.ndarray:
    """Return the positions of an integer's set bits, rising, int64.

    Example:
        >>> bits_of(0b1011).tolist()
        [0, 1, 3]
    """
    data = np.frombuffer(row.to_bytes((row.bit_length() + 7) // 8, "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(data, bitorder="little"))


def row_of(bits: Iterable[int]) -> int:
    """Return the integer with these bits.

    Example:
        >>> row_of([0, 1, 3])
        11
    """
    row = 0
    for bit in bits:
        row |= 1 << bit
    return row


def _turned(words: np.ndarray) -> np.ndarray:
    """The transpose of (64 a, b) words, (64 b, a): 64 x 64 bits in six rounds of swapped halves, then the blocks."""
    rows, width = words.shape
    half, low = WORD // 2, (1 << WORD // 2) - 1  # low: the lower half of every group of 2 * half bits
    while half:
        pairs = words.reshape(-1, 2, half, width)
        upper, lower = pairs[:, 0], pairs[:, 1]
        swapped = ((upper >> np.uint64(half)) ^ lower) & np.uint64(low)
        lower ^= swapped
        swapped <<= np.uint64(half)
        upper ^= swapped
        half //= 2
        low ^= low << half
    blocks = words.reshape(rows // WORD, WORD, width).transpose(2, 1, 0)
    return np.ascontiguousarray(blocks.reshape(width * WORD, rows // WORD))


def _turned_small(words: np.ndarray) -> np.ndarray:
    """The same by blocks of 8 x 8 bits, one word each, in three rounds, and by moving bytes."""
    rows, width = words.shape
    blocks = words.astype("<u8", copy=False).view(np.uint8).reshape(rows // 8, 8, width * 8).transpose(0, 2, 1)
    squares = _as_words(np.ascontiguousarray(blocks))
    for shift, mask in ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0)):
        swapped = squares >> np.uint64(shift)
        swapped ^= squares
        swapped &= np.uint64(mask)
        squares ^= swapped
        swapped <<= np.uint64(shift)
        squares ^= swapped
    turned = squares.astype("<u8", copy=False).view(np.uint8).reshape(rows // 8, width * 8, 8).transpose(1, 2, 0)
    return _as_words(np.ascontiguousarray(turned).reshape(width * WORD, rows // 8))


def _read_count(columns: int) -> int:
    if not isinstance(columns, numbers.Integral) or isinstance(columns, bool) or not 0 <= columns <= _MOST:
        raise AttnExtError(f"the number of columns must be a whole number from 0 to {_MOST}, got {short(columns)}")
    return int(columns)


def _width(columns: int) -> int:
    return -(-columns // WORD)


def _as_words(packed: np.ndarray) -> np.ndarray:
    """Bytes (rows, 8 * words) as words, in any byte order of the machine."""
    return packed.view("<u8").astype(np.uint64, copy=False)
