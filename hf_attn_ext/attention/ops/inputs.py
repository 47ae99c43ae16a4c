"""The checks, casts and prepared feature maps that all operations share."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from hf_attn_ext.attention.feature_map import FeatureMap, Features, Side
from hf_attn_ext.attention.normaliser import Stabilised, stabilise
from hf_attn_ext.errors import AttnExtError

# Features of one block of tokens. Blocks fit in a CPU's cache, where an exponential takes a third of the time.
CPU_BLOCK = 2**20


def check_inputs(
    query: Tensor, key: Tensor, value: Tensor | None, feature_map: FeatureMap, key_padding_mask: Tensor | None
) -> None:
    """Raise :class:`AttnExtError` if shapes or dtypes do not fit together; the message names them."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if torch.is_tensor(x) and not x.is_floating_point():
            raise AttnExtError(f"{name} has dtype {x.dtype}; attention takes float16, bfloat16, float32 or float64")
    heads, head_dim = feature_map.num_heads, feature_map.head_dim
    for name, x in (("query", query), ("key", key)):
        if x.ndim != 4 or x.shape[1] != heads or x.shape[3] != head_dim:
            raise AttnExtError(
                f"{name} has shape {tuple(x.shape)}; this feature map takes (batch, {heads}, length, {head_dim})"
            )
    if key.shape[0] != query.shape[0]:
        raise AttnExtError(f"query has batch size {query.shape[0]}, key {key.shape[0]}")
    if value is not None and value.shape[:3] != key.shape[:3]:
        raise AttnExtError(f"value has shape {tuple(value.shape)}, key {tuple(key.shape)}: only the width may differ")
    if key_padding_mask is not None:
        expected = (key.shape[0], key.shape[2])
        if tuple(key_padding_mask.shape) != expected:
            raise AttnExtError(
                f"key_padding_mask has shape {tuple(key_padding_mask.shape)}, expected (batch, keys) = {expected}"
                "; use naive_attention(mask=...) for a mask over pairs of tokens"
            )
        if key_padding_mask.dtype != torch.bool:
            raise AttnExtError(f"key_padding_mask must be bool, True = real token; got {key_padding_mask.dtype}")


def check_causal(query: Tensor, key: Tensor) -> None:
    """Raise :class:`AttnExtError` unless there are as many queries as keys."""
    if query.shape[2] != key.shape[2]:
        raise AttnExtError(f"causal attention takes as many queries as keys, got {query.shape[2]} and {key.shape[2]}")


def score_factor(feature_map: FeatureMap, scaling: float | None) -> float | None:
    """Return the factor of queries and keys that turns ``exp(q . k / sqrt(head_dim))`` into ``exp(q . k * scaling)``.

    The first is the softmax that feature maps approximate, the second the model's. None stands for a factor of 1.

    Raises:
        AttnExtError: ``scaling`` is negative or not finite.
    """
    if scaling is None:
        return None
    if not 0 <= scaling < math.inf:
        raise AttnExtError(f"scaling must be a finite number from 0, got {scaling!r}")
    factor = (scaling * feature_map.head_dim**0.5) ** 0.5
    return None if abs(factor - 1) <= 1e-9 else factor


def mapper(feature_map: FeatureMap, side: Side, dtype: torch.dtype, scaling: float | None) -> Callable[..., Stabilised]:
    """Return one side of ``feature_map``, prepared for a call: ``(x, positions=None, padded=None) -> Stabilised``.

    ``x`` (B, H, n, d) is any block of the tokens, in any floating dtype; the features have ``dtype``. ``positions``
    (B, n) is only read by maps that use positions; ``padded`` is (B, 1, n, 1) bool.
    """
    factor = score_factor(feature_map, scaling)
    uses_positions = feature_map.uses_positions
    bound_map = None if is_hooked(feature_map) else feature_map.bind(side, dtype)

    def apply(x: Tensor, positions: Tensor | None = None, padded: Tensor | None = None) -> Stabilised:
        x = x.to(dtype)
        if factor is not None:
            x = x * factor
        more = (positions,) if uses_positions else ()
        features: Features = feature_map(x, side, *more) if bound_map is None else bound_map(x, *more)
        _check_features(features, feature_map)
        return stabilise(features, feature_map.signed, padded)

    return apply


