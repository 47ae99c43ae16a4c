"""Products of Boolean matrices on bit rows: unions of rows if the left one is sparse, else float32 products."""

from __future__ import annotations

import numpy as np
import torch

from .bits import WORD, BitMatrix, bits_of

BLOCK = 1024
# Measured costs on one core: seconds per union of two rows, and per column of the right side; additions per second of
# a float32 product. They only choose between two exact algorithms.
_SECONDS_A_BIT, _SECONDS_A_COLUMN, _ADDITIONS_A_SECOND = 7e-8, 6e-12, 4e10


def boolean_product(left: BitMatrix, right: BitMatrix, block: int = BLOCK) -> BitMatrix:
    """Return the Boolean product, (rows, inner) by (inner, columns).

    Source: ours.
    """
    integers = left.integers()
    bits = sum(row.bit_count() for row in integers)
    by_rows = bits * (_SECONDS_A_BIT + _SECONDS_A_COLUMN * right.columns)
    if by_rows < len(integers) * left.columns * right.columns / _ADDITIONS_A_SECOND:
        return product_by_rows(integers, right)
    return product_by_blocks(left, right, block)


def product_by_rows(left: list[int], right: BitMatrix) -> BitMatrix:
    """Return the product by its definition: each row unites the rows of ``right`` that its bits select."""
    rows, united = right.integers(), []
    for row in left:
        seen = 0
        for index in bits_of(row).tolist():
            seen |= rows[index]
        united.append(seen)
    return BitMatrix.from_integers(united, right.columns)


def product_by_blocks(left: BitMatrix, right: BitMatrix, block: int = BLOCK) -> BitMatrix:
    """Return the product from float32 products of blocks; the sums are at most the inner length, exact to 2**24.

    Blocks without bits are skipped, on the left by block and on the right by the span of columns with bits. Triangles
    and bands therefore cost only their own area.
    """
    rows, inner = left.shape
    out = np.zeros((rows, right.words.shape[1]), np.uint64)
    spans = [_span(right.words[start : start + block]) for start in range(0, inner, block)]
    for top in range(0, rows, block):
        bits = left.dense(slice(top, top + block))
        sums = None
        for start, span in zip(range(0, inner, block), spans, strict=True):
            part = bits[:, start : start + block]
            if span is None or not part.any():
                continue
            factor = BitMatrix(right.words[start : start + block, span], (span.stop - span.start) * WORD).dense()
            if sums is None:
                sums = torch.zeros(len(bits), right.words.shape[1] * WORD)
            sums[:, span.start * WORD : span.stop * WORD].addmm_(_float(part), _float(factor))
        if sums is not None:
            out[top : top + block] = BitMatrix.from_dense((sums > 0.5).numpy()).words
    return BitMatrix(out, right.columns)


def _span(words: np.ndarray) -> slice | None:
    """The words' columns from the first with a bit to the last."""
    columns = np.flatnonzero(words.any(axis=0))
    return slice(int(columns[0]), int(columns[-1]) + 1) if len(columns) else None


def _float(bits: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(bits)).float()
