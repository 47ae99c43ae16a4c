"""Texts in the layout of a mask: the token at each position, its position id and its label.

A mask's inputs say which token is at each position (:mod:`hf_attn_ext.hasse.spec`); here they are filled with the ids
of real texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec

NEIGHBOURS = "neighbour_ids"
IGNORED = -100


def lay_out(
    spec: MaskSpec, ids: Tensor, real: Tensor, mask_id: int | None = None, first_position: int = 0
) -> dict[str, Tensor]:
    """Put texts into the layout of a mask.

    A position belongs to one token of the text. Where that token is padding, the position is padding, so that a padded
    text gives the same outputs as without padding.

    Args:
        spec: a mask over ``spec.tokens`` tokens, whose inputs are tokens, mask tokens, or means of neighbours.
        ids: int64 (B, n), n = ``spec.tokens``.
        real: bool (B, n), True = real token; padding on the right.
        mask_id: the id of the mask token, for masks that have mask tokens.
        first_position: the model's first position id (not 0 in RoBERTa).

    Returns:
        ``input_ids``, ``position_ids``, ``attention_mask``, ``labels``: int64 (B, N); labels are at the positions that
        predict, not shifted, and -100 elsewhere. For means of neighbours also ``neighbour_ids`` (B, N, 2), the two
        tokens whose mean is a position's input, or one token twice; ``input_ids`` is not used at such positions.
    """
    batch, count = ids.shape
    inputs: list[Any] = list(spec.inputs)
    kinds = [entry[0] if isinstance(entry, tuple) else entry for entry in inputs]
    if count != spec.tokens or not set(kinds) <= {"token", "mask", "mean"}:
        raise AttnExtError(f"{spec.title} cannot be filled with texts of {count} tokens: its inputs are {set(kinds)}")
    if "mask" in kinds and mask_id is None:
        raise AttnExtError(f"{spec.title} has mask tokens; give the id of the mask token")
    own = torch.tensor([entry[1] for entry in inputs])
    masked = torch.tensor([kind == "mask" for kind in kinds])
    mean = torch.tensor([kind == "mean" for kind in kinds])
    attention = real[:, own]
    filled = ids[:, own]
    if mask_id is not None:
        filled = filled.masked_fill(masked, mask_id)
    asked = torch.full((len(spec),), -1)
    if spec.labels:
        asked[torch.tensor(list(spec.labels))] = torch.tensor(list(spec.labels.values()))
    labels = torch.where((asked >= 0) & real[:, asked.clamp_min(0)], ids[:, asked.clamp_min(0)], IGNORED)
    positions = (spec.position_ids + first_position).expand(batch, -1)
    laid = {"input_ids": filled, "position_ids": positions.contiguous()}
    if mean.any():
        pairs, alone = _neighbours(ids, real, own)
        laid[NEIGHBOURS] = torch.where(mean[None, :, None], pairs, filled[..., None])
        laid["input_ids"] = filled.masked_fill(mean, 0 if mask_id is None else mask_id)
        attention = attention & ~(mean & alone)  # nothing to predict the only token of a text from
    laid["labels"] = labels.masked_fill(~attention, IGNORED)
    laid["attention_mask"] = attention.long()
    return laid


def _neighbours(ids: Tensor, real: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens left and right of each position's own, (B, N, 2), one twice at the ends; and which have none."""
    count = ids.shape[1]
    left, right = own - 1, own + 1
    has_left = (left >= 0).expand(len(ids), -1)
    has_right = real[:, right.clamp_max(count - 1)] & (right < count)
    before, after = ids[:, left.clamp_min(0)], ids[:, right.clamp_max(count - 1)]
    pairs = torch.stack([torch.where(has_left, before, after), torch.where(has_right, after, before)], dim=-1)
    alone = ~has_left & ~has_right
    return pairs.masked_fill(alone[..., None], 0), alone


def butterfly_embeddings(model: nn.Module, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``batch`` with ``inputs_embeds`` in place of ``input_ids`` and ``neighbour_ids``.

    The input of a predicting position is the mean of its neighbours' token embeddings, from the model's own embedding
    layer, with gradients.

    Args:
        model: a Transformers model, or its wrapper with ``get_input_embeddings()``.
        batch: from :class:`hf_attn_ext.training.ButterflyCollator`.

    Example:
        >>> model(**butterfly_embeddings(model, batch)).loss.backward()  # doctest: +SKIP
    """
    kept = {name: value for name, value in batch.items() if name not in (NEIGHBOURS, "input_ids")}
    embedded = _embedding_layer(model)(batch[NEIGHBOURS])
    return {**kept, "inputs_embeds": embedded.mean(dim=2)}


def accept_neighbour_ids(model: nn.Module) -> RemovableHandle:
    """Let ``model(**batch)`` take batches of :class:`hf_attn_ext.training.ButterflyCollator` unchanged.

    For Trainer and for loops of accelerate: a hook of the module computes :func:`butterfly_embeddings` first. Call it
    on the very object that is trained, such as PEFT's wrapper. The hook is not saved with the model.

    Returns:
        A handle, whose ``remove()`` removes the hook.

    Example:
        >>> accept_neighbour_ids(model)  # doctest: +SKIP
        >>> Trainer(model, args, data_collator=ButterflyCollator(tokenizer, model), ...).train()  # doctest: +SKIP
    """
    _embedding_layer(model)
    return model.register_forward_pre_hook(_embed, with_kwargs=True)


def _embed(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, (butterfly_embeddings(model, kwargs) if kwargs.get(NEIGHBOURS) is not None else kwargs)


def _embedding_layer(model: nn.Module) -> nn.Module:
    find = getattr(model, "get_input_embeddings", None)
    if find is None:
        raise AttnExtError(f"{type(model).__name__} has no input embeddings; pass the transformers model itself")
    layer: nn.Module = find()
    return layer


def check_inputs(kwargs: Mapping[str, Any]) -> None:
    """Raise AttnExtError where the neighbours of a batch reach the attention unused, so that inputs are wrong."""
    if kwargs.get(NEIGHBOURS) is not None:
        raise AttnExtError(
            f"{NEIGHBOURS} reached the attention unused: call hf_attn_ext.training.accept_neighbour_ids(model) once, "
            "or model(**hf_attn_ext.training.butterfly_embeddings(model, batch))"
        )
