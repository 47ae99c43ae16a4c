"""Products of Boolean matrices on bit rows, through blocks of ordinary float32 products that are exact here."""

from __future__ import annotations

import numpy as np
import torch

from .bits import WORD, BitMatrix

BLOCK = 1024


def boolean_product(left: BitMatrix, right: BitMatrix, block: int = BLOCK) -> BitMatrix:
    """Return the Boolean product, (rows, inner) by (inner, columns).

    Blocks of ``right`` are unpacked to float32 and multiplied only where ``left`` has a bit in their columns, and only
    over the span of columns where they have bits themselves: triangles and bands cost what they hold. Sums count up to
    the inner length, exact in float32 to 2**24.

    Source: ours.
    """
    rows, inner = left.shape
    out = np.zeros((rows, right.words.shape[1]), np.uint64)
    spans = [_span(right.words[start : start + block]) for start in range(0, inner, block)]
    for top in range(0, rows, block):
        upper = left.words[top : top + block]
        bits = BitMatrix(upper, inner).dense()
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
