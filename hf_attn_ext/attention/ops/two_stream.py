"""Two-stream attention at inference: clean tokens continue a state, and a block of mask tokens reads it. Source: ours.

It applies the order of block two-stream masks (:func:`hf_attn_ext.hasse.masks.block_two_stream`) one pass at a time. A
mask token sees the clean tokens before its block, which are the state, and its own block, which no other token sees.
So mask tokens never enter the returned state.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_attn_ext.attention.feature_map import FeatureMap
from hf_attn_ext.errors import AttnExtError

from .bound_maps import BoundMaps
from .causal import causal_attention
from .state import AttentionState


def two_stream_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feature_map: FeatureMap,
    state: AttentionState | None,
    clean: Tensor,
    block: Tensor,
    group: int = 1,
    scaling: float | None = None,
    dropout_p: float = 0.0,
    maps: BoundMaps | None = None,
) -> tuple[Tensor, AttentionState | None]:
    """Compute attention of n clean tokens and a block of l mask tokens.

    Clean tokens see ``state`` and each other in order. Mask tokens see ``state``, the clean tokens and all of their
    block.

    Args:
        q, k, v: (B, H, n + l, d), (B, H, n + l, d), (B, H, n + l, d_v); clean tokens first.
        feature_map, scaling, dropout_p, maps: as in :func:`causal_attention`.
        state: of the clean tokens before these; None if there are none. It is not changed.
        clean: (B, n) bool, True = real token; n may be 0.
        block: (B, l) bool, True = real mask token; l is at least 1.
        group: size of groups of clean tokens that all see each other, as in :func:`causal_attention`; 1: in order.

    Returns:
        (B, H, n + l, d_v) in v's dtype, and the state after the clean tokens; None if there are none yet.

    Raises:
        AttnExtError: the masks have another size; and as :func:`causal_attention`.

    Example:
        >>> feature_map = make_feature_map("flexformer_p", 2, 8, 16)
        >>> q = k = v = torch.randn(1, 2, 10, 8)
        >>> clean, block = torch.ones(1, 10, dtype=torch.bool).split([6, 4], 1)
        >>> out, state = two_stream_attention(q, k, v, feature_map, None, clean, block)
        >>> state.length
        tensor([6])
    """
    parts = [clean.shape[1], block.shape[1]]
    if sum(parts) != k.shape[2] or not parts[1]:
        raise AttnExtError(
            f"clean is {tuple(clean.shape)} and block {tuple(block.shape)}: together they must cover the {k.shape[2]} "
            "tokens, at least one of them in the block"
        )
    (q, block_q), (k, block_k), (v, block_v) = (x.split(parts, 2) for x in (q, k, v))
    outputs = []
    if parts[0]:
        out, state = causal_attention(q, k, v, feature_map, state, clean, scaling, dropout_p, maps, group)
        outputs.append(out)
    out, _ = causal_attention(
        block_q, block_k, block_v, feature_map, state, block, scaling, dropout_p, maps, group=parts[1]
    )
    return torch.cat([*outputs, out], 2), state
