"""Flexformer_sq: the square of a Flexformer kernel, never negative. Source: ours."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from hf_attn_ext.attention.affine import AffineMap, balance, project
from hf_attn_ext.attention.feature_map import FeatureMap, Features, Side
from hf_attn_ext.attention.moments import phase_scale
from hf_attn_ext.attention.registry import register_kernel
from hf_attn_ext.attention.statistics import QKStatistics


@register_kernel("flexformer_sq")
class FlexformerSq(FeatureMap):
    """``(psi(q) . psi(k))^2`` with ``psi(x) = exp(c |x|^2) [r_i cos(w_i.x), r_i sin(w_i.x)]``, all learned per head.

    The square of a positive semidefinite kernel is positive semidefinite and never negative. The square of a stationary
    kernel is stationary, with the convolution of the spectral density with itself as its spectral density, so it stays
    in the paper's family. The features are the symmetric products of the 2n base features: feature_dim is n(2n + 1);
    n = 8 gives 136 features from 8 cosines per head. Unrelated tokens keep a similarity of about 1 / (2n), so their
    total weight grows with their number.

    Args:
        num_heads, head_dim, num_features, seed: see :func:`make_feature_map`.
        rho: floor of the normaliser (``attention/normaliser.py``); the kernel can be close to 0.
        affine: learn an affine map of queries and one of keys, applied first.
        frequency_std: standard deviation of w; None is the softmax-matched ``(d^-1/2 / 2)^1/2``.
        spread: root mean square of the phases ``w.x`` over real tokens, set by :meth:`calibrate`.
    """

    signed = True
    rows: Tensor
    columns: Tensor
    pair_weight: Tensor
    affine_maps = ("query_map", "key_map")
    folded_options: ClassVar = {"affine": False}

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_features: int,
        seed: int = 0,
        rho: float = 0.01,
        affine: bool = True,
        frequency_std: float | None = None,
        spread: float = 0.7,
    ) -> None:
        super().__init__(num_heads, head_dim, num_features, num_features * (2 * num_features + 1), rho)
        std = (head_dim**-0.5 / 2) ** 0.5 if frequency_std is None else frequency_std
        generator = torch.Generator().manual_seed(seed)
        self.spread = spread
        self.frequency = nn.Parameter(std * torch.randn(num_heads, num_features, head_dim, generator=generator))
        self.log_amplitude = nn.Parameter(torch.zeros(num_heads, num_features))
        self.phase = nn.Parameter(torch.zeros(num_heads, num_features))
        self.norm_weight = nn.Parameter(torch.full((num_heads,), head_dim**-0.5 / 2))
        self.query_map = AffineMap(num_heads, head_dim) if affine else None
        self.key_map = AffineMap(num_heads, head_dim) if affine else None
        rows, columns = torch.triu_indices(2 * num_features, 2 * num_features)
        weight = torch.where(rows == columns, 1.0, 2.0**0.5)
        self.register_buffer("rows", rows, persistent=False)
        self.register_buffer("columns", columns, persistent=False)
        self.register_buffer("pair_weight", weight, persistent=False)

    def forward(self, x: Tensor, side: Side) -> Features:
        """Return the n(2n + 1) products of the base features of ``x`` (B, H, N, head_dim)."""
        affine = self.query_map if side == "query" else self.key_map
        if affine is not None:
            x = project(x, *(part.to(x.dtype) for part in affine()))
        phase = x @ self.frequency.to(x.dtype).mT
        if side == "key":
            phase = phase + self.phase.to(x.dtype)[:, None]
        amplitude = self.log_amplitude.to(x.dtype).exp()[:, None] * self.num_features**-0.5
        base = torch.cat([phase.cos() * amplitude, phase.sin() * amplitude], -1)
        values = base[..., self.rows] * base[..., self.columns] * self.pair_weight.to(x.dtype)
        log_scale = x.square().sum(-1, keepdim=True) * self.norm_weight.to(x.dtype)[:, None, None]
        return Features(log_scale, values, base.square().sum(-1, keepdim=True))

    @torch.no_grad()
    def calibrate(self, statistics: QKStatistics) -> None:
        """Set the affine maps and frequencies from statistics of queries and keys.

        The maps centre the keys and give queries and keys the same covariance, neither of which changes softmax. The
        phases are scaled to ``spread``, so that training starts from smooth weights, see flexformer_n.
        """
        moment = statistics.second_moment
        if self.query_map is not None and self.key_map is not None:
            moment = balance(self.query_map, self.key_map, statistics)
        self.frequency.mul_(phase_scale(self.frequency, moment, self.spread))
