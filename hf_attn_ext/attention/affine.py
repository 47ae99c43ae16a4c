"""A learned affine map of queries and one of keys, in front of a feature map.

Softmax is invariant to ``q -> A q, k -> A^-T k`` and to a shift of all keys. A kernel is not, so it helps to learn
both. Source: ours.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .moments import matrix_power
from .statistics import QKStatistics


class AffineMap(nn.Module):
    """``x -> (x - shift) @ weight`` per head; starts as the identity.

    Calling it multiplies it into the projection that follows, so that both cost one product:

        >>> affine = AffineMap(num_heads=2, head_dim=4)
        >>> weight, bias = affine(torch.randn(2, 4, 16))
        >>> project(torch.randn(1, 2, 9, 4), weight, bias).shape
        torch.Size([1, 2, 9, 16])

    Args:
        num_heads: H.
        head_dim: d.
    """

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(num_heads, head_dim))
        self.weight = nn.Parameter(torch.eye(head_dim).repeat(num_heads, 1, 1))

    def forward(self, weight: Tensor | None = None, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return ``(x - shift) @ self.weight @ weight + bias`` as one weight and one bias for :func:`project`.

        They are (H, d, R) and (H, 1, R), in the dtype of ``weight``; None for ``weight`` is the identity.
        """
        folded = self.weight if weight is None else self.weight.to(weight.dtype) @ weight
        shifted = -self.shift[:, None, :].to(folded.dtype) @ folded
        return folded, shifted if bias is None else bias + shifted


def project(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``x @ weight + bias`` per head, (B, H, N, d) by (H, d, R) plus (H, 1, R) or None, in one pass."""
    if bias is None:
        return x @ weight
    batch, heads, length, dim = x.shape
    if batch != 1:
        weight, bias = weight.repeat(batch, 1, 1), bias.repeat(batch, 1, 1)
    out = torch.baddbmm(bias, x.reshape(batch * heads, length, dim), weight)
    return out.view(batch, heads, length, weight.shape[-1])


@torch.no_grad()
def balance(query_map: AffineMap, key_map: AffineMap, statistics: QKStatistics) -> Tensor:
    """Set both maps so that scores keep their softmax and mapped queries and keys have one covariance.

    With A = Cq^-1/2 U S^1/2 and B = Ck^-1/2 V S^1/2 from the SVD Cq^1/2 Ck^1/2 = U S V^T, ``(q A) . (k B) = q . k`` and
    both covariances become the diagonal S, which is returned as (H, d, d). Keys are centred on their mean, to which
    softmax is invariant.
    """
    query_covariance, key_covariance = statistics.query_covariance, statistics.key_covariance
    u, s, vt = torch.linalg.svd(matrix_power(query_covariance, 0.5) @ matrix_power(key_covariance, 0.5))
    root = s.clamp_min(s[..., :1] * 1e-6).sqrt()[..., None, :]
    query_map.weight.copy_(matrix_power(query_covariance, -0.5) @ (u * root))
    key_map.weight.copy_(matrix_power(key_covariance, -0.5) @ (vt.mT * root))
    query_map.shift.zero_()
    key_map.shift.copy_(statistics.key_mean)
    return torch.diag_embed(root.squeeze(-2).square())
