"""The high pairs of one text, with bounded memory however long the text is."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from .similarity import pair_values, select_high
from .texts import Text

# Entries of the matrices that are in memory at a time: 4 MiB in float32.
MATRIX_ENTRIES = 2**20


def high_pairs(outputs: Tensor, text: Text) -> np.ndarray:
    """Return the high pairs of vectors (H, n, d); see :func:`.similarity.select_high`."""
    parts = []
    for heads in in_parts(len(outputs), text.length):
        values, norms = pair_values(outputs[heads], text.pairs)
        parts.append(select_high(values, text.counts, norms, text.pairs, text.key))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def in_parts(heads: int, length: int) -> list[slice]:
    """Return slices of heads whose matrices together have at most :data:`MATRIX_ENTRIES` entries, or one head each."""
    step = max(1, MATRIX_ENTRIES // length**2)
    return [slice(first, first + step) for first in range(0, heads, step)]
