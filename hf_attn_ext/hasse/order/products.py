"""Products of Boolean matrices on bit rows: by uniting rows where the left one is sparse, else by float32 products."""

from __future__ import annotations

import numpy as np
import torch

from .bits import WORD, BitMatrix, bits_of

BLOCK = 1024
# What a product costs, measured on one core: a bit of the left side unites two rows, at a price with a part a column of
# the right; a float32 product makes this many additions a second. They only choose between two exact ways.
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
    """The product as its definition has it: each row unites the rows of ``right`` that its bits name."""
    rows, united = right.integers(), []
    for row in left:
        seen = 0
        for place in bits_of(row).tolist():
            seen |= rows[place]
        united.append(seen)
    return BitMatrix.from_integers(united, right.columns)


def product_by_blocks(left: BitMatrix, right: BitMatrix, block: int = BLOCK) -> BitMatrix:
    """The product from float32 products of blocks, which count up to the inner length: exact to 2**24.

    A block of ``right`` takes part only where ``left`` has a bit in its rows, and only over the span of columns where
    it has bits itself: triangles and bands cost what they hold.
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
    found = np.flatnonzero(words.any(axis=0))
    return slice(int(found[0]), int(found[-1]) + 1) if len(found) else None


def _float(bits: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(bits)).float()
