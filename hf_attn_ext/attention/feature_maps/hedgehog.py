"""Hedgehog: learned positive features that spike like softmax. Source: arXiv 2402.04347."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hf_attn_ext.attention.feature_map import FeatureMap, Features, Side
from hf_attn_ext.attention.registry import register_kernel


@register_kernel("hedgehog")
class Hedgehog(FeatureMap):
    """``phi(x) = softmax([W x, -W x])`` over the features, with its own ``W`` for queries and for keys, per head.

    feature_dim is 2n. The features are positive, so the normaliser needs no floor.

    Args:
        num_heads, head_dim, num_features, seed: see :func:`make_feature_map`.
        weight_std: standard deviation of the initial W, the same for queries and keys.
    """

    def __init__(
        self, num_heads: int, head_dim: int, num_features: int, seed: int = 0, weight_std: float = 0.3
    ) -> None:
        super().__init__(num_heads, head_dim, num_features, 2 * num_features)
        generator = torch.Generator().manual_seed(seed)
        weight = weight_std * torch.randn(num_heads, num_features, head_dim, generator=generator)
        self.query_weight = nn.Parameter(weight)
        self.key_weight = nn.Parameter(weight.clone())

    def forward(self, x: Tensor, side: Side) -> Features:
        """Return the softmax over 2n projections of ``x`` (B, H, N, head_dim)."""
        weight = self.query_weight if side == "query" else self.key_weight
        projected = x @ weight.to(x.dtype).mT
        return Features(None, torch.cat([projected, -projected], -1).softmax(-1))
