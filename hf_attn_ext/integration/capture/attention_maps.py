"""Attention weights of captured calls, from their queries and keys, and the keys that each query attends to."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hf_attn_ext.attention import FeatureMap, attention_weights
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
    """The keys that the queries of one text attend to.

    Attributes:
        mask: (1, 1 or H, N, N), bool or added to the scores, padding included; None: see the others.
        causal: without a mask, query i attends to the keys 0..i.
        padding: bool (1, N), True = real token, or None.
        order: a linear layer's order, bool (1, N, N), without padding; None if ``causal`` determines it.
    """

    mask: Tensor | None = None
    causal: bool = False
    padding: Tensor | None = None
    order: Tensor | None = None


def attention_map(call: HeadOutputs, row: int, heads: slice | list[int] = slice(None)) -> Tensor:
    """Return the normalised attention weights (heads, N, N) of text ``row``, computed from its queries and keys.

    Exact on every backend, under the masks of ``set_mask`` too, without attention dropout: those of softmax, or in a
    converted layer the kernel's own. In at least float32.
    """
    queries, keys = check_followed(call)
    groups = queries.shape[1] // keys.shape[1]
    query, key = queries[row], keys[row].repeat_interleave(groups, dim=0)
    dtype = torch.promote_types(query.dtype, torch.float32)
    query, key = query[None].to(dtype), key[None].to(dtype)
    pattern = _pattern(call, row)
    feature_map = _linear_map(call)
    if feature_map is not None:
        # its parameters are per head: all heads at once
        seen = (pattern.causal, pattern.padding, pattern.order)
        return attention_weights(query, key, feature_map, *seen, scaling=call.scaling)[0, heads].to(dtype)
    scores = query[:, heads] @ key[:, heads].mT * call.scaling
    mask = _dense(pattern, query.shape[2], query.device)
    if mask is not None:
        mask = mask if mask.shape[1] == 1 else mask[:, heads]
        mask = mask if mask.dtype == torch.bool else mask.to(dtype)
    return masked_softmax(scores, mask)[0]


def visible_keys(call: HeadOutputs, row: int) -> Tensor:
    """Return which keys the queries of text ``row`` attend to: bool (1 or H, N, N), 1 where all heads see the same."""
    queries, _ = check_followed(call)
    length, device = queries.shape[2], queries.device
    mask = _dense(_pattern(call, row), length, device)
    if mask is None:
        return torch.ones(1, length, length, dtype=torch.bool, device=device)
    mask = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    return mask[0].expand(-1, length, length)


def check_followed(call: HeadOutputs) -> tuple[Tensor, Tensor]:
    """Check that the weights follow from what was captured; return queries and keys."""
    mask, name = call.attention_mask, call.layer.name
    if call.query is None or call.key is None:
        raise AttnExtError(f"{name} was read at its output projection, where no attention map can be computed")
    if call.modifiers:
        raise AttnExtError(
            f"the attention map of {name} is changed by {call.modifiers[0]!r}, which the probe does not "
            "follow; leave the statistics of the attention map out with sample=0"
        )
    if mask is None or isinstance(mask, MaskCall) or (torch.is_tensor(mask) and mask.ndim in (2, 4)):
        return call.query, call.key
    form = f"a tensor of shape {tuple(mask.shape)}" if torch.is_tensor(mask) else f"a {type(mask).__name__}"
    raise AttnExtError(
        f"the mask of {name} is {form}, which the probe cannot read; use model.set_attn_implementation('sdpa'), or "
        "leave the statistics of the attention map out with sample=0"
    )


def _linear_map(call: HeadOutputs) -> FeatureMap | None:
    """The feature map that computed the outputs; None for softmax, also in the softmax stream of a converted model."""
    module = call.layer.module
    return None if hasattr(module, STREAM) else feature_map_of(module)


def _pattern(call: HeadOutputs, row: int) -> _Pattern:
    mask = call.attention_mask
    if isinstance(mask, MaskCall):
        return _under_masks(mask, call, row)
    if torch.is_tensor(mask) and mask.ndim == 4:
        return _Pattern(mask=_of_row(mask, row))
    # the padding mask, or none
    return _Pattern(causal=call.causal, padding=_padding_of(call.forward.attention_mask, row, call.output.device))


def _under_masks(masks: MaskCall, call: HeadOutputs, row: int) -> _Pattern:
    """Return the pattern that the attention functions of ``set_mask`` use for one text."""
    module, device = call.layer.module, call.output.device
    if feature_map_of(module) is not None:
        causal, order, padding = order_of(masks, module, call.causal, call.output, None)
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
    """Return ``x[row]`` as a batch of one; ``x`` has a single row if it is the same for all texts."""
    row = row if x.shape[0] > 1 else 0
    return x[row : row + 1]


def _dense(pattern: _Pattern, length: int, device: torch.device) -> Tensor | None:
    """The mask (1, 1 or H, N or 1, N), bool or added to the scores; None without a restriction."""
    if pattern.mask is not None:
        return pattern.mask.to(device)
    mask = expand_padding(pattern.padding, length)
    if pattern.order is not None:
        return pattern.order[:, None] if mask is None else pattern.order[:, None] & mask
    return lower_triangle(length, length, device, mask) if pattern.causal else mask
