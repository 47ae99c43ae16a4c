"""What a call of a model is given: its arguments by name, a cache that it continues, and which tokens are padding."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hf_attn_ext.errors import AttnExtError

from .families import CACHE_ARGUMENTS

# Also those of older models, and of people's own.
_CACHES = (*CACHE_ARGUMENTS, "past_key_value", "layer_past", "past", "kv_cache", "mems")
# What an additive mask adds where nothing is seen is this or less: the host's older models have -10000.
_HIDDEN = -1e4


def arguments(module: nn.Module, args: tuple, kwargs: dict) -> dict[str, Any]:
    """A call's arguments by name; a wrong call is left to the model, whose message is the better one."""
    try:
        return dict(_signature(type(module)).bind_partial(module, *args, **kwargs).arguments) | kwargs
    except TypeError:
        return dict(kwargs)


def check_no_cache(given: Mapping[str, Any]) -> None:
    """Raise where a call continues a cache: one that says its length, or tensors in sequences or mappings.

    Raises:
        AttnExtError: it does.
    """
    for name in _CACHES:
        cache = given.get(name)
        seen = cache.get_seq_length() if hasattr(cache, "get_seq_length") else _longest(cache)
        if isinstance(seen, int) and seen > 0:
            raise AttnExtError(
                f"the pass continues a cache of {seen} tokens ({name}), whose outputs are gone; give the whole text at "
                "once, with use_cache=False, or leave the block before generating"
            )


def padding_mask(given: Mapping[str, Any]) -> Tensor | None:
    """Bool (B, N), True = real token, of a call's arguments; None where the call names no tokens and no mask.

    Of a mask with more axes than two, padding is what no query may see, not even itself; padding that sees itself
    cannot be told from text there.

    Raises:
        AttnExtError: a mask (B, N) of other values than 0 and 1, or a float one without any 1: an additive one.
    """
    ids, mask = given.get("input_ids"), given.get("attention_mask")
    if torch.is_tensor(mask) and mask.ndim == 2:
        return _of_two_axes(mask)
    like = ids if ids is not None else given.get("inputs_embeds")
    if like is None:
        return None
    real = torch.ones(like.shape[:2], dtype=torch.bool, device=like.device)
    for each in mask.values() if isinstance(mask, Mapping) else [mask]:
        if torch.is_tensor(each) and each.ndim in (3, 4) and each.shape[-1] == like.shape[1]:
            seen = each > _HIDDEN if each.is_floating_point() else each != 0
            seen = seen.flatten(1, -2).any(1).to(like.device)
            if len(seen) in (1, len(real)):
                real = real & seen
    return real


def _of_two_axes(mask: Tensor) -> Tensor:
    if mask.dtype == torch.bool or mask.is_meta:
        return mask.to(torch.bool)
    odd = mask[(mask != 0) & (mask != 1)]
    if odd.numel():
        raise AttnExtError(
            f"attention_mask has {odd[0].item():g}; of shape (batch, tokens) it must have 1 for tokens and 0 for "
            "padding, not what an additive mask adds"
        )
    if mask.is_floating_point() and mask.numel() and not mask.any():
        raise AttnExtError(
            "attention_mask is 0.0 everywhere: all padding, or an additive mask; of shape (batch, tokens) it must have "
            "1 for tokens and 0 for padding"
        )
    return mask.to(torch.bool)


@functools.cache
def _signature(cls: type) -> inspect.Signature:
    return inspect.signature(cls.forward)


def _longest(cache: Any) -> int:
    """Of the tensors (..., tokens, size) in it; 0 where there are none, as in a list of None."""
    return max((each.shape[-2] if each.ndim > 1 else each.numel() for each in _tensors(cache)), default=0)


def _tensors(holder: Any) -> Iterator[Tensor]:
    if torch.is_tensor(holder):
        yield holder
    elif isinstance(holder, (list, tuple, Mapping)):
        for each in holder.values() if isinstance(holder, Mapping) else holder:
            yield from _tensors(each)
