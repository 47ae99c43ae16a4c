"""Cosformer: ReLU features that fade with distance. Source: arXiv 2202.08791."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from hf_attn_ext.attention.feature_map import FeatureMap, Features, Side
from hf_attn_ext.attention.registry import register_kernel
from hf_attn_ext.errors import AttnExtError

_FLOOR = 1e-6
_LONGEST = 2**20  # in float32 the angles of neighbours still differ


@register_kernel("cosformer")
class Cosformer(FeatureMap):
    """``phi(x, i) = [r(x) cos(t i), r(x) sin(t i)]``, ``t = pi / (2 M)``, for the token at position i.

    The kernel is ``r(q).r(k) cos(t (i - j))``, positive while ``|i - j| < M``. r is ReLU plus 1e-6 (ours; the source
    bounds the denominator by 1e-6): without it, a query with no positive channel, or none in common with a key, would
    divide by 0. With it, such a query averages the values by distance. There are no parameters; feature_dim is 2
    head_dim for every ``num_features``. Queries and keys are not scaled, as in the source.

    M is ``max_length`` (ours; the source takes the length of each input, which a causal model does not know). The
    cosine differs from 1 only at distances comparable with M: set it to the longest input, not far above. From
    position M on products could be negative, so longer inputs raise an error: on a CPU an :class:`AttnExtError`; on a
    GPU, and in a compiled graph, an assertion on the device, after which the process cannot use that GPU.

    Args:
        num_heads, head_dim, num_features, seed: see :func:`make_feature_map`; the last two are not used.
        max_length: M, the most tokens of a sequence, without padding; 1 to 2**20.
    """

    uses_positions = True
    test_options: ClassVar = {"": {"max_length": 2**14}}

    def __init__(self, num_heads: int, head_dim: int, num_features: int, seed: int = 0, max_length: int = 4096) -> None:
        super().__init__(num_heads, head_dim, num_features, 2 * head_dim)
        if not 1 <= max_length <= _LONGEST:
            raise AttnExtError(f"max_length must lie between 1 and {_LONGEST}, got {max_length!r}")
        self.max_length = max_length

    # forward takes positions where uses_positions is True
    def forward(self, x: Tensor, side: Side, positions: Tensor) -> Features:  # type: ignore[override]
        """Return the features of ``x`` (B, H, N, head_dim) at ``positions`` (B, N), int64; both sides are the same."""
        self._check(positions)
        angle = positions.to(x.dtype)[:, None, :, None] * (math.pi / (2 * self.max_length))
        x = x.relu() + _FLOOR
        return Features(None, torch.cat([x * angle.cos(), x * angle.sin()], -1))

    def _check(self, positions: Tensor) -> None:
        served = (positions < self.max_length).all()
        if positions.device.type == "cuda" or torch.compiler.is_compiling():
            torch._assert_async(served, f"cosformer: a sequence is longer than max_length = {self.max_length}")
        elif not served:
            raise AttnExtError(
                f"cosformer: a sequence has {int(positions.max()) + 1} or more tokens, but max_length is "
                f"{self.max_length}. Convert with kernel_options={{'max_length': ...}} of the longest sequence"
            )

    def extra_repr(self) -> str:
        """Return the sizes that ``repr`` shows."""
        return f"{super().extra_repr()}, max_length={self.max_length}"
