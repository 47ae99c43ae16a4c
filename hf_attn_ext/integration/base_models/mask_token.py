"""A mask token for vocabularies without one, such as those of GPTs."""

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

    The new row is the mean of the other rows, in the input embeddings and in untied output embeddings with their bias.
    Rows that a padded vocabulary already has are used first. A second call changes nothing. Save both afterwards, in
    one folder.

    Args:
        model: a base model or a converted one, wrapped by PEFT or not.
        tokenizer: the model's tokenizer.
        token: the text of the new token; the tokenizer reads it as the mask token from now on.

    Returns:
        The model; the id is ``tokenizer.mask_token_id`` and ``config.mask_token_id``.

    Raises:
        AttnExtError: no Transformers model or tokenizer, or ``token`` is an ordinary token of the vocabulary.

    Source: ours.

    Example:
        >>> hax.add_mask_token(model, tokenizer)  # doctest: +SKIP
        >>> tokenizer.mask_token_id  # doctest: +SKIP
        50257
    """
    base = unwrap(model)
    if not isinstance(base, PreTrainedModel):
        raise AttnExtError(f"model must be a Transformers model, got {type(base).__name__}")
    if not all(hasattr(tokenizer, name) for name in ("get_vocab", "add_special_tokens", "mask_token_id")):
        raise AttnExtError(f"tokenizer must be a Transformers tokenizer, got {short(tokenizer)}")
    if not isinstance(token, str) or not token:
        raise AttnExtError(f"token must be a string, got {short(token)}")
    before = len(tokenizer)
    if tokenizer.mask_token is None:
        if token in tokenizer.get_vocab():
            raise AttnExtError(f"{token!r} is in the vocabulary already, as an ordinary token; choose another one")
        tokenizer.add_special_tokens({"mask_token": token})
    number: int = tokenizer.mask_token_id
    embeddings: Any = base.get_input_embeddings()
    rows = embeddings.weight.shape[0]
    if number >= rows:
        base.resize_token_embeddings(number + 1, mean_resizing=False)
    if number >= min(rows, before):
        _fill(base, min(rows, before), number)
    base.config.mask_token_id = number
    return model


def _fill(model: PreTrainedModel, known: int, number: int) -> None:
    """Set rows ``known`` to ``number`` of the embeddings, the head and its bias to the mean of those before."""
    head: Any = model.get_output_embeddings()
    embeddings: Any = model.get_input_embeddings()
    weights = [embeddings.weight]
    if head is not None:
        weights += [head.weight] if head.weight is not weights[0] else []
        weights += [head.bias] if getattr(head, "bias", None) is not None else []
    for weight in weights:
        weight[known : number + 1] = weight[:known].to(torch.float32).mean(0).to(weight.dtype)
