"""How a kernel's weights are made to sum to one, and how its exponentials are kept in range. Source: ours.

Attention divides by ``den = phi(q) . sum_k phi(k)``. Two policies, chosen by the kernel's ``signed``:

* **positive features** (hedgehog, performer, uniform): the sum itself.
* **signed features** (flexformer_s, _n, _c, _sq): sums of trigonometric features go negative (or, squared, to 0), and a
  denominator near 0 ruins a model. The features come in groups (a cosine and its sine, say) whose norms m
  bound the kernel, ``|phi(q) . phi(k)| <= m(q) . m(k)``. So

      den = max(phi(q) . sum_k phi(k),  rho * m(q) . sum_k m(k))

  costs linear time and bounds every output by ``max|v| / rho``: nothing can blow up. Where the floor acts, a row's
  weights sum to less than one.

Exponentials: each feature's largest exponent over the (real) keys moves to the query's side, and each query's
largest exponent is then dropped, since it cancels. Both leave the result as it is. A sequence without any real
key gives 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .feature_maps.base import Features


class Stabilised(NamedTuple):
    """Features ready to be multiplied; ``bound`` holds the group norms m, or is None where no floor is needed."""

    features: Tensor
    bound: Tensor | None


def stabilise(
    query: Features, key: Features, key_padding_mask: Tensor | None, signed: bool
) -> tuple[Stabilised, Stabilised]:
    """Multiply the factors of ``query`` and ``key`` out, in range, padded keys exactly 0.

    Args:
        query, key: factored features, (B, H, Nq, .) and (B, H, Nk, .).
        key_padding_mask: (B, Nk) bool, True = real token, or None.
        signed: whether bounds are needed.

    Returns:
        The query's and the key's :class:`Stabilised`.
    """
    padded = None if key_padding_mask is None else ~key_padding_mask[:, None, :, None]
    if key.log_scale is None:
        query_scale = key_scale = None
    else:
        exponent = key.log_scale if padded is None else key.log_scale.masked_fill(padded, -torch.inf)
        if exponent.shape[-2]:
            peak = exponent.detach().amax(-2, keepdim=True)
        else:  # no key at all has no largest exponent
            peak = exponent.new_zeros(*exponent.shape[:-2], 1, exponent.shape[-1])
        peak = torch.where(peak.isfinite(), peak, torch.zeros_like(peak))
        key_scale = (exponent - peak).exp()
        exponent = query.log_scale + peak
        query_scale = (exponent - exponent.detach().amax(-1, keepdim=True)).exp()
    return _scaled(query, query_scale, None, signed), _scaled(key, key_scale, padded, signed)


def denominator(features_sum: Tensor, bound_sum: Tensor | None, query: Stabilised, rho: float) -> Tensor:
    """Return the normaliser (B, H, Nq, 1) of each query, given the sums over its keys.

    Args:
        features_sum: (B, H, F) or (B, H, Nq, F), the sum of the keys' features that the query sees.
        bound_sum: the same of the keys' bounds, or None.
        query: the stabilised query.
        rho: the floor.
    """
    value = _dot(query.features, features_sum)
    if bound_sum is not None:
        value = torch.maximum(value, rho * _dot(query.bound, bound_sum))
    # only a row without any key is this small: stabilised features of a real key reach 1
    return value.clamp_min(torch.finfo(value.dtype).tiny * 1e6)


def _dot(x: Tensor, y: Tensor) -> Tensor:
    if y.ndim == x.ndim:
        return (x * y).sum(-1, keepdim=True)
    return x @ y[..., None]


def _scaled(part: Features, scale: Tensor | None, padded: Tensor | None, signed: bool) -> Stabilised:
    if part.values is None:
        values = scale  # already 0 where padded
    else:
        values = part.values
        if scale is not None:
            groups = scale.shape[-1]
            values = (values.unflatten(-1, (-1, groups)) * scale[..., None, :]).flatten(-2)
        if padded is not None:
            values = values.masked_fill(padded, 0.0)
    if not signed:
        return Stabilised(values, None)
    bound = part.bound
    if bound is None:
        bound = scale
    elif scale is not None:
        bound = bound * scale
    if padded is not None:
        bound = bound.masked_fill(padded, 0.0)
    return Stabilised(values, bound)
