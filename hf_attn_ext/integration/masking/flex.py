"""Masks for ``torch.nn.attention.flex_attention``, and its call."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers.integrations.sdpa_attention import repeat_kv

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse.registry import kept_by_name
from hf_attn_ext.integration.modifiers import refuse_modifiers

from .call import MaskCall
from .recipe import LayerMask, Recipe, heads_of

BLOCK = 128


def flex_mask_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    block_mask: BlockMask,
    dropout: float,
    scaling: float | None,
    kwargs: dict[str, Any],
) -> Tensor:
    """Call flex_attention, compiled on CUDA and plain on the CPU, where it has no backward pass: (B, H, Nq, d_v)."""
    refuse_modifiers(module, kwargs, "scores", "backend 'flex' (backend='eager' takes the family's own attention)")
    if dropout:
        raise AttnExtError(
            f"backend 'flex' has no attention dropout, and {type(module).__name__} has {dropout}; set it to 0 in the "
            "configuration, call model.eval(), or use set_mask(..., backend='sdpa')"
        )
    on_cpu = query.device.type == "cpu"
    if on_cpu and torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
        raise AttnExtError(
            "backend 'flex' has no backward on the CPU; train with set_mask(..., backend='sdpa'), or call it under "
            "torch.no_grad()"
        )
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    if not on_cpu and not torch.compiler.is_compiling():
        return _compiled()(query, key, value, block_mask=block_mask, scale=scaling)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        return flex_attention(query, key, value, block_mask=block_mask, scale=scaling)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(flex_attention)


@torch.compiler.disable
def block_mask(call: MaskCall, layer: LayerMask, device: torch.device) -> BlockMask:
    """Return the mask of :meth:`.MaskCall.allowed` as a BlockMask: closed forms, and tables where there is padding."""
    return call.kept(("block", layer, str(device)), lambda: _build_block_mask(call, layer, device))


def _build_block_mask(call: MaskCall, layer: LayerMask, device: torch.device) -> BlockMask:
    recipes = heads_of(layer)
    if call.given is not None or call.q_offset or call.kv_length > call.stop:
        mask, _ = call.allowed(layer, device, skip=False)
        return _from_table(call, mask, device)
    specs = [recipe.of_length(call.stop) for recipe in recipes]
    distinct = list(dict.fromkeys(recipes))
    by_recipe = dict(zip(recipes, specs, strict=True))
    empty = [_empty_rows(recipe, call.stop, call.padding, device) for recipe in distinct]
    if len(distinct) == 1 and call.padding is None and not empty[0].any():
        return _block_mask(distinct[0], call.stop, device)
    forms = [by_recipe[recipe].mask_mod_on(device) for recipe in distinct]
    owner = torch.tensor([distinct.index(recipe) for recipe in recipes], device=device)
    padding = None if call.padding is None else call.padding.to(device)

    def seen_by(number: int, batch: Tensor, head: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        seen = forms[number](batch, head, q, kv)
        if padding is not None:
            seen = seen & padding[batch, kv]
        rows = empty[number]
        return seen | ((q == kv) & (rows[0, q] if len(rows) == 1 else rows[batch, q]))

    def mask_mod(batch: Tensor, head: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        seen = seen_by(0, batch, head, q, kv)
        for number in range(1, len(forms)):
            seen = torch.where(owner[head] == number, seen_by(number, batch, head, q, kv), seen)
        return seen

    size = -(-call.stop // BLOCK)
    tiles = torch.eye(size, dtype=torch.bool, device=device)  # a row may have to see itself
    for recipe in distinct:
        tiles = tiles | _block_mask(recipe, call.stop, device).to_dense()[0, 0].bool()
    return _with_tiles(tiles, mask_mod, (call.stop, call.stop))


@kept_by_name(maxsize=8)
def _block_mask(recipe: Recipe, length: int, device: torch.device) -> BlockMask:
    """A mask without padding, kept between forward passes."""
    with torch.inference_mode(False):  # a kept mask must serve training later
        return recipe.of_length(length).to_block_mask(device, BLOCK)


def _from_table(call: MaskCall, mask: Tensor | None, device: torch.device) -> BlockMask:
    """A BlockMask that looks up a mask (1 or B, 1 or H, Nq, Nk); for decoding, where the rows are few."""

    def mask_mod(batch: Tensor, head: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        if mask is None:
            return (q >= 0) & (kv >= 0)
        return mask[batch if mask.shape[0] > 1 else 0, head if mask.shape[1] > 1 else 0, q, kv]

    tiles = torch.ones(-(-call.q_length // BLOCK), -(-call.kv_length // BLOCK), dtype=torch.bool, device=device)
    return _with_tiles(tiles, mask_mod, (call.q_length, call.kv_length))


def _with_tiles(tiles: Tensor, mask_mod: Callable[..., Tensor], lengths: tuple[int, int]) -> BlockMask:
    order = torch.argsort(tiles.int(), dim=-1, descending=True, stable=True).int()
    return BlockMask.from_kv_blocks(
        tiles.sum(-1).int()[None, None],
        order[None, None].contiguous(),
        BLOCK_SIZE=BLOCK,
        mask_mod=mask_mod,
        seq_lengths=lengths,
    )


def _empty_rows(recipe: Recipe, length: int, padding: Tensor | None, device: torch.device) -> Tensor:
    """(1 or B, N) bool: rows that may see no real key."""
    if padding is None:
        return _unseeing(recipe, length).to(device)
    real = padding.to("cpu", torch.float32)
    return torch.cat([(real @ rows.T.float()) == 0 for rows in recipe.of_length(length).chunks()], dim=1).to(device)


@kept_by_name(maxsize=8)
def _unseeing(recipe: Recipe, length: int) -> Tensor:
    with torch.inference_mode(False):
        return torch.cat([~rows.any(-1) for rows in recipe.of_length(length).chunks()])[None]
