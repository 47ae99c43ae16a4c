"""Checks of the arguments of this package: a model without virtual tokens, and a batch of texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_attn_ext.errors import AttnExtError, short
from hf_attn_ext.hasse.order.reading import is_whole
from hf_attn_ext.integration.base_models.wrapping import unwrap
from hf_attn_ext.integration.conversion.peft_support import refuse_prompts


def read_model(model: Any, what: str) -> PreTrainedModel:
    """Return the Transformers model inside the wrapper of PEFT, DDP or torch.compile, for the function ``what``.

    Raises:
        AttnExtError: ``model`` is not a Transformers model, or its wrapper adds virtual tokens.
    """
    refuse_prompts(model, what)
    base = unwrap(model)
    if not isinstance(base, PreTrainedModel):
        raise AttnExtError(f"{what} needs a transformers model, got {type(base).__name__}")
    return base


def read_texts(input_ids: Any, attention_mask: Any, model: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """Return the ids, int64 (B, n), 0 at padding, and which tokens are real, bool (B, n).

    Raises:
        AttnExtError: the arguments are not such tensors, hold no text, or hold a token without an embedding.
    """
    ids = input_ids
    if not torch.is_tensor(ids):
        hint = "pass a tokenizer's output with two stars" if isinstance(ids, Mapping) else "make it a tensor"
        raise AttnExtError(f"input_ids must be whole numbers (batch, tokens), got {type(ids).__name__}; {hint}")
    if ids.ndim != 2 or ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex():
        raise AttnExtError(f"input_ids must be whole numbers (batch, tokens), got {tuple(ids.shape)} of {ids.dtype}")
    if not len(ids):
        raise AttnExtError("a batch needs at least one text, got none")
    if attention_mask is None:
        real = torch.ones_like(ids, dtype=torch.bool)
    elif not torch.is_tensor(attention_mask):
        raise AttnExtError(f"attention_mask must be a tensor (batch, tokens), got {type(attention_mask).__name__}")
    else:
        real = attention_mask.to(ids.device, torch.bool)
    if real.shape != ids.shape:
        raise AttnExtError(f"attention_mask is {tuple(real.shape)}, but input_ids {tuple(ids.shape)}")
    wrong = real & ((ids < 0) | (ids >= embeddings(model)))
    if wrong.any():
        raise AttnExtError(
            f"token {int(ids[wrong][0])} is not one of the {embeddings(model)} that {type(model).__name__} has"
        )
    return ids.masked_fill(~real, 0).long(), real


def read_token(name: str, value: Any, model: PreTrainedModel) -> int:
    """Return ``value`` as the id of a token.

    Raises:
        AttnExtError: ``value`` is not a whole number, or not a token of the model.
    """
    most = embeddings(model) - 1
    if not is_whole(value) or not 0 <= value <= most:
        raise AttnExtError(
            f"{name} must be the id of a token, from 0 to {most}, got {short(value)}; pass another {name}"
        )
    return int(value)


def embeddings(model: PreTrainedModel) -> int:
    """Return the size of the model's input vocabulary."""
    layer: Any = model.get_input_embeddings()
    return int(getattr(layer, "num_embeddings", None) or layer.weight.shape[0])
