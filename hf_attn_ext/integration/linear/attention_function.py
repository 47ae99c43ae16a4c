"""The attention function and the mask function ``"flexformer"``, and the registration of all our functions.

Each attention function needs a mask function of the same name: without it Transformers silently passes
``attention_mask=None`` to every layer. The mask function runs once per forward pass, for all layers, and returns the
2-D padding mask. The attention function, which sees the layer, computes a linear kernel or softmax from it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.masking_utils import (
    AttentionMaskInterface,
    bidirectional_mask_function,
    causal_mask_function,
    sdpa_mask,
)
from transformers.modeling_utils import AttentionInterface

from hf_attn_ext.attention import (
    FeatureMap,
    attention_weights,
    causal_attention,
    linear_attention,
    two_stream_attention,
)
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec
from hf_attn_ext.integration.base_models.families import causal_call, is_cross_attention
from hf_attn_ext.integration.kernel_modules.first_use import attach_on_first_use, is_stock
from hf_attn_ext.integration.kernel_modules.layers import KEEPS_SOFTMAX, feature_map_of
from hf_attn_ext.integration.masking.attention_function import hasse_attention, hasse_mask
from hf_attn_ext.integration.masking.call import MaskCall, Streams, mask_call, pattern_names
from hf_attn_ext.integration.masking.entries import FIELD
from hf_attn_ext.integration.masking.layouts import check_inputs
from hf_attn_ext.integration.modifiers import refuse_modifiers
from hf_attn_ext.integration.names import HASSE, IMPLEMENTATION, STREAM
from hf_attn_ext.integration.softmax import softmax_attention, wants_weights

from .cache import KernelStateLayer, state_layer
from .orders import dense_order, order_of


def register() -> None:
    """Register all functions with Transformers' interfaces, in pairs; a second call changes nothing."""
    AttentionInterface.register(IMPLEMENTATION, flexformer_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, padding_mask)
    AttentionInterface.register(HASSE, hasse_attention)
    AttentionMaskInterface.register(HASSE, hasse_mask)


