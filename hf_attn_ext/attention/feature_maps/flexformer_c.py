"""Flexformer_c: exponentials of learned complex frequencies. Source: ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from hf_attn_ext.attention.affine import project
from hf_attn_ext.attention.feature_map import FeatureMap, Features, Side, SoftmaxFeatures
from hf_attn_ext.attention.registry import register_kernel
from hf_attn_ext.errors import AttnExtError

from .flexformer_p import FlexformerP


@register_kernel("flexformer_c")
class FlexformerC(FlexformerP):
    """Exponentials of complex frequencies ``u + i a``: ``kernel(x, y) = sum_i e^{u_i.(x+y)} cos(a_i.(x-y))``.

    Fourier features (u = 0) and flexformer_p (a = 0) are its two limits. A complex frequency takes two features,
    ``e^{u.x} [cos a.x, sin a.x]``, and a real one takes one, ``e^{u.x}``; ``complex_share`` is the share of the 2n
    features that belong to complex frequencies. All else is as in flexformer_p. The kernel can be negative: the
    normaliser has a floor of ``rho``. Prior art: generalised exponential random features (Chefs' Random Tables,
    2205.15317), fixed there, learned here.

    Args:
        num_heads, head_dim, num_features, seed: see :func:`make_feature_map`.
        rho: floor of the normaliser (``attention/normaliser.py``).
        complex_share: share of the features that belong to complex frequencies, above 0, at most 1.
        real_std, imaginary_std: standard deviations of u and of a.
        key_normaliser, affine, spread: as in flexformer_p.

    Raises:
        AttnExtError: ``complex_share`` is out of range.
    """

    signed = True
    bound: Tensor
    stated_options = ("complex_share",)
    test_options: ClassVar = {"": {}, "-complex": {"complex_share": 1.0, "imaginary_std": 0.6}}

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_features: int,
        seed: int = 0,
        rho: float = 0.2,
        complex_share: float = 0.5,
        real_std: float = 0.3,
        imaginary_std: float = 0.1,
        key_normaliser: float = 1.0,
        affine: bool = True,
        spread: float | None = None,
    ) -> None:
        FeatureMap.__init__(self, num_heads, head_dim, num_features, 2 * num_features, rho)
        if not 0 < complex_share <= 1:
            raise AttnExtError(
                f"complex_share must be above 0 and at most 1, got {complex_share!r}; use the kernel flexformer_p for "
                "real frequencies only"
            )
        self.num_complex = max(1, round(complex_share * num_features))
        generator = torch.Generator().manual_seed(seed)
        real = torch.randn(num_heads, 2 * num_features - self.num_complex, head_dim, generator=generator)
        self._add_parameters(real_std * real, seed, key_normaliser, affine, spread)
        imaginary = torch.randn(num_heads, self.num_complex, head_dim, generator=generator)
        self.imaginary = nn.Parameter(imaginary_std * imaginary)
        # |cos cos' + sin sin'| <= 1 = 1/2 + 1/2: a pair's bound is spread over its two features
        bound = torch.ones(2 * num_features)
        bound[: 2 * self.num_complex] = 0.5**0.5
        self.register_buffer("bound", bound, persistent=False)

    @classmethod
    def from_saved(cls, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return flexformer_p for a ``complex_share`` of 0, which was the default while the two were one kernel."""
        if options.get("complex_share"):
            return cls.kernel, dict(options)
        dropped = ("complex_share", "imaginary_std", "rho")  # without effect where no frequency is complex
        return FlexformerP.kernel, {name: value for name, value in options.items() if name not in dropped}

    def bind(self, side: Side, dtype: torch.dtype) -> Callable[[Tensor], Features]:
        """Return the map with the affine map of this side multiplied into the frequencies."""
        positive = super().bind(side, dtype)
        affine = self.query_map if side == "query" else self.key_map
        turn, turn_bias = self.imaginary.to(dtype).mT, None
        if affine is not None:
            turn, turn_bias = affine(turn)
        n, half = self.num_complex, self.bound.to(dtype)

        def apply(x: Tensor) -> Features:
            amplitude, values, _ = positive(x)
            assert values is not None  # flexformer_p always returns values
            phase = project(x, turn, turn_bias)
            size, rest = values[..., :n], values[..., n:]
            bound = torch.cat([size, size, rest], -1) * half
            return Features(amplitude, torch.cat([size * phase.cos(), size * phase.sin(), rest], -1), bound)

        return apply

    def softmax_features(self, dtype: torch.dtype) -> SoftmaxFeatures | None:
        """Return None: the features can be negative."""
        return None
