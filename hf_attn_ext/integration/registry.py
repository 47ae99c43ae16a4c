"""The attention function and the mask function ``"flexformer"``, registered together.

They belong together: without a mask function of the same name the host passes ``attention_mask=None`` to every layer,
silently. The mask function runs once a forward, for all layers, and returns the 2-D padding mask; what a layer makes of
it (linear kernel, or softmax kept) is decided in the attention function, which sees the layer.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface, bidirectional_mask_function, causal_mask_function
from transformers.modeling_utils import AttentionInterface
from transformers.utils import output_capturing

from ..attention import FeatureMap, attention_weights, linear_attention
from ..errors import AttnExtError
from .families import is_cross_attention
from .first_use import attach_on_first_use, is_stock
from .layers import KEEPS_SOFTMAX, feature_map_of
from .softmax import softmax_attention

IMPLEMENTATION = "flexformer"
STREAM = "_attn_ext_stream"

# Keywords of the host's attention functions that change the result and that a linear kernel does not know.
_NOT_HONOURED = ("position_bias", "softcap", "s_aux", "sliding_window")

_CAUSAL = (
    "this layer is causal, and this release swaps bidirectional attention only; load the model with "
    "is_decoder=False, or with attn_implementation='sdpa'"
)


def register() -> None:
    """Enter both functions in the host's interfaces; doing it again changes nothing."""
    AttentionInterface.register(IMPLEMENTATION, flexformer_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, padding_mask)


def padding_mask(
    batch_size: int,
    kv_length: int,
    kv_offset: int = 0,
    mask_function: Any = bidirectional_mask_function,
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> Tensor | None:
    """Return the padding mask (B, Nk), True = real token, or None where the caller gave none.

    Raises:
        AttnExtError: the model asks for a pattern other than "every query sees every real key".
    """
    if mask_function is causal_mask_function:
        raise AttnExtError(_CAUSAL)
    if mask_function is not bidirectional_mask_function:
        pattern = getattr(mask_function, "__qualname__", repr(mask_function)).split(".")[0]
        raise AttnExtError(
            f"the model asks for the attention pattern {pattern!r}; linear attention honours padding only, so this "
            "model cannot use attn_implementation='flexformer'"
        )
    if attention_mask is None:
        return None
    if attention_mask.ndim != 2:
        raise AttnExtError(_wrong_mask(attention_mask))
    return attention_mask[:, kv_offset : kv_offset + kv_length].to(torch.bool)


def flexformer_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function of the host's attention interface.

    Args:
        module: the attention module; its ``feature_map`` decides the kernel, its mark ``keeps_softmax`` the
            contrary.
        query, key, value: (B, H, N, d); key and value may have fewer heads.
        attention_mask: what :func:`padding_mask` returned, or a 4-D mask that the caller of the model gave.

    Returns:
        The output (B, Nq, H, d_v) and, where ``output_attentions`` asks for them, the weights (B, H, Nq, Nk): those of
        softmax, or the kernel's true normalised weights, before dropout (signed for a signed kernel).

    Raises:
        AttnExtError: causal attention, a 4-D mask or another modifier that a linear kernel cannot honour,
            or a module of a converted model that has lost its feature map.
    """
    feature_map = feature_map_of(module)
    cross = is_cross_attention(module)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if causal and not cross:
        raise AttnExtError(_CAUSAL)
    if feature_map is None and not cross and not getattr(module, KEEPS_SOFTMAX, False):
        if not is_stock(module):
            raise AttnExtError(
                f"a {type(module).__name__} of a converted model has no feature map; it was removed or never attached, "
                "and softmax in its place would be another model"
            )
        feature_map = attach_on_first_use(module, query)
    need_weights = wants_weights(module, kwargs)
    if feature_map is None:
        return softmax_attention(module, query, key, value, attention_mask, dropout, scaling, need_weights, **kwargs)
    mask = _key_padding_mask(attention_mask, key)
    for name in _NOT_HONOURED:
        if kwargs.get(name) is not None:
            raise AttnExtError(
                f"{type(module).__name__} passes {name!r} to its attention, which a linear kernel does not honour"
            )
    if key.shape[1] != query.shape[1]:
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    stream = getattr(module, STREAM, None)
    if stream is not None:
        output, weights = softmax_attention(module, query, key, value, mask, 0.0, scaling, need_weights)
        stream(query, key, value, mask, scaling, output.transpose(1, 2))
        return output, weights
    output = linear_attention(query, key, value, feature_map, key_padding_mask=mask, scaling=scaling, dropout_p=dropout)
    weights = _weights(query, key, feature_map, mask, scaling) if need_weights else None
    return output.transpose(1, 2).contiguous(), weights


def wants_weights(module: nn.Module, kwargs: dict[str, Any]) -> bool:
    """Whether the caller of the model asked for attention weights, by keyword or by configuration.

    The host's models pass the keyword on; where one does not, the host's own collector knows. Its context
    variable cannot be read while a graph is traced, and need not be: the keyword and the configuration can.
    """
    asked = kwargs.get("output_attentions")
    if asked is None:
        asked = getattr(getattr(module, "config", None), "output_attentions", False)
    if asked or torch.compiler.is_compiling():
        return bool(asked)
    collected = output_capturing._active_collector.get()
    return collected is not None and any(key.endswith("attentions") for key in collected)


def _weights(query: Tensor, key: Tensor, feature_map: FeatureMap, mask: Tensor | None, scaling: float) -> Tensor:
    return attention_weights(query, key, feature_map, key_padding_mask=mask, scaling=scaling).to(query.dtype)


def _key_padding_mask(attention_mask: Tensor | None, key: Tensor) -> Tensor | None:
    if attention_mask is None:
        return None
    expected = (key.shape[0], key.shape[2])
    if attention_mask.ndim != 2 or attention_mask.dtype != torch.bool:
        raise AttnExtError(_wrong_mask(attention_mask))
    if tuple(attention_mask.shape) != expected:
        raise AttnExtError(
            f"the padding mask has shape {tuple(attention_mask.shape)}, but the keys are {expected} (batch, tokens)"
        )
    return attention_mask


def _wrong_mask(attention_mask: Tensor) -> str:
    return (
        f"attention_mask has shape {tuple(attention_mask.shape)} and dtype {attention_mask.dtype}: linear attention "
        "cannot honour a mask between single positions; pass the padding mask (batch, tokens), 1 = real token"
    )
