"""The dense reference: all N x N kernel weights, under any mask. All fast operations are tested against it."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_attn_ext.attention.feature_map import FeatureMap
from hf_attn_ext.attention.normaliser import floored
from hf_attn_ext.errors import AttnExtError

from .inputs import accumulation_dtype, check_causal, check_inputs, mapper, padded_positions, token_positions


def attention_weights(
    q: Tensor,
    k: Tensor,
    feature_map: FeatureMap,
    causal: bool = False,
    key_padding_mask: Tensor | None = None,
    mask: Tensor | None = None,
    scaling: float | None = None,
    query_positions: Tensor | None = None,
) -> Tensor:
    """Return the normalised weights of kernel attention; they can be negative for signed kernels.

    Args:
        q: (B, H, Nq, d); Nq may differ from Nk, as for a subset of the queries.
        k: (B, H, Nk, d).
        feature_map: from :func:`make_feature_map`.
        causal: query i sees keys 0..i (Nq = Nk).
        key_padding_mask: (B, Nk) bool, True = real token.
        mask: (Nq, Nk) or (B, Nq, Nk) bool, True = may attend.
        scaling: the model's factor of the scores; None is ``d^-1/2``.
        query_positions: (B, Nq) int64, positions of the queries among the real tokens; only read by maps that use
            positions, and only needed if queries and keys belong to different tokens.

    Returns:
        (B, H, Nq, Nk) in float32, or float64 for float64 inputs. A query without any key has weights 0.

    Raises:
        AttnExtError: shapes or dtypes do not fit.

    Example:
        >>> feature_map = make_feature_map("hedgehog", 2, 8, 16)
        >>> q = k = torch.randn(1, 2, 5, 8)
        >>> attention_weights(q, k, feature_map).sum(-1).allclose(torch.ones(1, 2, 5))
        True
    """
    check_inputs(q, k, None, feature_map, key_padding_mask)
    allowed = _allowed(q, k, causal, mask)
    with torch.autocast(q.device.type, enabled=False):
        dtype = accumulation_dtype(q)
        positions = token_positions(feature_map, k, key_padding_mask)
        if query_positions is None:
            if feature_map.uses_positions and k.shape[2] not in (0, q.shape[2]):
                raise AttnExtError(
                    f"kernel {feature_map.kernel!r} uses positions: give query_positions for a subset of the queries"
                )
            query_positions = positions if k.shape[2] else token_positions(feature_map, q, None)
        query = mapper(feature_map, "query", dtype, scaling)(q, query_positions)
        key = mapper(feature_map, "key", dtype, scaling)(k, positions, padded_positions(key_padding_mask))
        scores = query.features @ key.features.mT
        bounds = None if key.bound is None or query.bound is None else query.bound @ key.bound.mT
        if allowed is not None:
            scores = scores.masked_fill(~allowed, 0.0)
            bounds = None if bounds is None else bounds.masked_fill(~allowed, 0.0)
        if key.amplitude is not None and k.shape[2]:
            # relative to the largest amplitude that the query sees
            amplitude = key.amplitude[:, :, None, :]
            if allowed is not None:
                amplitude = amplitude.masked_fill(~allowed, -torch.inf)
            largest = amplitude.detach().amax(-1, keepdim=True)
            scale = (amplitude - torch.where(largest.isfinite(), largest, 0.0)).exp()
            scores, bounds = scores * scale, None if bounds is None else bounds * scale
        bound = None if bounds is None else bounds.sum(-1, keepdim=True)
        return scores / floored(scores.sum(-1, keepdim=True), bound, feature_map.rho)


def naive_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feature_map: FeatureMap,
    causal: bool = False,
    key_padding_mask: Tensor | None = None,
    mask: Tensor | None = None,
    scaling: float | None = None,
) -> Tensor:
    """Compute kernel attention from its dense weights, in quadratic time and memory, under any mask.

    Args:
        q, k: (B, H, Nq, d), (B, H, Nk, d).
        v: (B, H, Nk, d_v).
        feature_map, causal, key_padding_mask, mask, scaling: as in :func:`attention_weights`.

    Returns:
        (B, H, Nq, d_v) in v's dtype.

    Raises:
        AttnExtError: shapes or dtypes do not fit.

    Example:
        >>> feature_map = make_feature_map("hedgehog", 2, 8, 16)
        >>> q = k = v = torch.randn(1, 2, 5, 8)
        >>> naive_attention(q, k, v, feature_map, mask=torch.eye(5, dtype=torch.bool)).allclose(v)
        True
    """
    check_inputs(q, k, v, feature_map, key_padding_mask)
    weights = attention_weights(q, k, feature_map, causal, key_padding_mask, mask, scaling)
    with torch.autocast(q.device.type, enabled=False):
        return (weights @ v.to(weights.dtype)).to(v.dtype)


def _allowed(q: Tensor, k: Tensor, causal: bool, mask: Tensor | None) -> Tensor | None:
    """Return one bool mask (1 or B, 1, Nq, Nk) of the pairs that may attend, or None for all."""
    size = (q.shape[2], k.shape[2])
    allowed = None
    if mask is not None:
        fits = mask.ndim == 2 or (mask.ndim == 3 and mask.shape[0] in (1, k.shape[0]))
        if mask.dtype != torch.bool or not fits or tuple(mask.shape[-2:]) != size:
            raise AttnExtError(
                f"mask must be bool of shape {size} or (batch, {size[0]}, {size[1]}), True = may attend; "
                f"got {mask.dtype} {tuple(mask.shape)}"
            )
        allowed = mask[None, None] if mask.ndim == 2 else mask[:, None]
    if causal:
        check_causal(q, k)
        lower = torch.ones(size, dtype=torch.bool, device=q.device).tril()
        allowed = lower if allowed is None else allowed & lower
    return allowed
