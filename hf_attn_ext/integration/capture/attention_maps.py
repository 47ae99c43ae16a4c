"""The attention weights behind captured outputs, from queries and keys, and which keys a query sees at all."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hf_attn_ext.attention import attention_weights
from hf_attn_ext.attention.softmax import masked_softmax
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.kernel_modules.layers import feature_map_of
from hf_attn_ext.integration.linear.orders import dense_order, order_of
from hf_attn_ext.integration.masking.call import MaskCall
from hf_attn_ext.integration.names import STREAM
from hf_attn_ext.integration.softmax import expand_padding, lower_triangle

if TYPE_CHECKING:
    from .head_outputs import HeadOutputs


@dataclasses.dataclass
class _Pattern:
    """What the queries of one text see.

    Attributes:
        mask: (1, 1 or H, N, N), bool or added to the scores, padding included; None where the others say it all.
        causal: without a mask, query i sees the keys 0..i.
        padding: bool (1, N), True = real token, or None.
        order: a linear layer's order, bool (1, N, N), without padding; None where ``causal`` says it all.
    """

    mask: Tensor | None = None
    causal: bool = False
    padding: Tensor | None = None
    order: Tensor | None = None


def attention_map(call: HeadOutputs, row: int, heads: slice | list[int] = slice(None)) -> Tensor:
    """The normalised attention weights (heads, N, N) of text ``row``, computed from its queries and keys.

    Exact on every backend, under the masks of ``set_mask`` too, without attention dropout: those of softmax, or in a
    converted layer the kernel's own. In at least float32.

    Raises:
        AttnExtError: see :func:`check_followed`.
    """
    check_followed(call)
    groups = call.query.shape[1] // call.key.shape[1]
    query, key = call.query[row], call.key[row].repeat_interleave(groups, dim=0)
    dtype = torch.promote_types(query.dtype, torch.float32)
    query, key = query[None].to(dtype), key[None].to(dtype)
    pattern = _pattern(call, row)
    if _is_linear(call):
        # a map's parameters are per head: all heads at once
        kernel = feature_map_of(call.layer.module)
        seen = (pattern.causal, pattern.padding, pattern.order)
        return attention_weights(query, key, kernel, *seen, scaling=call.scaling)[0, heads].to(dtype)
    scores = query[:, heads] @ key[:, heads].mT * call.scaling
    mask = _dense(pattern, query.shape[2], query.device)
    if mask is not None:
        mask = mask if mask.shape[1] == 1 else mask[:, heads]
        mask = mask if mask.dtype == torch.bool else mask.to(dtype)
    return masked_softmax(scores, mask)[0]


def visible_keys(call: HeadOutputs, row: int) -> Tensor:
    """Which keys the queries of text ``row`` see: bool (1 or H, N, N), the first for all heads.

    Raises:
        AttnExtError: see :func:`check_followed`.
    """
    check_followed(call)
    length, device = call.query.shape[2], call.query.device
    mask = _dense(_pattern(call, row), length, device)
    if mask is None:
        return torch.ones(1, length, length, dtype=torch.bool, device=device)
    mask = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    return mask[0].expand(-1, length, length)


def check_followed(call: HeadOutputs) -> None:
    """Raise unless the weights follow from what was captured.

    Raises:
        AttnExtError: they are changed by something that is not followed here (softcap, sinks), or the mask has a form
            of some backend's own.
    """
    mask, name = call.attention_mask, call.layer.name
    if call.modifiers:
        raise AttnExtError(
            f"the attention map of {name} is changed by {call.modifiers[0]!r}, which the probe does not "
            "follow; leave the statistics of the attention map out with sample=0"
        )
    if mask is None or isinstance(mask, MaskCall) or (torch.is_tensor(mask) and mask.ndim in (2, 4)):
        return
    form = f"a tensor of shape {tuple(mask.shape)}" if torch.is_tensor(mask) else f"a {type(mask).__name__}"
    raise AttnExtError(
        f"the mask of {name} is {form}, which the probe cannot read; use model.set_attn_implementation('sdpa'), or "
        "leave the statistics of the attention map out with sample=0"
    )


def _is_linear(call: HeadOutputs) -> bool:
    module = call.layer.module
    return feature_map_of(module) is not None and not hasattr(module, STREAM)


def _pattern(call: HeadOutputs, row: int) -> _Pattern:
    mask = call.attention_mask
    if isinstance(mask, MaskCall):
        return _under_masks(mask, call, row)
    if torch.is_tensor(mask) and mask.ndim == 4:
        return _Pattern(mask=_of_row(mask, row))
    # the padding mask, or none
    return _Pattern(causal=call.causal, padding=_padding_of(call.forward.attention_mask, row, call.query.device))


def _under_masks(masks: MaskCall, call: HeadOutputs, row: int) -> _Pattern:
    """What the attention functions of ``set_mask`` make of the masks, for one text."""
    module, device = call.layer.module, call.query.device
    if feature_map_of(module) is not None:
        causal, order, padding = order_of(masks, module, call.causal, call.key, None)
        seen = None if order is None else dense_order(order, device)
        if seen is not None:
            seen = seen[None] if seen.ndim == 2 else _of_row(seen, row)
        return _Pattern(causal=causal, padding=_padding_of(padding, row, device), order=seen)
    layer = masks.layer(module)
    mask = masks.stock("sdpa") if layer is None else masks.allowed(layer, device, skip=False)[0]
    if mask is not None:
        return _Pattern(mask=_of_row(mask, row))
    return _Pattern(causal=layer is None and call.causal, padding=_padding_of(masks.padding, row, device))


def _padding_of(padding: Tensor | None, row: int, device: torch.device) -> Tensor | None:
    return None if padding is None else _of_row(padding, row).to(device)


def _of_row(x: Tensor, row: int) -> Tensor:
    """``x[row]`` as a batch of one; what is the same for all texts is there once."""
    row = row if x.shape[0] > 1 else 0
    return x[row : row + 1]


def _dense(pattern: _Pattern, length: int, device: torch.device) -> Tensor | None:
    """The mask (1, 1 or H, N or 1, N), bool or added to the scores; None where all is seen."""
    if pattern.mask is not None:
        return pattern.mask.to(device)
    mask = expand_padding(pattern.padding, length)
    if pattern.order is not None:
        return pattern.order[:, None] if mask is None else pattern.order[:, None] & mask
    return lower_triangle(length, length, device, mask) if pattern.causal else mask
