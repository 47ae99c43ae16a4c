"""``linear_attention``, the function for all kinds of attention in linear time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hf_attn_ext.attention.feature_map import FeatureMap
from hf_attn_ext.attention.ops.order.order_attention import order_attention
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec, Poset

from .bidirectional import bidirectional_attention
from .causal import causal_attention
from .inputs import check_dropout, check_inputs


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feature_map: FeatureMap,
    causal: bool = False,
    key_padding_mask: Tensor | None = None,
    order: Poset | MaskSpec | Sequence[Poset | MaskSpec] | None = None,
    scaling: float | None = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """Compute kernel attention in linear time and memory, O(N d d') for feature_dim d'.

    Args:
        q, k: (B, H, N, d), any float dtype; features and sums are computed in float32 (float64 for float64),
            autocast or not.
        v: (B, H, N, d_v).
        feature_map: from :func:`make_feature_map`.
        causal: query i sees keys 0..i (as many queries as keys); :func:`causal_attention` also continues from a state.
        key_padding_mask: (B, N) bool, True = real token. Padded keys have no weight and get gradient exactly 0.
        order: which positions see which, as a :class:`.Poset` or a :class:`.MaskSpec` of N positions, or a list with
            one per batch row; as many queries as keys. The mask must be dense: a position attends to itself and to
            all positions whose information reaches it. The result is exact, in time O(N w d d') for the w chains that
            cover the positions seen (1 for causal and block two-stream masks, 2 for butterfly masks). The order is
            prepared at first use, and kept. Maps that use positions get the ``position_ids`` of a MaskSpec.
        scaling: the model's factor of the scores; None is ``d^-1/2``.
        dropout_p: attention dropout. There are no weights of single pairs, so whole key tokens are dropped from the
            values, per head, and the rest is scaled by ``1 / (1 - dropout_p)``. The normaliser does not change.

    Returns:
        (B, H, N, d_v) in v's dtype. A query that sees no real key gives 0.

    Raises:
        AttnExtError: shapes or dtypes do not fit; ``dropout_p`` or ``scaling`` is out of range; an order has another
            length or type, is given together with ``causal``, or has a mask that is not dense (``spec.densify()``
            is).

    Example:
        >>> feature_map = make_feature_map("flexformer_p", num_heads=2, head_dim=8, num_features=16)
        >>> q, k, v = torch.randn(3, 1, 2, 100, 8).unbind()
        >>> linear_attention(q, k, v, feature_map).shape
        torch.Size([1, 2, 100, 8])
        >>> spec = masks.butterfly(34)  # 100 positions
        >>> linear_attention(q, k, v, feature_map, order=spec).shape
        torch.Size([1, 2, 100, 8])

    Source: linear attention, arXiv 2006.16236; over partial orders ours (:mod:`.order`).
    """
    if order is not None and causal:
        raise AttnExtError("give causal=True or an order, not both: masks.causal(n) is the causal order")
    if causal:
        return causal_attention(q, k, v, feature_map, None, key_padding_mask, scaling, dropout_p)[0]
    check_inputs(q, k, v, feature_map, key_padding_mask)
    check_dropout(dropout_p)
    with torch.autocast(q.device.type, enabled=False):
        if order is not None:
            out: Tensor = order_attention(q, k, v, feature_map, order, key_padding_mask, scaling, dropout_p)
            return out
        return bidirectional_attention(q, k, v, feature_map, key_padding_mask, scaling, dropout_p)
