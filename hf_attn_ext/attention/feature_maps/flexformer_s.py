"""Flexformer_s: stationary kernel with learned spectral frequencies (Bochner).

Source: arXiv 2606.27748, section on Flexformer_s.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hf_attn_ext.attention.feature_map import FeatureMap, Features, Side
from hf_attn_ext.attention.moments import phase_scale
from hf_attn_ext.attention.registry import register_kernel
from hf_attn_ext.attention.statistics import QKStatistics


@register_kernel("flexformer_s")
class FlexformerS(FeatureMap):
    """``phi(x) = exp(|x|^2 / (2 sqrt d)) n^-1/2 [cos w_1.x .. cos w_n.x, sin w_1.x .. sin w_n.x]``, w learned per head.

    With ``w ~ N(0, d^-1/2 I)``, the initialisation, this is the unbiased random-feature estimate of softmax; its error
    falls as n^-1/2. feature_dim is 2n. The kernel can be negative: the normaliser has a floor of ``rho`` (ours).

    Args:
        num_heads, head_dim, num_features, seed: see :func:`make_feature_map`.
        rho: floor of the normaliser (``attention/normaliser.py``).
        frequency_std: standard deviation of w; None is the softmax-matched ``d^-1/4``.
        spread: root mean square of the phases ``w.x`` over real tokens, set by :meth:`calibrate` (ours).
    """

    signed = True

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_features: int,
        seed: int = 0,
        rho: float = 0.1,
        frequency_std: float | None = None,
        spread: float = 0.7,
    ) -> None:
        super().__init__(num_heads, head_dim, num_features, 2 * num_features, rho)
        std = head_dim**-0.25 if frequency_std is None else frequency_std
        self.spread = spread
        generator = torch.Generator().manual_seed(seed)
        self.frequency = nn.Parameter(std * torch.randn(num_heads, num_features, head_dim, generator=generator))

    def forward(self, x: Tensor, side: Side) -> Features:
        """Return the 2n Fourier features of ``x`` (B, H, N, head_dim)."""
        phase = x @ self.frequency.to(x.dtype).mT
        values = torch.cat([phase.cos(), phase.sin()], -1) * self.num_features**-0.5
        return Features(x.square().sum(-1, keepdim=True) / (2 * self.head_dim**0.5), values)

    @torch.no_grad()
    def calibrate(self, statistics: QKStatistics) -> None:
        """Scale the phases to the root mean square ``spread``; weights then start smooth, see flexformer_n."""
        self.frequency.mul_(phase_scale(self.frequency, statistics.second_moment, self.spread))
