"""One text's attention maps over the tokens that count, rows normalised again; each number is computed once."""

from __future__ import annotations

import functools

import numpy as np

from .pair_set import PairSet
from .texts import Text

# A row's weights can be normalised again where their sum is above this share of the sum of their absolute values: the
# weights of a signed kernel may cancel, and divided by nearly nothing they can be any number.
LEAST_SUM = 0.05


class AttentionRows:
    """The attention maps (H, N, N) of some heads over one text's n tokens that are not special.

    Attributes:
        text: the text.
        high: the high pairs of the same heads by context similarity.
        visible: bool (1 or H, n, n), True = the query sees the key.
        special: (H,) weights on special tokens, summed over the n rows.
        counted: bool (H, n), False for a row without weight on the n tokens, or whose weights cancel
            (:data:`LEAST_SUM`).
        weights: (H, n, n) rows normalised over the n tokens; zero where a row is not counted.
    """

    def __init__(self, text: Text, attention: np.ndarray, visible: np.ndarray, high: PairSet) -> None:
        self.text, self.high = text, high
        self.visible = visible[:, text.positions][:, :, text.positions]
        rows = attention[:, text.positions]
        self.special = rows[:, :, text.special_positions].sum((1, 2))
        weights = rows[:, :, text.positions]
        total = weights.sum(-1)
        self.counted = total > np.maximum(LEAST_SUM * np.abs(weights).sum(-1), 1e-30)
        self.weights = np.where(self.counted[..., None], weights / np.where(self.counted, total, 1.0)[..., None], 0.0)

    @functools.cached_property
    def strength(self) -> np.ndarray:
        """(H, n(n-1)/2): each pair's attention, the greater of both directions."""
        first, second, flat = self.text.pairs
        among = self.weights.reshape(len(self.weights), -1)
        back = flat + (second - first).astype(np.int64) * (self.text.length - 1)  # the place of (j, i)
        return np.maximum(np.take(among, flat, axis=1), np.take(among, back, axis=1))
