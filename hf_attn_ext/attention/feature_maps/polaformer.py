"""Polaformer: same-signed and opposite-signed similarity, sharpened by a learned power. Source: arXiv 2501.15061."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hf_attn_ext.attention.feature_map import FeatureMap, Features, Side
from hf_attn_ext.attention.registry import register_kernel
from hf_attn_ext.attention.statistics import QKStatistics
from hf_attn_ext.errors import AttnExtError


@register_kernel("polaformer")
class Polaformer(FeatureMap):
    """``kernel(q, k) = q+.k+ + q-.k- + w (q+.k- + q-.k+)`` with ``x+ = relu(c x)^p``, ``x- = relu(-c x)^p``, 0 < w < 1.

    The kernel adds the same-signed products of ``q.k`` and, with weight w, the opposite-signed ones. As features:
    ``phi_q = [q+, q-]`` and ``phi_k = [k+ + w k-, k- + w k+]``. w acts on keys only, so feature_dim is 2 head_dim for
    every ``num_features``, and all features are positive. As a function of two tokens the kernel is symmetric and,
    since w < 1, positive semidefinite.

    From the source: the split by sign, ``p = 1 + alpha sigmoid(.)`` per head and channel, and a learned scale c per
    channel (its code divides by a softplus). Ours: w, one number per head, because a kernel has one weight per pair;
    the source normalises the two similarities separately and applies each to half of the values, with learned
    coefficients. Left out, because they are not part of a kernel: those coefficients, the depth-wise convolution of
    the values, the output gate, and the positional encoding of the keys.

    Args:
        num_heads, head_dim, num_features, seed: see :func:`make_feature_map`; the last two are not used.
        alpha: p lies between 1 and 1 + alpha and starts halfway; 4 in the source's code.
        opposite_weight: initial w, between 0 and 1, both excluded.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_features: int,
        seed: int = 0,
        alpha: float = 4.0,
        opposite_weight: float = 0.1,
    ) -> None:
        super().__init__(num_heads, head_dim, num_features, 2 * head_dim)
        if alpha < 0:
            raise AttnExtError(f"alpha must be at least 0, got {alpha!r}")
        if not 0 < opposite_weight < 1:
            raise AttnExtError(f"opposite_weight must lie between 0 and 1, both excluded, got {opposite_weight!r}")
        self.alpha = alpha
        self.power = nn.Parameter(torch.zeros(num_heads, head_dim))
        self.scale = nn.Parameter(torch.full((num_heads, head_dim), head_dim**-0.25))
        logit = math.log(opposite_weight / (1 - opposite_weight))
        self.opposite = nn.Parameter(torch.full((num_heads,), logit))

    def forward(self, x: Tensor, side: Side) -> Features:
        """Return the positive and negative parts of ``x`` (B, H, N, head_dim), each to a learned power."""
        x = x * self.scale.to(x.dtype)[:, None, :]
        size = x.abs() ** (1 + self.alpha * self.power.to(x.dtype).sigmoid()[:, None, :])
        plus, minus = size * (x > 0), size * (x < 0)
        if side == "key":
            weight = self.opposite.to(x.dtype).sigmoid()[:, None, None]
            plus, minus = plus + weight * minus, minus + weight * plus
        return Features(None, torch.cat([plus, minus], -1))

    @torch.no_grad()
    def calibrate(self, statistics: QKStatistics) -> None:
        """Set the scales c of a head so that its scaled queries and keys have a mean square of 1.

        The mean is over tokens and channels. Without it, powers of numbers far from 1 span many orders of magnitude
        (ours).
        """
        power = statistics.second_moment.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
        self.scale.copy_(power.clamp_min(1e-6).rsqrt().expand_as(self.scale))
