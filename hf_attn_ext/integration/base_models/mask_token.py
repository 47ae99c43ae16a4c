"""A mask token for vocabularies that have none, as those of GPTs."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from hf_attn_ext.errors import AttnExtError, short

from .wrapping import unwrap

MASK_TOKEN = "<mask>"


@torch.no_grad()
def add_mask_token(model: Any, tokenizer: Any, token: str = MASK_TOKEN) -> Any:
    """Give a tokenizer a mask token and the model a row for it, in place.

    The new row is the mean of the others, in the input embeddings and, where they are not the same, in the output's
    (bias included). Rows that a padded vocabulary has already are used first. Where the tokenizer has a mask token that
    the model has a row for, nothing changes: doing it again does nothing. Save both afterwards, in one folder.

    Args:
        model: stock or converted; PEFT's wrapper is looked through.
        tokenizer: the model's.
        token: the text of the new token; in a text it is read as the mask token from now on.

    Returns:
        The model; the id is ``tokenizer.mask_token_id``, and ``config.mask_token_id``.

    Raises:
        AttnExtError: no transformers model or tokenizer, or ``token`` is an ordinary token of the vocabulary already.

    Example:
        >>> hax.add_mask_token(model, tokenizer)  # doctest: +SKIP
        >>> tokenizer.mask_token_id  # doctest: +SKIP
        50257
    """
    base = unwrap(model)
    if not isinstance(base, PreTrainedModel):
        raise AttnExtError(f"add_mask_token needs a transformers model, got {type(base).__name__}")
    if not all(hasattr(tokenizer, name) for name in ("get_vocab", "add_special_tokens", "mask_token_id")):
        raise AttnExtError(f"tokenizer must be one of transformers, got {short(tokenizer)}")
    if not isinstance(token, str) or not token:
        raise AttnExtError(f"token must be a text, got {short(token)}")
    before = len(tokenizer)
    if tokenizer.mask_token is None:
        if token in tokenizer.get_vocab():
            raise AttnExtError(f"{token!r} is in the vocabulary already, with another meaning; choose another token")
        tokenizer.add_special_tokens({"mask_token": token})
    number = tokenizer.mask_token_id
    rows = base.get_input_embeddings().weight.shape[0]
    if number >= rows:
        base.resize_token_embeddings(number + 1, mean_resizing=False)
    if number >= min(rows, before):
        _fill(base, min(rows, before), number)
    base.config.mask_token_id = number
    return model


def _fill(model: PreTrainedModel, known: int, number: int) -> None:
    """Rows ``known`` to ``number`` become the mean of those before: of the embeddings, the head, and its bias."""
    head = model.get_output_embeddings()
    weights = [model.get_input_embeddings().weight]
    if head is not None:
        weights += [head.weight] if head.weight is not weights[0] else []
        weights += [head.bias] if getattr(head, "bias", None) is not None else []
    for weight in weights:
        weight[known : number + 1] = weight[:known].to(torch.float32).mean(0).to(weight.dtype)
