"""Streamed sums with a Poisson bootstrap over texts or documents: memory that no corpus changes, merged by adding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hf_attn_ext.errors import AttnExtError


class Sums:
    """Named float64 arrays (R + 1, ...): the sum over texts, and R sums with each text's Poisson weights.

    A text's weights come from its tokens, or its document's name, and a seed (see :func:`.texts.make_text`), so that
    the replicates, as the sums, do not depend on batches, order or processes. ``Poisson(1)`` weights are the streamed
    form of drawing texts with replacement; texts of one document are drawn together.

    Args:
        replicates: R.

    Example:
        >>> sums = Sums(replicates=2)
        >>> sums.add("pairs", np.array([[1.0, 0.0, 2.0]]), np.array([[3.0]]))
        >>> sums["pairs"].tolist()
        [[3.0], [0.0], [6.0]]
    """

    def __init__(self, replicates: int) -> None:
        self.replicates = replicates
        self._sums: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._sums[name]

    def __contains__(self, name: str) -> bool:
        return name in self._sums

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self._sums.values())

    def add(self, name: str, weights: np.ndarray, values: np.ndarray) -> None:
        """Add texts: weights (B, R + 1), values (B, ...)."""
        shape = values.shape[1:]
        total = weights.T @ values.reshape(len(values), -1)
        if name not in self._sums:
            self._sums[name] = np.zeros((self.replicates + 1, *shape))
        self._sums[name] += total.reshape(self.replicates + 1, *shape)

    def merge(self, other: Sums) -> None:
        """Add another's sums."""
        for name, value in other._sums.items():
            if name in self._sums:
                if self._sums[name].shape != value.shape:
                    raise AttnExtError(f"statistics {name!r} have shapes {self._sums[name].shape} and {value.shape}")
                self._sums[name] += value
            else:
                self._sums[name] = value.copy()

    def state_dict(self) -> dict[str, np.ndarray]:
        return {name: value.copy() for name, value in self._sums.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sums = {name: np.array(value, dtype=np.float64) for name, value in state.items()}


def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """``above / below`` with NaN where nothing was counted."""
    below = np.broadcast_to(below, above.shape)
    return np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 0)


def interval(replicates: np.ndarray, value: np.ndarray) -> np.ndarray:
    """(..., 2): 95% bounds, value -+ 1.96 bootstrap standard errors, from replicates (R, ...)."""
    known = np.isfinite(replicates)
    count = known.sum(0)
    centre = np.where(known, replicates, 0.0).sum(0) / np.maximum(count, 1)
    spread = np.where(known, (replicates - centre) ** 2, 0.0).sum(0) / np.maximum(count - 1, 1)
    error = np.where(count > 1, np.sqrt(spread), np.nan)
    return np.stack([value - 1.96 * error, value + 1.96 * error], axis=-1)


def drawn_as_one(counts: np.ndarray) -> bool:
    """Whether texts (R + 1,), how many there are and how many each replicate has, were all drawn together.

    So are one text, copies of one, and texts of one document: every replicate has a whole multiple of them, and all
    ratios are the same, which says nothing of other texts.
    """
    return bool((counts[1:] % max(counts[0], 1.0) == 0).all())


def equal_draws(counts: np.ndarray) -> float:
    """How many equal documents these would be, from the same counts: Kish's effective number, from the replicates."""
    spread = ((counts[1:] - counts[0]) ** 2).mean()
    return float(counts[0] ** 2 / spread) if spread else float("inf")
