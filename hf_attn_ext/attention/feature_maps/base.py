"""What every feature map is: per head and layer, queries and keys to features whose dot products are the kernel."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from ...errors import AttnExtError
from ..statistics import QKStatistics

Side = Literal["query", "key"]


class Features(NamedTuple):
    """Features in factored form, ``phi = exp(log_scale) * values``, so that exponentials can be stabilised.

    Attributes:
        log_scale: (B, H, N, G), or None for 0; G divides feature_dim, and feature ``j`` has the exponent ``j % G``.
        values: (B, H, N, feature_dim), or None for 1, with G = feature_dim. Not both are None.
        bound: group norms of ``values`` that bound the kernel, ``|values_q . values_k| <= bound_q . bound_k``, of
            shape (B, H, N, M) with G = M or G = 1; None where they are all 1 with M = G. Only read where ``signed``.
    """

    log_scale: Tensor | None
    values: Tensor | None
    bound: Tensor | None = None


class FeatureMap(nn.Module):
    """Base class of all kernels: ``kernel(q, k) = phi_query(q) . phi_key(k)``.

    Subclasses implement :meth:`forward` and set ``signed``. Inputs arrive in float32 or float64 (the attention forms
    see to that), already scaled so that the softmax the map stands in for is ``exp(q . k / sqrt(head_dim))``.

    Args:
        num_heads, head_dim, num_features: as in :func:`make_feature_map`.
        feature_dim: the width of the features that :meth:`forward` returns.
        rho: the floor of the normaliser, see ``attention/normaliser.py``; only used where ``signed``.

    Attributes:
        kernel: the registered name.
        signed: True if features can be negative, so that their products may cancel; the normaliser then gets a floor.
    """

    kernel: str = ""
    signed: bool = False

    def __init__(self, num_heads: int, head_dim: int, num_features: int, feature_dim: int, rho: float = 0.0) -> None:
        super().__init__()
        if not 0 <= rho <= 1:
            raise AttnExtError(f"rho must lie between 0 and 1, got {rho!r}")
        self.num_heads, self.head_dim, self.num_features = num_heads, head_dim, num_features
        self.feature_dim, self.rho = feature_dim, rho

    def forward(self, x: Tensor, side: Side) -> Features:
        """Map ``x`` (B, H, N, head_dim) to :class:`Features`; ``side`` says whether x are queries or keys."""
        raise NotImplementedError

    @torch.no_grad()
    def calibrate(self, statistics: QKStatistics) -> None:
        """Data-aware initialisation in place, from moments of real queries and keys. The base class leaves all
        as is.
        """

    def extra_repr(self) -> str:
        return (
            f"{self.num_heads} heads x {self.head_dim}, num_features={self.num_features}, "
            f"feature_dim={self.feature_dim}"
        )
