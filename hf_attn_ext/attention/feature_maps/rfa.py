"""RFA: random Fourier features of normalised queries and keys. Source: arXiv 2103.02143."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from hf_attn_ext.attention.feature_map import FeatureMap, Features, Side
from hf_attn_ext.attention.registry import register_kernel


@register_kernel("rfa")
class RFA(FeatureMap):
    """``phi(x) = n^-1/2 [sin w_i.x', cos w_i.x']_i``, ``x' = x / |x|``, ``w_i = sigma * w~_i``, ``w~_i ~ N(0, I)``.

    The features estimate the Gaussian kernel ``exp(-|sigma * (q' - k')|^2 / 2)`` with an error of n^-1/2. If sigma is
    the same in all channels, that is ``exp(sigma^2 q'.k')`` up to a factor that the normaliser removes. Learned: sigma,
    per head and channel. The w~ are a buffer, saved with the model. feature_dim is 2n. The kernel can be negative, so
    the normaliser has a floor of ``rho`` (ours).

    Left out: the source's gate (recency), and training on a new draw of w~ in every step; here one draw is kept.

    Args:
        num_heads, head_dim, num_features, seed: see :func:`make_feature_map`.
        rho: floor of the normaliser (``attention/normaliser.py``).
        frequency_std: initial sigma, and the standard deviation of the phases, as ``|x'| = 1``: no data can set it.
    """

    signed = True
    direction: Tensor

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_features: int,
        seed: int = 0,
        rho: float = 0.1,
        frequency_std: float = 1.0,
    ) -> None:
        super().__init__(num_heads, head_dim, num_features, 2 * num_features, rho)
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("direction", torch.randn(num_heads, num_features, head_dim, generator=generator))
        self.sigma = nn.Parameter(torch.full((num_heads, head_dim), frequency_std))

    def forward(self, x: Tensor, side: Side) -> Features:
        """Return the 2n Fourier features of ``x`` (B, H, N, head_dim), normalised."""
        frequency = self.direction.to(x.dtype) * self.sigma.to(x.dtype)[:, None, :]
        phase = functional.normalize(x, dim=-1) @ frequency.mT
        return Features(None, torch.cat([phase.sin(), phase.cos()], -1) * self.num_features**-0.5)
