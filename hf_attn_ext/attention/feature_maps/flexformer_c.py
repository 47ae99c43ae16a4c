"""Flexformer_c: complex frequencies, the default kernel. Source: ours."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from hf_attn_ext.attention.affine import AffineMap, project
from hf_attn_ext.attention.feature_map import FeatureMap, Features, Side, SoftmaxFeatures, softmax_and_log
from hf_attn_ext.attention.moments import matrix_power
from hf_attn_ext.attention.registry import register_kernel
from hf_attn_ext.attention.statistics import QKStatistics
from hf_attn_ext.errors import AttnExtError


@register_kernel("flexformer_c")
class FlexformerC(FeatureMap):
    """Exponentials of learned complex frequencies ``u + i a``: ``kernel(x, y) = sum_i e^{u_i.(x+y)} cos(a_i.(x-y))``.

    Fourier features (u = 0), Performer's positive features (a = 0) and all between are in the family. A
    frequency costs two features, ``e^{u.x} [cos a.x, sin a.x]``, and one where a is held at 0, ``e^{u.x}``;
    ``complex_share`` says how many of the 2n features belong to complex frequencies. Learned per head: the
    frequencies, an amplitude each, the weight c of ``|x|^2 / d`` in the exponent, the share b of a key's
    log-sum over its features that is taken off it again (a key's own amplitude), and an affine map of queries
    and one of keys. One set of frequencies serves queries and keys; feature_dim is 2n. Prior art: generalised
    exponential random features (Chefs' Random Tables, 2205.15317), fixed there, learned here; b = 1 is
    Hedgehog's normalisation.

    Args:
        num_heads, head_dim, num_features, seed: see :func:`make_feature_map`.
        rho: floor of the normaliser (``attention/normaliser.py``); not needed at complex_share 0.
        complex_share: share of the features that belong to complex frequencies, 0 to 1.
        real_std, imaginary_std: standard deviations of u and of a.
        key_normaliser: initial b.
        affine: learn the affine maps.
        spread: standard deviation of the exponents over real tokens, set by :meth:`calibrate`; None takes 1 +
            s / 2, where s is the standard deviation of the head's softmax scores.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_features: int,
        seed: int = 0,
        rho: float = 0.2,
        complex_share: float = 0.0,
        real_std: float = 0.3,
        imaginary_std: float = 0.1,
        key_normaliser: float = 1.0,
        affine: bool = True,
        spread: float | None = None,
    ) -> None:
        super().__init__(num_heads, head_dim, num_features, 2 * num_features, rho)
        if not 0 <= complex_share <= 1:
            raise AttnExtError(f"complex_share must lie between 0 and 1, got {complex_share!r}")
        self.num_complex = round(complex_share * num_features)
        self.signed = self.num_complex > 0
        self.seed, self.spread = seed, spread
        frequencies = 2 * num_features - self.num_complex
        generator = torch.Generator().manual_seed(seed)
        real = torch.randn(num_heads, frequencies, head_dim, generator=generator)
        self.real = nn.Parameter(real_std * real)
        imaginary = torch.randn(num_heads, self.num_complex, head_dim, generator=generator)
        self.imaginary = nn.Parameter(imaginary_std * imaginary) if self.signed else None
        self.log_amplitude = nn.Parameter(torch.zeros(num_heads, frequencies))
        self.norm_weight = nn.Parameter(torch.zeros(num_heads))
        self.key_normaliser = nn.Parameter(torch.full((num_heads,), key_normaliser))
        self.query_map = AffineMap(num_heads, head_dim) if affine else None
        self.key_map = AffineMap(num_heads, head_dim) if affine else None
        # |cos cos' + sin sin'| <= 1 = 1/2 + 1/2: a pair's bound is spread over its two features
        bound = torch.ones(2 * num_features)
        bound[: 2 * self.num_complex] = 0.5**0.5
        self.register_buffer("bound", bound, persistent=False)

    def forward(self, x: Tensor, side: Side) -> Features:
        return self.bind(side, x.dtype)(x)

    def bind(self, side: Side, dtype: torch.dtype) -> Callable[[Tensor], Features]:
        affine = self.query_map if side == "query" else self.key_map
        weight, bias = self._exponent(affine, dtype)
        turn, turn_bias = (self.imaginary.to(dtype).mT, None) if self.signed else (None, None)
        if affine is not None:
            turn, turn_bias = affine(turn) if self.signed else (None, None)
            identity = [part.to(dtype) for part in affine()]
        weight_of_norm, weight_of_total = (x[:, None, None] for x in self._amplitude_weights(dtype))

        def apply(x: Tensor) -> Features:
            exponent = project(x, weight, bias)
            if side == "query":
                values, amplitude = exponent.softmax(-1), None  # a query's own amplitude cancels
            else:
                values, total = softmax_and_log(exponent)
                mapped = x if affine is None else project(x, *identity)
                norm = torch.linalg.vecdot(mapped, mapped)[..., None] * weight_of_norm
                amplitude = norm + total * weight_of_total
            if not self.signed:
                return Features(amplitude, values)
            n = self.num_complex
            phase = project(x, turn, turn_bias)
            size, rest = values[..., :n], values[..., n:]
            bound = torch.cat([size, size, rest], -1) * self.bound.to(dtype)
            return Features(amplitude, torch.cat([size * phase.cos(), size * phase.sin(), rest], -1), bound)

        return apply

    def softmax_features(self, dtype: torch.dtype) -> SoftmaxFeatures | None:
        if self.signed:
            return None
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
        """Weight (H, d, F) and bias (H, 1, F) of ``u_i . x`` and its amplitude, behind an affine map."""
        weight, bias = self.real.to(dtype).mT, self.log_amplitude.to(dtype)[:, None]
        return (weight, bias) if affine is None else affine(weight, bias)

    def _amplitude_weights(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """What a key's squared norm and its log-sum count in its amplitude, (H,) each."""
        return self.norm_weight.to(dtype) / self.head_dim, 1 - self.key_normaliser.to(dtype)

    @torch.no_grad()
    def calibrate(self, statistics: QKStatistics) -> None:
        """Centre the keys, which softmax does not see, and make real keys the real parts: a feature then measures how
        much a token is like that key. A head with sharper scores gets longer ones, see ``spread``.
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
