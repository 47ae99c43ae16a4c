"""Streamed sums with a Poisson bootstrap over texts or documents: constant memory, merged by adding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hf_attn_ext.errors import AttnExtError


class Sums:
    """Named float64 arrays (R + 1, ...): the sum over texts, and R sums with each text's Poisson weights.

    A text's weights depend on its tokens, or its document's name, and a seed (see :func:`.texts.make_text`). Sums and
    replicates therefore do not depend on batches, order or processes. ``Poisson(1)`` weights are the streaming form of
    drawing texts with replacement; texts of one document are drawn together.

    Args:
        replicates: R, the number of bootstrap replicates.

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
        """Memory of all sums in bytes."""
        return sum(each.nbytes for each in self._sums.values())

    def add(self, name: str, weights: np.ndarray, values: np.ndarray) -> None:
        """Add B texts: weights (B, R + 1), values (B, ...)."""
        shape = values.shape[1:]
        total = weights.T @ values.reshape(len(values), -1)
        if name not in self._sums:
            self._sums[name] = np.zeros((self.replicates + 1, *shape))
        self._sums[name] += total.reshape(self.replicates + 1, *shape)

    def merge(self, other: Sums) -> None:
        """Add the sums of ``other``."""
        for name, value in other._sums.items():
            if name in self._sums:
                if self._sums[name].shape != value.shape:
                    raise AttnExtError(f"statistics {name!r} have shapes {self._sums[name].shape} and {value.shape}")
                self._sums[name] += value
            else:
                self._sums[name] = value.copy()

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return copies of the arrays by name."""
        return {name: value.copy() for name, value in self._sums.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replace all sums by those of ``state``."""
        self._sums = {name: np.array(value, dtype=np.float64) for name, value in state.items()}


def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Return ``above / below``, NaN where ``below`` is 0."""
    below = np.broadcast_to(below, above.shape)
    return np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 0)


def interval(replicates: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return 95% bounds (..., 2): value -+ 1.96 bootstrap standard errors, from replicates (R, ...)."""
    known = np.isfinite(replicates)
    count = known.sum(0)
    centre = np.where(known, replicates, 0.0).sum(0) / np.maximum(count, 1)
    spread = np.where(known, (replicates - centre) ** 2, 0.0).sum(0) / np.maximum(count - 1, 1)
    error = np.where(count > 1, np.sqrt(spread), np.nan)
    return np.stack([value - 1.96 * error, value + 1.96 * error], axis=-1)


def drawn_as_one(counts: np.ndarray) -> bool:
    """Return whether all texts were drawn together, as a single text, copies of one, and texts of one document are.

    Every replicate then has a whole multiple of the texts and the same ratios, which says nothing about other texts.
    ``counts`` (R + 1,) are the numbers of texts in the sum and in each replicate.
    """
    return bool((counts[1:] % max(counts[0], 1.0) == 0).all())


def equal_draws(counts: np.ndarray) -> float:
    """Return Kish's effective number of documents, from the counts (R + 1,) of :func:`drawn_as_one`."""
    spread = ((counts[1:] - counts[0]) ** 2).mean()
    return float(counts[0] ** 2 / spread) if spread else float("inf")
