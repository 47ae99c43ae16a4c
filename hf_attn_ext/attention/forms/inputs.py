"""The checks and casts that every form shares."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...errors import AttnExtError
from ..feature_maps.base import FeatureMap
from ..normaliser import Stabilised, stabilise


def check_inputs(
    query: Tensor, key: Tensor, value: Tensor | None, feature_map: FeatureMap, key_padding_mask: Tensor | None
) -> None:
    """Raise :class:`AttnExtError` where shapes don't fit together, naming the shape."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if torch.is_tensor(x) and not x.is_floating_point():
            raise AttnExtError(f"{name} has dtype {x.dtype}; attention takes float16, bfloat16, float32 or float64")
    heads, head_dim = feature_map.num_heads, feature_map.head_dim
    for name, x in (("query", query), ("key", key)):
        if x.ndim != 4 or x.shape[1] != heads or x.shape[3] != head_dim:
            raise AttnExtError(
                f"{name} has shape {tuple(x.shape)}; this feature map takes (batch, {heads}, length, {head_dim})"
            )
    if key.shape[0] != query.shape[0]:
        raise AttnExtError(f"query has batch size {query.shape[0]}, key {key.shape[0]}")
    if value is not None and value.shape[:3] != key.shape[:3]:
        raise AttnExtError(f"value has shape {tuple(value.shape)}, key {tuple(key.shape)}: only the width may differ")
    if key_padding_mask is not None:
        expected = (key.shape[0], key.shape[2])
        if tuple(key_padding_mask.shape) != expected:
            raise AttnExtError(
                f"key_padding_mask has shape {tuple(key_padding_mask.shape)}, expected (batch, keys) = {expected}"
                "; a mask over pairs of tokens goes to naive_attention(mask=...)"
            )
        if key_padding_mask.dtype != torch.bool:
            raise AttnExtError(f"key_padding_mask must be bool, True = real token; got {key_padding_mask.dtype}")


def map_pair(
    query: Tensor, key: Tensor, feature_map: FeatureMap, key_padding_mask: Tensor | None, scaling: float | None
) -> tuple[Stabilised, Stabilised]:
    """Queries and keys (any float dtype) to stabilised features in float32, or float64 for float64 inputs.

    ``scaling`` is the model's factor of the scores; a map stands for ``exp(q . k / sqrt(head_dim))``, so
    another factor is split evenly over queries and keys.
    """
    dtype = torch.promote_types(query.dtype, torch.float32)
    query, key = query.to(dtype), key.to(dtype)
    if scaling is not None:
        if not 0 <= scaling < math.inf:
            raise AttnExtError(f"scaling must be a finite number from 0, got {scaling!r}")
        factor = (scaling * feature_map.head_dim**0.5) ** 0.5
        if abs(factor - 1) > 1e-9:
            query, key = query * factor, key * factor
    return stabilise(feature_map(query, "query"), feature_map(key, "key"), key_padding_mask, feature_map.signed)
