"""Learned positions of a model: how many it has, and more of them for longer texts."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_attn_ext.errors import AttnExtError

from .families import COUNTS_FROM_PADDING, first_int, stock_type
from .readable_layers import config_of

# Names of the table of learned absolute positions in Transformers' models.
_TABLES = ("position_embeddings", "wpe")
_LONGEST = 2**24


@torch.no_grad()
def extend_positions(model: PreTrainedModel, length: int) -> PreTrainedModel:
    """Give a model with learned absolute positions (BERT, RoBERTa, GPT-2 and their kind) more of them, in place.

    New positions repeat the old ones from the start, so texts that fitted before give the very same outputs. Train the
    model on long texts before relying on it there. The tokenizer is another object: set its ``model_max_length``.

    Args:
        model: a base model or a converted one.
        length: how many tokens a text may have afterwards, special tokens included.

    Returns:
        The same object; ``config.max_position_embeddings`` is set as the family counts it.

    Raises:
        AttnExtError: no table of learned positions (rotary models have none), or a length below the present one.

    Source: the initialisation of Longformer (arXiv:2004.05150, section 5).

    Example:
        >>> hax.extend_positions(model, 4096)  # doctest: +SKIP
    """
    if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= _LONGEST:
        raise AttnExtError(f"length must be a whole number from 1 to {_LONGEST}, got {length!r}")
    holders = [(module, name) for module in model.modules() for name in _TABLES if _is_table(module, name)]
    name = type(model).__name__
    if not holders:
        raise AttnExtError(
            f"{name} has no table of learned positions ({' or '.join(_TABLES)}); models with rotary positions are "
            "extended by their rope parameters"
        )
    for module, attribute in holders:
        old: nn.Embedding = getattr(module, attribute)
        # RoBERTa's positions start behind the padding index, which has a row of its own
        first = 0 if old.padding_idx is None else old.padding_idx + 1
        usable = old.num_embeddings - first
        if length < usable:
            raise AttnExtError(f"{name} has {usable} positions already, got length {length}; give a larger one")
        rows = first + torch.arange(length, device=old.weight.device) % usable
        weight = torch.cat([old.weight[:first], old.weight[rows]])
        new = nn.Embedding(len(weight), old.embedding_dim, old.padding_idx, _weight=weight, dtype=weight.dtype)
        new.weight.requires_grad_(old.weight.requires_grad)
        setattr(module, attribute, new.train(old.training))
        _extend_buffers(module, len(weight))
        model.config.max_position_embeddings = len(weight)
    return model


def position_table(model: nn.Module) -> tuple[int, int] | None:
    """Return how many learned positions a model can use, and the position id of the first; None for rotary models."""
    tables = [getattr(module, name) for module in model.modules() for name in _TABLES if _is_table(module, name)]
    if not tables:
        return None
    firsts = [0 if table.padding_idx is None else table.padding_idx + 1 for table in tables]
    return min(table.num_embeddings - first for table, first in zip(tables, firsts, strict=True)), max(firsts)


def max_tokens(model: nn.Module) -> int | None:
    """Return how many tokens a text may have, special tokens included; None where the model does not limit them."""
    table = position_table(model)
    return configured_max_tokens(config_of(model)) if table is None else table[0]


def configured_max_tokens(config: Any) -> int | None:
    """Return :func:`max_tokens` of a configuration's model, before there is one."""
    positions = first_int(config, ("max_position_embeddings",))
    if positions is None or positions < 0:  # XLNet says -1
        return None
    if stock_type(getattr(config, "model_type", "")) in COUNTS_FROM_PADDING:
        positions -= (config.pad_token_id or 0) + 1
    return positions


def _is_table(module: nn.Module, name: str) -> bool:
    return isinstance(module._modules.get(name), nn.Embedding)


def _extend_buffers(module: nn.Module, rows: int) -> None:
    """Lengthen the buffers of an embedding module: position ids 0, 1, ... and token types 0."""
    for name in ("position_ids", "token_type_ids"):
        buffer = module._buffers.get(name)
        if buffer is not None:
            step = 0 if name == "token_type_ids" else 1
            module._buffers[name] = step * torch.arange(rows, dtype=buffer.dtype, device=buffer.device)[None]
