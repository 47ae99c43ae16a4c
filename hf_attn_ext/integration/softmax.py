"""Exact softmax attention for layers that keep it, whatever form the padding mask arrives in.

The model's mask function (``registry.py``) hands every layer the 2-D padding mask, so a layer that keeps
softmax must turn it into what the host's own attention expects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.utils import output_capturing

from hf_attn_ext.errors import AttnExtError

# Keywords of the host's attention functions that change the result: those that sdpa does not know, and all of them.
BY_SDPA = ("softcap", "s_aux")
BY_SCORES = ("position_bias", *BY_SDPA)


def softmax_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    need_weights: bool = False,
    causal: bool = False,
    **kwargs: object,
) -> tuple[Tensor, Tensor | None]:
    """Softmax attention as the host computes it.

    Args:
        query, key, value: (B, H, N, d); key and value may have fewer heads (grouped heads).
        attention_mask: None, a bool padding mask (B, N) with True = real token, or a 4-D mask in the host's
            form.
        causal: the last of the keys' tokens are the queries', and each sees what is not after it.
        need_weights: also return the weights (B, H, Nq, Nk), which only the dense computation has.

    Returns:
        The output (B, Nq, H, d_v), and the weights or None.

    Raises:
        AttnExtError: attention sinks or another modifier that this computation would leave out.
    """
    refuse_modifiers(module, kwargs, BY_SCORES if need_weights else BY_SDPA, "softmax here")
    length = query.shape[2]
    alone = causal and length == key.shape[2] and length > 1 and attention_mask is None and not need_weights
    mask = expand_padding(attention_mask, length)
    if causal and not alone and length > 1 and (mask is None or attention_mask.ndim == 2):
        mask = lower_triangle(length, key.shape[2], query.device, mask)
    if not need_weights:
        kwargs = {name: entry for name, entry in kwargs.items() if name not in ("is_causal", "output_attentions")}
        return sdpa_attention_forward(
            module, query, key, value, mask, dropout=dropout, scaling=scaling, is_causal=alone, **kwargs
        )
    return _dense(module, query, key, value, mask, dropout, scaling)


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


def refuse_modifiers(module: nn.Module, kwargs: Mapping[str, Any], names: tuple[str, ...], what: str) -> None:
    """Raise where a module passes a keyword that changes the result and that ``what`` would leave out unseen."""
    for name in names:
        if kwargs.get(name) is not None:
            raise AttnExtError(
                f"{type(module).__name__} passes {name!r} to its attention, which {what} does not honour"
            )


def expand_padding(attention_mask: Tensor | None, query_length: int) -> Tensor | None:
    """Turn a padding mask (B, Nk) into the host's 4-D mask (B, 1, Nq, Nk); leave None and 4-D masks alone."""
    if attention_mask is None or attention_mask.ndim != 2:
        return attention_mask
    batch, key_length = attention_mask.shape
    return attention_mask[:, None, None, :].expand(batch, 1, query_length, key_length)


def lower_triangle(queries: int, keys: int, device: torch.device, padding: Tensor | None = None) -> Tensor:
    """The causal mask (1 or B, 1, Nq, Nk) of the last ``queries`` of ``keys`` tokens; ``padding`` as
    :func:`expand_padding` returns it. A padded token sees itself, as no row may be empty.
    """
    distance = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(keys, device=device)
    seen = (distance >= 0)[None, None]
    return seen if padding is None else (seen & padding) | (distance == 0)


def _dense(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    scaling: float | None,
) -> tuple[Tensor, Tensor]:
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min) if mask.dtype == torch.bool else scores + mask
    weights = torch.softmax(scores, dim=-1)
    if mask is not None and mask.dtype == torch.bool:
        # A sequence without a real token: zeros, as the fused kernels and the linear form give.
        weights = weights.masked_fill(~mask, 0.0)
    dropped = nn.functional.dropout(weights, p=dropout, training=module.training)
    return (dropped @ value).transpose(1, 2).contiguous(), weights
