"""Read the arguments of a model call: by name, whether they continue a cache, and which tokens are padding."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hf_attn_ext.errors import AttnExtError

from .families import CACHE_ARGUMENTS

# With the names of older models and of users' own.
_CACHES = (*CACHE_ARGUMENTS, "past_key_value", "layer_past", "past", "kv_cache", "mems")
# An additive mask hides a key with this value or a smaller one: Transformers' older models use -10000.
_HIDDEN = -1e4


def arguments(module: nn.Module, args: tuple, kwargs: dict) -> dict[str, Any]:
    """Return all arguments of a call of ``module`` by name.

    For a call that ``forward`` does not accept these are ``kwargs`` alone, as the model's own error is the clearer one.
    """
    cls: Any = type(module)
    try:
        return dict(_signature(cls).bind_partial(module, *args, **kwargs).arguments) | kwargs
    except TypeError:
        return dict(kwargs)


def check_no_cache(given: Mapping[str, Any]) -> None:
    """Check that a call does not continue a cache: one that says its length, or holds tensors."""
    for name in _CACHES:
        cache: Any = given.get(name)
        seen = cache.get_seq_length() if hasattr(cache, "get_seq_length") else _longest(cache)
        if isinstance(seen, int) and seen > 0:
            raise AttnExtError(
                f"the pass continues a cache of {seen} tokens ({name}), whose outputs are not available; give the "
                "whole text at once with use_cache=False, or leave the block before generating"
            )


def padding_mask(given: Mapping[str, Any]) -> Tensor | None:
    """Return the padding mask of a call: bool (B, N), True = real token; None where it has neither tokens nor a mask.

    In a mask of more than two axes, a key is padding where no query may see it, not even the key's own. Padding that
    sees itself counts as text there.
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
            f"attention_mask has {odd[0].item():g}; a mask of shape (batch, tokens) must have 1 for tokens and "
            "0 for padding, not the values of an additive mask"
        )
    if mask.is_floating_point() and mask.numel() and not mask.any():
        raise AttnExtError(
            "attention_mask is 0.0 everywhere: all padding, or an additive mask; a mask of shape (batch, tokens) must "
            "have 1 for tokens and 0 for padding"
        )
    return mask.to(torch.bool)


@functools.cache
def _signature(cls: Any) -> inspect.Signature:
    return inspect.signature(cls.forward)


def _longest(cache: Any) -> int:
    """The most tokens of the tensors (..., tokens, size) in a cache; 0 where it holds none, as a list of None."""
    return max((each.shape[-2] if each.ndim > 1 else each.numel() for each in _tensors(cache)), default=0)


def _tensors(holder: Any) -> Iterator[Tensor]:
    if torch.is_tensor(holder):
        yield holder
    elif isinstance(holder, (list, tuple, Mapping)):
        for each in holder.values() if isinstance(holder, Mapping) else holder:
            yield from _tensors(each)
