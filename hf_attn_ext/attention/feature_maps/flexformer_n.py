"""Flexformer_n: nonstationary kernel with learned frequency pairs (Yaglom).

Source: arXiv 2606.27748, section on Flexformer_n.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from hf_attn_ext.attention.feature_map import FeatureMap, Features, Side
from hf_attn_ext.attention.moments import phase_scale
from hf_attn_ext.attention.registry import register_kernel
from hf_attn_ext.attention.statistics import QKStatistics


@register_kernel("flexformer_n")
class FlexformerN(FeatureMap):
    """Symmetrised Yaglom features with a learned norm scale.

    ``phi(x) = exp(|x|^2 / exp(tau)) n^-1/2 [cos a_i.x cos b_i.x, sin a_i.x cos b_i.x]``.

    Learned per head: n pairs ``(w1_i, w2_i)``, with ``a = (w1 + w2) / 2`` and ``b = (w1 - w2) / 2``, and the norm scale
    ``tau`` (per head: ours). ``w1 = w2`` and ``exp(tau) = 2 sqrt d`` give flexformer_s. feature_dim is 2n. The kernel
    can be negative: the normaliser has a floor of ``rho`` (ours).

    Args:
        num_heads, head_dim, num_features, seed: see :func:`make_feature_map`.
        rho: floor of the normaliser (``attention/normaliser.py``).
        frequency_std: standard deviation of a; None is the softmax-matched ``d^-1/4``.
        difference_std: standard deviation of b. At b = 0 its gradient is 0, so it starts away from there.
        norm_scale: initial ``exp(tau)``; None is the softmax-matched ``2 sqrt d``.
        spread: root mean square of the phases ``a.x`` over real tokens, set by :meth:`calibrate` (ours).
    """

    signed = True
    test_options: ClassVar = {"": {"difference_std": 0.3}}

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_features: int,
        seed: int = 0,
        rho: float = 0.1,
        frequency_std: float | None = None,
        difference_std: float = 0.05,
        norm_scale: float | None = None,
        spread: float = 0.7,
    ) -> None:
        super().__init__(num_heads, head_dim, num_features, 2 * num_features, rho)
        std = head_dim**-0.25 if frequency_std is None else frequency_std
        scale = 2 * head_dim**0.5 if norm_scale is None else norm_scale
        generator = torch.Generator().manual_seed(seed)
        size = (num_heads, num_features, head_dim)
        mean = std * torch.randn(size, generator=generator)
        half = difference_std * torch.randn(size, generator=generator)
        self.frequency_1 = nn.Parameter(mean + half)
        self.frequency_2 = nn.Parameter(mean - half)
        self.spread = spread
        self.tau = nn.Parameter(torch.full((num_heads,), math.log(scale)))

    def forward(self, x: Tensor, side: Side) -> Features:
        """Return the 2n Yaglom features of ``x`` (B, H, N, head_dim)."""
        first, second = self.frequency_1.to(x.dtype), self.frequency_2.to(x.dtype)
        phase = x @ ((first + second) / 2).mT
        envelope = (x @ ((first - second) / 2).mT).cos() * self.num_features**-0.5
        values = torch.cat([phase.cos() * envelope, phase.sin() * envelope], -1)
        norm_scale = self.tau.to(x.dtype).exp()[:, None, None]
        return Features(x.square().sum(-1, keepdim=True) / norm_scale, values)

    @torch.no_grad()
    def calibrate(self, statistics: QKStatistics) -> None:
        """Scale the phases to the root mean square ``spread``, and set ``exp(tau)`` to the tokens' mean ``|x|^2``.

        The softmax-matched initialisation is unbiased, but its weights are mostly noise if ``|x|`` is large, as in
        trained heads; training gets further from smooth weights.
        """
        moment = statistics.second_moment
        mean = (self.frequency_1 + self.frequency_2) / 2
        scale = phase_scale(mean, moment, self.spread)
        self.frequency_1.mul_(scale)
        self.frequency_2.mul_(scale)
        self.tau.copy_(moment.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(1e-6).log())
