"""The normaliser of kernel attention, and the scaling that keeps its exponentials in range. Source: ours.

Attention divides by ``den = phi(q) . sum_k phi(k)``. There are two policies, chosen by the kernel's ``signed``:

* **positive features** (hedgehog, performer, elu, uniform, flexformer_p): the sum itself.
* **signed features** (flexformer_s, _n, _c, _sq, rfa): sums of trigonometric features can be negative (or, squared, 0),
  and a denominator close to 0 makes a model useless. The features form groups, such as a cosine and its sine, whose
  norms m bound the kernel, ``|phi(q) . phi(k)| <= m(q) . m(k)``. So

      den = max(phi(q) . sum_k phi(k),  rho * m(q) . sum_k m(k))

  takes linear time and bounds every output by ``max|v| / rho``. If the floor applies, the weights of the row sum to
  less than one.

Exponentials: the *amplitude* of a token is its largest exponent over its features. A query's amplitude cancels and is
dropped. A key's amplitude is stored separately from its features, and is used relative to the largest amplitude among
the keys seen so far (the reference). So nothing overflows for any order of the keys, and a later key never pushes an
earlier one out of range. A row without any real key gives 0. So does a query whose kernel with every key is below 1e-30
(float32) of the product of their largest features, because float32 cannot represent the ratio of such numbers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hf_attn_ext.errors import AttnExtError

from .feature_map import Features


class Stabilised(NamedTuple):
    """``phi = exp(amplitude) * features``, in range.

    Attributes:
        features: (B, H, N, F); exactly 0 where padded.
        bound: (B, H, N, M), the group norms m on the same scale; None if no floor is needed.
        amplitude: (B, H, N); -inf where padded. None: 0 everywhere.
    """

    features: Tensor
    bound: Tensor | None
    amplitude: Tensor | None


def stabilise(part: Features, signed: bool, padded: Tensor | None = None) -> Stabilised:
    """Rescale features so that they neither overflow nor underflow, and return an amplitude per token.

    Args:
        part: features (B, H, N, F) of queries or keys.
        signed: whether the kernel can be negative, so that the normaliser needs bounds.
        padded: (B, 1, N, 1) bool, True = padding, or None.
    """
    values, bound, amplitude = part.values, part.bound, None
    scale = part.log_scale
    if scale is not None:
        if scale.shape[-1] == 1 and values is not None:
            amplitude, scale = scale.squeeze(-1), None
        else:
            top = scale.detach().amax(-1, keepdim=True)
            amplitude, scale = top.squeeze(-1), (scale - top).exp_()
            if values is None:
                values = scale
            else:
                groups = scale.shape[-1]
                values = (values.unflatten(-1, (-1, groups)) * scale[..., None, :]).flatten(-2)
    if values is None:
        raise AttnExtError("the feature map returned neither log_scale nor values: return one of them")
    if not signed:
        bound = None
    elif bound is None:
        bound = values.new_ones(*values.shape[:-1], 1) if scale is None else scale
    elif scale is not None:
        bound = bound * scale
    if padded is not None:
        values = values.masked_fill(padded, 0.0)
        bound = None if bound is None else bound.masked_fill(padded, 0.0)
        amplitude = None if amplitude is None else amplitude.masked_fill(padded.squeeze(-1), -torch.inf)
    return Stabilised(values, bound, amplitude)


def relative(amplitude: Tensor, reference: Tensor) -> Tensor:
    """Return ``exp(amplitude - reference)``; an amplitude of -inf stands for no key and gives 0."""
    return (amplitude - torch.where(reference.isfinite(), reference, 0.0)).exp()


def divide(weighted: Tensor, bound: Tensor | None, rho: float) -> Tensor:
    """Return the numerator divided by the normaliser; 0 for a row without any key.

    The numerator and, last, the denominator are in ``weighted`` (..., d_v + 1); ``bound`` is (..., 1) or None.
    """
    return weighted[..., :-1] / floored(weighted[..., -1:], bound, rho)


def floored(denominator: Tensor, bound: Tensor | None, rho: float) -> Tensor:
    """Return the larger of the denominator and the floor; 1 for an empty row."""
    denominator = _larger(denominator, bound, rho)
    # A row without any key becomes 0 / 1, with gradients of 0. So does a row whose kernel with every key is below 1e-30
    # of that of query and key with themselves: its quotient would be rounding, and its gradient not finite.
    return denominator.masked_fill(_is_empty(denominator), 1.0)


def empty_rows(weighted: Tensor, bound: Tensor | None, rho: float) -> Tensor:
    """Return the rows, bool (...), that :func:`divide` treats as rows without any key."""
    return _is_empty(_larger(weighted.detach()[..., -1:], bound, rho)).squeeze(-1)


def _larger(denominator: Tensor, bound: Tensor | None, rho: float) -> Tensor:
    return denominator if bound is None else torch.maximum(denominator, rho * bound)


def _is_empty(denominator: Tensor) -> Tensor:
    return denominator < torch.finfo(denominator.dtype).tiny * 1e8
