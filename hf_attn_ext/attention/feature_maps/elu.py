"""Elu: the first linear attention, with nothing to train. Source: arXiv 2006.16236."""

from __future__ import annotations

from torch import Tensor

from hf_attn_ext.attention.feature_map import FeatureMap, Features, Side
from hf_attn_ext.attention.registry import register_kernel


@register_kernel("elu")
class Elu(FeatureMap):
    """``phi(x) = elu(x) + 1``, channel by channel: ``x + 1`` above 0, ``e^x`` below.

    The features are positive and have no parameters. feature_dim is head_dim for every ``num_features``. Queries and
    keys are not scaled by ``d^-1/4``, as in the source.

    Args:
        num_heads, head_dim, num_features, seed: see :func:`make_feature_map`; the last two are not used.
    """

    def __init__(self, num_heads: int, head_dim: int, num_features: int, seed: int = 0) -> None:
        super().__init__(num_heads, head_dim, num_features, head_dim)

    def forward(self, x: Tensor, side: Side) -> Features:
        """Return ``elu(x) + 1``, (B, H, N, head_dim)."""
        # elu(x) + 1 rounds to 0 from x = -17 on in float32
        return Features(None, x.clamp_max(0.0).exp() + x.relu())
