"""Flexformer_p: positive features, exponentials of learned frequencies; the default kernel. Source: ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, nn

from hf_attn_ext.attention.affine import AffineMap, project
from hf_attn_ext.attention.feature_map import FeatureMap, Features, Side, SoftmaxFeatures, softmax_and_log
from hf_attn_ext.attention.moments import matrix_power
from hf_attn_ext.attention.registry import register_kernel
from hf_attn_ext.attention.statistics import QKStatistics


@register_kernel("flexformer_p")
class FlexformerP(FeatureMap):
    """Exponentials of learned frequencies u: ``kernel(x, y) = sum_i e^{u_i.(x+y)}``, never negative.

    Learned per head: the frequencies, one amplitude for each, the weight c of ``|x|^2 / d`` in the exponent, the share
    b of a key's log-sum over its features that is subtracted again (a key's own amplitude), and an affine map of
    queries and one of keys. Queries and keys share one set of 2n frequencies; feature_dim is 2n. Prior art: Performer's
    positive features, fixed there, learned here; b = 1 is Hedgehog's normalisation.

    Args:
        num_heads, head_dim, num_features, seed: see :func:`make_feature_map`.
        real_std: standard deviation of u.
        key_normaliser: initial b.
        affine: learn the affine maps.
        spread: standard deviation of the exponents over real tokens, set by :meth:`calibrate`; None takes 1 +
            s / 2, where s is the standard deviation of the head's softmax scores.
    """

    affine_maps = ("query_map", "key_map")
    folded_options: ClassVar = {"affine": False}

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_features: int,
        seed: int = 0,
        real_std: float = 0.3,
        key_normaliser: float = 1.0,
        affine: bool = True,
        spread: float | None = None,
    ) -> None:
        super().__init__(num_heads, head_dim, num_features, 2 * num_features)
        real = torch.randn(num_heads, 2 * num_features, head_dim, generator=torch.Generator().manual_seed(seed))
        self._add_parameters(real_std * real, seed, key_normaliser, affine, spread)

    def _add_parameters(
        self, real: Tensor, seed: int, key_normaliser: float, affine: bool, spread: float | None
    ) -> None:
        """Add the parameters, with frequencies ``real`` (H, F, d)."""
        self.seed, self.spread = seed, spread
        self.real = nn.Parameter(real)
        self.log_amplitude = nn.Parameter(torch.zeros(real.shape[:2]))
        self.norm_weight = nn.Parameter(torch.zeros(self.num_heads))
        self.key_normaliser = nn.Parameter(torch.full((self.num_heads,), key_normaliser))
        self.query_map = AffineMap(self.num_heads, self.head_dim) if affine else None
        self.key_map = AffineMap(self.num_heads, self.head_dim) if affine else None

    def forward(self, x: Tensor, side: Side) -> Features:
        """Return the 2n exponentials of ``x`` (B, H, N, head_dim)."""
        return self.bind(side, x.dtype)(x)

    def bind(self, side: Side, dtype: torch.dtype) -> Callable[[Tensor], Features]:
        """Return the map with the affine map of this side multiplied into the frequencies."""
        affine = self.query_map if side == "query" else self.key_map
        weight, bias = self._exponent(affine, dtype)
        identity = None if affine is None else [part.to(dtype) for part in affine()]
        weight_of_norm, weight_of_total = (x[:, None, None] for x in self._amplitude_weights(dtype))

        def apply(x: Tensor) -> Features:
            exponent = project(x, weight, bias)
            if side == "query":
                return Features(None, exponent.softmax(-1))  # a query's own amplitude cancels
            values, total = softmax_and_log(exponent)
            mapped = x if identity is None else project(x, *identity)
            norm = torch.linalg.vecdot(mapped, mapped)[..., None] * weight_of_norm
            return Features(norm + total * weight_of_total, values)

        return apply

    def softmax_features(self, dtype: torch.dtype) -> SoftmaxFeatures | None:
        """Return the feature map in the form that the native op computes."""
        (query_weight, query_bias), (key_weight, key_bias) = (
            self._exponent(affine, dtype) for affine in (self.query_map, self.key_map)
        )
        if self.key_map is None:
            matrix = torch.eye(self.head_dim, dtype=dtype, device=self.real.device).expand(self.num_heads, -1, -1)
            shift = matrix.new_zeros(self.num_heads, self.head_dim)
        else:
            weight, shift = self.key_map.weight.to(dtype), self.key_map.shift.to(dtype)
            matrix = weight @ weight.mT
        amplitude = self._amplitude_weights(dtype)
        return SoftmaxFeatures(
            query_weight, query_bias.squeeze(1), key_weight, key_bias.squeeze(1), matrix, shift, *amplitude
        )

    def _exponent(self, affine: AffineMap | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Weight (H, d, F) and bias (H, 1, F) of ``u_i . x`` plus its log-amplitude, after an affine map."""
        weight, bias = self.real.to(dtype).mT, self.log_amplitude.to(dtype)[:, None]
        return (weight, bias) if affine is None else affine(weight, bias)

    def _amplitude_weights(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The weights of a key's squared norm and of its log-sum in its amplitude, (H,) each."""
        return self.norm_weight.to(dtype) / self.head_dim, 1 - self.key_normaliser.to(dtype)

    @torch.no_grad()
    def calibrate(self, statistics: QKStatistics) -> None:
        """Centre the keys, to which softmax is invariant, and take real keys as the frequencies.

        A feature then measures how similar a token is to that key. A head with sharper scores gets longer frequencies,
        see ``spread``.
        """
        queries, keys = statistics.query_covariance, statistics.key_covariance
        mean = statistics.key_mean
        if self.key_map is not None:
            self.key_map.shift.copy_(mean)
        real = self.real.double().cpu() @ matrix_power(keys, 0.5)
        sample = statistics.key_sample.double() - mean[:, None]
        generator = torch.Generator().manual_seed(self.seed)
        chosen = torch.randperm(sample.shape[1], generator=generator)[: real.shape[1]]
        real[:, : len(chosen)] = sample[:, chosen]  # where the sample is short, the rest keeps its covariance
        variance = torch.einsum("hnd,hde,hne->hn", real, (queries + keys) / 2, real).mean(-1)
        if self.spread is None:
            score_std = (torch.einsum("hde,hed->h", queries, keys) / self.head_dim).clamp_min(0).sqrt()
            spread = 1 + score_std / 2
        else:
            spread = torch.full_like(variance, self.spread)
        scale = spread / variance.clamp_min(torch.finfo(variance.dtype).tiny).sqrt()
        self.real.copy_(real * scale[:, None, None])