def _check_features(features: Features, feature_map: FeatureMap) -> None:
    """Check a feature map's result: with another width, queries and keys would still match, and results be wrong."""
    name = type(feature_map).__name__
    if not isinstance(features, Features):
        raise AttnExtError(f"{name} must return Features, got {type(features).__name__}; return Features(None, values)")
    tensor = features.log_scale if features.values is None else features.values
    width = None if tensor is None else tensor.shape[-1]
    if width != feature_map.feature_dim:
        raise AttnExtError(
            f"{name} returned features of width {width}, but its feature_dim is {feature_map.feature_dim}; "
            "pass the width to FeatureMap.__init__(..., feature_dim=)"
        )


def is_hooked(module: nn.Module) -> bool:
    """Return whether the module has hooks on its call, such as accelerate's, which fetches offloaded weights."""
    return "forward" in module.__dict__ or bool(module._forward_pre_hooks) or bool(module._forward_hooks)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch does not annotate it
def transformed() -> bool:
    """Return whether function transforms (torch.func) or forward-mode derivatives are active.

    The native op does not support them, and their tensors have no memory of their own.
    """
    return torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0


def token_positions(
    feature_map: FeatureMap, x: Tensor, key_padding_mask: Tensor | None, start: Tensor | int = 0
) -> Tensor | None:
    """Return positions (B, N) among the real tokens, from ``start`` (B, 1) or 0; None for maps without positions."""
    if not feature_map.uses_positions:
        return None
    if key_padding_mask is None:
        return (torch.arange(x.shape[2], device=x.device) + start).expand(x.shape[0], -1)
    return (key_padding_mask.long().cumsum(-1) - 1 + start).clamp_min(0)


def padded_positions(key_padding_mask: Tensor | None) -> Tensor | None:
    """Return a padding mask (B, N), True = real token, as (B, 1, N, 1), True = padding."""
    return None if key_padding_mask is None else ~key_padding_mask[:, None, :, None]


def accumulation_dtype(x: Tensor) -> torch.dtype:
    """Return float32, or float64 for float64 tensors."""
    return torch.promote_types(x.dtype, torch.float32)


def block_size(x: Tensor, feature_map: FeatureMap, multiple: int = 64) -> int:
    """Return the number of tokens in a block: all on a GPU or in a traced graph, as many as fit a cache on a CPU."""
    length = x.shape[2]
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return max(length, 1)
    tokens = CPU_BLOCK // max(1, x.shape[0] * x.shape[1] * feature_map.feature_dim)
    return max(multiple, tokens // multiple * multiple)


class Outputs:
    """Collects blocks of outputs; without gradients they are written into one tensor in place.

    Args:
        like: the values (B, H, Nk, d_v); the output has their dtype.
        length: Nq.
    """

    def __init__(self, like: Tensor, length: int) -> None:
        self.dtype, self.filled = like.dtype, 0
        self.blocks: list[Tensor] = []
        self.whole: Tensor | None = None
        if not torch.is_grad_enabled() and not transformed():
            self.whole = like.new_empty(*like.shape[:2], length, like.shape[3])

    def add(self, block: Tensor) -> None:
        """Append the outputs (B, H, n, d_v) of the next n queries."""
        if self.whole is None:
            self.blocks.append(block.to(self.dtype))
        else:
            self.whole[:, :, self.filled : self.filled + block.shape[2]].copy_(block)
            self.filled += block.shape[2]

    def join(self) -> Tensor:
        """Return all outputs, (B, H, Nq, d_v)."""
        if self.whole is not None:
            return self.whole
        return self.blocks[0] if len(self.blocks) == 1 else torch.cat(self.blocks, 2)


def drop_tokens(values: Tensor, dropout_p: float) -> Tensor:
    """Apply attention dropout to the values: drop whole tokens, per head, and scale up the rest."""
    if not dropout_p:
        return values
    keep = torch.rand(values.shape[:-1], device=values.device) >= dropout_p
    return values * (keep / (1 - dropout_p)).to(values.dtype)[..., None]


def check_dropout(dropout_p: float) -> None:
    """Raise :class:`AttnExtError` unless ``dropout_p`` is a probability below 1."""
    if not 0 <= dropout_p < 1:
        raise AttnExtError(f"dropout_p must lie between 0 and 1, 1 excluded, got {dropout_p!r}")
