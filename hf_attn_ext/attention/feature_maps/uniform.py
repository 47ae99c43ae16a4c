"""The control without attention: every token gets the average of all values. Source: ours."""

from __future__ import annotations

from torch import Tensor

from hf_attn_ext.attention.feature_map import FeatureMap, Features, Side
from hf_attn_ext.attention.registry import register_kernel


@register_kernel("uniform")
class Uniform(FeatureMap):
    """``phi(x) = 1``: a model without attention, the control of every quality claim. feature_dim is 1."""

    def __init__(self, num_heads: int, head_dim: int, num_features: int = 1, seed: int = 0) -> None:
        super().__init__(num_heads, head_dim, num_features, 1)

    def forward(self, x: Tensor, side: Side) -> Features:
        """Return 1 for every token."""
        return Features(None, x.new_ones(*x.shape[:-1], 1))
