"""Exact softmax attention for layers that keep it, whatever form the padding mask arrives in.

The mask function ``"flexformer"`` gives every layer the 2-D padding mask, so a layer that keeps softmax must turn it
into the 4-D mask that Transformers' own attention functions expect.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.utils import output_capturing

from hf_attn_ext.attention.softmax import masked_softmax

from .modifiers import refuse_modifiers

# Keywords that sdpa_attention_forward must not get a second time, or does not know.
_OURS = ("is_causal", "output_attentions")


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
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Softmax attention as Transformers computes it.

    Args:
        module: the attention module.
        query, key, value: (B, H, N, d); key and value may have fewer heads (grouped heads).
        attention_mask: None, a bool padding mask (B, Nk) with True = real token, or a 4-D mask as Transformers makes
            it.
        dropout: probability of dropping a weight, in training mode.
        scaling: what multiplies ``q . k``; None is ``1 / sqrt(d)``.
        need_weights: also return the weights (B, H, Nq, Nk), which only the dense computation has.
        causal: the queries belong to the last tokens of the keys, and each sees the keys up to its own.
        **kwargs: the other keywords of the call.

    Returns:
        The output (B, Nq, H, d_v), and the weights or None.
    """
    refuse_modifiers(module, kwargs, "scores" if need_weights else "sdpa", "softmax here")
    length = query.shape[2]
    # sdpa's own causality: whole texts without padding
    alone = causal and length == key.shape[2] and length > 1 and attention_mask is None and not need_weights
    mask = expand_padding(attention_mask, length)
    is_padding = attention_mask is None or attention_mask.ndim == 2
    if causal and not alone and length > 1 and is_padding:
        mask = lower_triangle(length, key.shape[2], query.device, mask)
    if need_weights:
        return dense_attention(module, query, key, value, mask, dropout, scaling)
    return sdpa_attention(module, query, key, value, mask, dropout, scaling, alone, kwargs)


def sdpa_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    causal: bool | None,
    kwargs: dict[str, Any],
) -> tuple[Tensor, None]:
    """Return the output (B, Nq, H, d_v) of Transformers' sdpa function, and None; ``causal=None`` follows the mask."""
    others = {name: value for name, value in kwargs.items() if name not in _OURS}
    return sdpa_attention_forward(
        module, query, key, value, mask, dropout=dropout, scaling=scaling, is_causal=causal, **others
    )


def dense_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    scaling: float | None,
) -> tuple[Tensor, Tensor]:
    """Softmax attention with its weights; the arguments are those of :func:`softmax_attention`.

    ``mask`` is bool (True = may attend), or what is added to the scores; it broadcasts to (B, H, Nq, Nk). Returns the
    output (B, Nq, H, d_v), and the weights (B, H, Nq, Nk) before dropout. A row that a bool mask leaves empty has
    zeros, as sdpa and the linear kernels give.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    weights = masked_softmax(scores, mask)
    if mask is not None and mask.dtype == torch.bool:
        weights = weights.masked_fill(~mask, 0.0)
    dropped = nn.functional.dropout(weights, p=dropout, training=module.training)
    return (dropped @ value).transpose(1, 2).contiguous(), weights


def wants_weights(module: nn.Module, kwargs: dict[str, Any]) -> bool:
    """Return whether the caller of the model asked for attention weights, by keyword or by configuration.

    Most models pass the keyword on; where one does not, Transformers' own collector of outputs knows. Its context
    variable cannot be read while a graph is traced, and need not be: the keyword and the configuration can.
    """
    asked = kwargs.get("output_attentions")
    if asked is None:
        asked = getattr(getattr(module, "config", None), "output_attentions", False)
    if asked or torch.compiler.is_compiling():
        return bool(asked)
    collected = output_capturing._active_collector.get()
    return collected is not None and any(key.endswith("attentions") for key in collected)


def expand_padding(attention_mask: Tensor | None, query_length: int) -> Tensor | None:
    """Return a padding mask (B, Nk) in the 4-D form (B, 1, Nq, Nk); None and 4-D masks are returned unchanged."""
    if attention_mask is None or attention_mask.ndim != 2:
        return attention_mask
    batch, key_length = attention_mask.shape
    return attention_mask[:, None, None, :].expand(batch, 1, query_length, key_length)


def lower_triangle(queries: int, keys: int, device: torch.device, padding: Tensor | None = None) -> Tensor:
    """Return the causal mask (1 or B, 1, Nq, Nk) of the last ``queries`` of ``keys`` tokens.

    With ``padding``, as :func:`expand_padding` returns it, a padded token sees itself, as no row may be empty.
    """
    distance = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(keys, device=device)
    seen = (distance >= 0)[None, None]
    return seen if padding is None else (seen & padding) | (distance == 0)
