"""Bidirectional attention in linear time: sum over the keys once, then read the sum with every query."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from torch import Tensor

from hf_attn_ext.attention.feature_map import FeatureMap
from hf_attn_ext.attention.normaliser import divide

from .inputs import Outputs, accumulation_dtype, block_size, drop_tokens, mapper, padded_positions, token_positions
from .native_forms import fused_attention, fused_features
from .state import AttentionState, add_keys, read, with_ones


def bidirectional_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feature_map: FeatureMap,
    key_padding_mask: Tensor | None,
    scaling: float | None,
    dropout_p: float,
) -> Tensor:
    """Compute attention in which every query sees every real key.

    The arguments are those of :func:`linear_attention`, which has checked them. Keys and queries are processed in
    blocks of tokens, so that on a CPU the features stay in the cache.
    """
    fused = fused_features(q, k, v, feature_map, dropout_p)
    if fused is not None:
        return fused_attention(fused, q, k, v, feature_map, key_padding_mask, scaling, None, causal=False)[0]
    dtype = accumulation_dtype(q)
    query_map = mapper(feature_map, "query", dtype, scaling)
    key_map = mapper(feature_map, "key", dtype, scaling)
    same = q.shape[2] == k.shape[2]
    key_positions = token_positions(feature_map, k, key_padding_mask)
    query_positions = token_positions(feature_map, q, key_padding_mask if same else None)
    size = block_size(k, feature_map)
    if not k.shape[2]:
        return v.new_zeros(*q.shape[:3], v.shape[3])
    state: AttentionState | None = None
    for keys, values, padded, positions in zip(
        k.split(size, 2),
        v.split(size, 2),
        split(padded_positions(key_padding_mask), size, 2),
        split(key_positions, size, 1),
        strict=False,
    ):
        mapped = key_map(keys, positions, padded)
        state = add_keys(state, mapped, with_ones(drop_tokens(values.to(dtype), dropout_p)), 0)
    assert state is not None  # there is at least one block of keys
    outputs = Outputs(v, q.shape[2])
    for queries, positions in zip(q.split(size, 2), split(query_positions, size, 1), strict=False):
        outputs.add(divide(*read(state, query_map(queries, positions)), feature_map.rho))
    return outputs.join()


def split(x: Tensor | None, size: int | list[int], dim: int) -> Iterable[Tensor | None]:
    """Return the blocks of ``x``; without end None, for None."""
    return itertools.repeat(None) if x is None else x.split(size, dim)