def padding_mask(
    batch_size: int,
    kv_length: int,
    kv_offset: int = 0,
    mask_function: Any = bidirectional_mask_function,
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> Tensor | MaskCall | None:
    """The mask function ``"flexformer"``: return the padding mask (B, Nk), True = real token, or None without one.

    For a model with masks of ``set_mask`` it is the object that holds them for this forward pass. For a sliding window
    it is Transformers' 4-D mask: only layers that keep softmax have one. A layer knows itself whether it is causal.
    """
    if getattr(kwargs.get("config"), FIELD, None) is not None:
        sizes = {"batch_size": batch_size, "kv_length": kv_length, "kv_offset": kv_offset}
        return mask_call({**sizes, "mask_function": mask_function, "attention_mask": attention_mask, **kwargs})
    if mask_function not in (bidirectional_mask_function, causal_mask_function):
        patterns = pattern_names(mask_function)
        if patterns == {"sliding_window_overlay", "causal_mask_function"}:
            return sdpa_mask(
                batch_size=batch_size,
                kv_length=kv_length,
                kv_offset=kv_offset,
                mask_function=mask_function,
                attention_mask=attention_mask,
                **{**kwargs, "allow_is_causal_skip": False},
            )
        asked = " and ".join(sorted(patterns))
        raise AttnExtError(
            f"the model asks for the attention pattern {asked!r}; linear attention honours padding and causality "
            "only: no packed sequences (position_ids that start again; a compiled model assumes them unless "
            "attention_mask is given), no mask between single positions"
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
    attention_mask: Tensor | MaskCall | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function ``"flexformer"`` of Transformers' attention interface.

    Args:
        module: the attention module: its ``feature_map`` is the kernel; the mark ``keeps_softmax`` stands for softmax.
        query, key, value: (B, H, N, d); key and value may have fewer heads.
        attention_mask: what :func:`padding_mask` returned, or a 4-D mask that the caller of the model gave.
        scaling: what multiplies ``q . k``; None is ``1 / sqrt(d)``.
        dropout: probability of attention dropout.
        is_causal: whether this call is causal; None leaves that to the module.
        **kwargs: the other keywords of the call.

    Returns:
        The output (B, Nq, H, d_v) and, where ``output_attentions`` asks for them, the weights (B, H, Nq, Nk): those of
        softmax, or the kernel's normalised weights before dropout (with signs for a signed kernel).
    """
    feature_map = _feature_map(module, query)
    layer = state_layer(key, kwargs)
    causal = causal_call(module, is_causal) and not is_cross_attention(module)
    need_weights = wants_weights(module, kwargs)
    if feature_map is None:
        if isinstance(attention_mask, MaskCall):
            return hasse_attention(
                module, query, key, value, attention_mask, scaling, dropout, is_causal=is_causal, **kwargs
            )
        return softmax_attention(
            module, query, key, value, attention_mask, dropout, scaling, need_weights, causal, **kwargs
        )
    causal, order, attention_mask, streams = _pattern(module, key, attention_mask, causal, layer, kwargs)
    refuse_modifiers(module, kwargs, "linear", "a linear kernel")
    mask = _key_padding_mask(attention_mask, key, layer)
    _check_lengths(module, query, key, causal)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    listener = getattr(module, STREAM, None)
    _check_listening(listener, order, streams, layer, need_weights)
    if listener is not None:
        output, weights = softmax_attention(module, query, key, value, mask, 0.0, scaling, need_weights, causal)
        listener(query, *_repeated(query, key, value), mask, scaling, output.transpose(1, 2), causal)
        return output, weights
    key, value = _repeated(query, key, value)
    if streams is not None and layer is not None:
        output, state = two_stream_attention(
            query, key, value, feature_map, layer.state, *streams, scaling, dropout, layer.maps
        )
        layer.commit(state, passing=streams.block.shape[1])
    elif layer is not None:
        output, state = causal_attention(
            query, key, value, feature_map, layer.state, mask, scaling, dropout, layer.maps
        )
        layer.commit(state)
    else:
        output = linear_attention(
            query, key, value, feature_map, causal, mask, order=order, scaling=scaling, dropout_p=dropout
        )
    weights = _weights(query, key, feature_map, causal, mask, scaling, order) if need_weights else None
    return output.transpose(1, 2).contiguous(), weights


def _feature_map(module: nn.Module, query: Tensor) -> FeatureMap | None:
    """The module's feature map, attached now to a model that is not converted; None where the layer keeps softmax."""
    feature_map = feature_map_of(module)
    if feature_map is not None or is_cross_attention(module) or getattr(module, KEEPS_SOFTMAX, False):
        return feature_map
    if not is_stock(module):
        raise AttnExtError(
            f"a {type(module).__name__} of a converted model has no feature map; it was removed or never attached, "
            "and softmax in its place would be another model"
        )
    return attach_on_first_use(module, query)


class _Pattern(NamedTuple):
    """The keys that the queries of a linear layer see.

    Attributes:
        causal: only the keys up to their own.
        order: an order that is neither causal nor everything, or None.
        mask: the padding mask, or None.
        streams: the clean tokens and the mask tokens of a pass that continues a state, or None.
    """

    causal: bool
    order: MaskSpec | list[MaskSpec] | None
    mask: Tensor | None
    streams: Streams | None


def _pattern(
    module: nn.Module,
    key: Tensor,
    attention_mask: Tensor | MaskCall | None,
    causal: bool,
    layer: KernelStateLayer | None,
    kwargs: dict[str, Any],
) -> _Pattern:
    if not isinstance(attention_mask, MaskCall):
        return _Pattern(causal, None, attention_mask, None)
    check_inputs(kwargs)
    streams = None if layer is None else attention_mask.streams
    return _Pattern(*order_of(attention_mask, module, causal, key, layer), streams)


def _check_lengths(module: nn.Module, query: Tensor, key: Tensor, causal: bool) -> None:
    if causal and key.shape[2] != query.shape[2]:
        raise AttnExtError(
            f"{type(module).__name__} got {query.shape[2]} queries and {key.shape[2]} keys: a cache of keys was passed "
            "to a linear layer, which keeps a state; use hf_attn_ext.LinearCache, after hf_attn_ext.convert(model)"
        )


def _check_listening(
    listener: Any,
    order: MaskSpec | list[MaskSpec] | None,
    streams: Streams | None,
    layer: KernelStateLayer | None,
    need_weights: bool,
) -> None:
    """Softmax and weights need every key of the text, which a state does not hold."""
    if listener is not None and order is not None:
        raise AttnExtError(
            "the softmax stream knows no mask but the causal one, and the model has another; remove it for the time "
            "with set_mask(model, None)"
        )
    continued = streams is not None or (layer is not None and layer.state is not None)
    if continued and (need_weights or listener is not None):
        what = "attention weights" if need_weights else "the softmax stream"
        raise AttnExtError(
            f"{what} over tokens before this call cannot be computed from a recurrent state; pass use_cache=False"
        )


def _repeated(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Grouped keys and values, repeated to the number of query heads."""
    groups = query.shape[1] // key.shape[1]
    if groups == 1:
        return key, value
    return key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)


def _weights(
    query: Tensor,
    key: Tensor,
    feature_map: FeatureMap,
    causal: bool,
    mask: Tensor | None,
    scaling: float,
    order: MaskSpec | list[MaskSpec] | None,
) -> Tensor:
    seen = None if order is None else dense_order(order, query.device)
    return attention_weights(query, key, feature_map, causal, mask, seen, scaling=scaling).to(query.dtype)


def _key_padding_mask(attention_mask: Tensor | None, key: Tensor, layer: KernelStateLayer | None) -> Tensor | None:
    """The part of the padding mask that belongs to the keys of this call."""
    if attention_mask is None:
        return None
    length = key.shape[2] if layer is None else layer.seen + layer.incoming
    expected = (key.shape[0], length)
    if attention_mask.ndim != 2 or attention_mask.dtype != torch.bool:
        raise AttnExtError(_wrong_mask(attention_mask))
    if tuple(attention_mask.shape) != expected:
        so_far = "" if length == key.shape[2] else ", those that the cache has seen included"
        raise AttnExtError(
            f"the padding mask has shape {tuple(attention_mask.shape)}, but the keys are {expected} "
            f"(batch, tokens{so_far})"
        )
    return attention_mask[:, length - key.shape[2] :]


def _wrong_mask(attention_mask: Tensor) -> str:
    return (
        f"attention_mask has shape {tuple(attention_mask.shape)} and dtype {attention_mask.dtype}: linear attention "
        "cannot honour a mask between single positions; pass the padding mask (batch, tokens), 1 = real token"
    )
