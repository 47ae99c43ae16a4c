"""The linear-time form without a causal order: sum the keys once, then read the sum with every query."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import AttnExtError
from ..feature_maps.base import FeatureMap
from ..normaliser import denominator
from .inputs import check_inputs, map_pair


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feature_map: FeatureMap,
    causal: bool = False,
    key_padding_mask: Tensor | None = None,
    order: Any = None,
    scaling: float | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """Kernel attention in linear time and memory: O(N d d') for feature_dim d'.

    Args:
        q, k: (B, H, N, d), any float dtype; features and sums are computed in float32 (float64 for float64),
            autocast or not.
        v: (B, H, N, d_v).
        feature_map: from :func:`make_feature_map`.
        causal: not yet in linear time: refused; :func:`naive_attention` has it.
        key_padding_mask: (B, N) bool, True = real token. Padded keys have no weight and get gradient exactly 0.
        order: not yet in linear time: refused; :func:`naive_attention` takes any mask.
        scaling: the model's factor of the scores; None is ``d^-1/2``.
        dropout_p: attention dropout. Weights of single pairs don't exist here, so whole key tokens are dropped
            on the value side, per head, and the rest scaled by ``1 / (1 - dropout_p)``. The normaliser is left whole.

    Returns:
        (B, H, N, d_v) in v's dtype. A sequence without any real token gives 0.

    Raises:
        AttnExtError: shapes or dtypes that don't fit; ``causal`` or ``order``; ``dropout_p`` or ``scaling`` out of
            range.

    Example:
        >>> feature_map = make_feature_map("flexformer_c", num_heads=2, head_dim=8, num_features=16)
        >>> q, k, v = torch.randn(3, 1, 2, 100, 8).unbind()
        >>> linear_attention(q, k, v, feature_map).shape
        torch.Size([1, 2, 100, 8])
    """
    if causal or order is not None:
        asked = "causal=True" if causal else "an order"
        raise AttnExtError(
            f"linear_attention has no linear-time form for {asked} yet; naive_attention computes it densely"
        )
    check_inputs(q, k, v, feature_map, key_padding_mask)
    if not 0 <= dropout_p < 1:
        raise AttnExtError(f"dropout_p must lie between 0 and 1, 1 excluded, got {dropout_p!r}")
    with torch.autocast(q.device.type, enabled=False):
        query, key = map_pair(q, k, feature_map, key_padding_mask, scaling)
        values = v.to(key.features.dtype)
        if dropout_p:
            keep = torch.rand(values.shape[:-1], device=values.device) >= dropout_p
            values = values * (keep / (1 - dropout_p)).to(values.dtype)[..., None]
        state = key.features.mT @ values
        sums = key.features.sum(-2)
        bounds = None if key.bound is None else key.bound.sum(-2)
        out = (query.features @ state) / denominator(sums, bounds, query, feature_map.rho)
        return out.to(v.dtype)
