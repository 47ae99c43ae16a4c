"""Causal and bidirectional attention by the native op, if it is built and supports the call.

It computes the same as torch's own operations, which are used otherwise: on other devices, with dropout, for other
kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_attn_ext.attention.feature_map import FeatureMap, SoftmaxFeatures
from hf_attn_ext.attention.native import native_op_loaded
from hf_attn_ext.attention.native.operators import softmax_attention

from .bound_maps import BoundMaps
from .inputs import accumulation_dtype, is_hooked, score_factor, transformed
from .state import AttentionState


def fused_features(
    q: Tensor, k: Tensor, v: Tensor, feature_map: FeatureMap, dropout_p: float, maps: BoundMaps | None = None
) -> SoftmaxFeatures | None:
    """Return the feature map as the native op needs it, from ``maps`` if it is kept there.

    None if the native op is not built or does not support this call.
    """
    if dropout_p or any(x.device.type != "cpu" for x in (q, k, v, next(feature_map.parameters(), q))):
        return None
    if not feature_map._softmax_holds or "bind" in feature_map.__dict__:
        return None
    if any(map(is_hooked, feature_map.modules())) or transformed() or not native_op_loaded():
        return None
    return (maps or BoundMaps()).softmax_features(feature_map, accumulation_dtype(q))


def fused_attention(
    features: SoftmaxFeatures,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feature_map: FeatureMap,
    key_padding_mask: Tensor | None,
    scaling: float | None,
    state: AttentionState | None,
    causal: bool,
) -> tuple[Tensor, AttentionState]:
    """Compute :func:`causal_attention` or :func:`bidirectional_attention`, which have checked the arguments."""
    like = features.query_weight  # in the dtype of the sums
    if state is None:
        sums = like.new_zeros(*q.shape[:2], like.shape[-1], v.shape[3] + 1)
        nothing = like.new_full(q.shape[:2], -torch.inf)
        state = AttentionState(sums, None, nothing, torch.zeros(len(q), dtype=torch.int64))
    assert state.reference is not None  # causal_attention has checked the state
    factor = score_factor(feature_map, scaling)
    tokens = (x.to(like.dtype) for x in (q, k, v))
    before = state.sums, state.reference
    out, sums, reference, _, _ = softmax_attention(
        *tokens, key_padding_mask, *features, *before, causal, 1.0 if factor is None else factor
    )
    real = k.shape[2] if key_padding_mask is None else key_padding_mask.sum(-1)
    return out.to(v.dtype), AttentionState(sums, None, reference, state.length + real)
