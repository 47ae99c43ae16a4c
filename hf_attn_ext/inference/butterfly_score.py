"""Log-probability of every token given all the others, in one pass, for models trained with butterfly attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec
from hf_attn_ext.hasse.masks import butterfly
from hf_attn_ext.integration.base_models.families import attention_modules, is_causal
from hf_attn_ext.integration.base_models.positions import position_table
from hf_attn_ext.integration.masking.layouts import butterfly_embeddings, lay_out
from hf_attn_ext.integration.masking.set_mask import active_mask

from .texts import read_model, read_texts


@torch.no_grad()
def butterfly_score(model: Any, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """Score texts from both sides: log p(token k | all other tokens), for all k in one pass over 3n-2 positions.

    A masked language model needs n passes for the same scores.

    Args:
        model: a language model with the mask ``butterfly`` (:func:`hf_attn_ext.set_mask`), trained with it.
        input_ids: int64 (B, n).
        attention_mask: (B, n), 1 = real token, padding on either side; None: all real.

    Returns:
        (B, n), natural logarithms in at least float32; NaN at padding, and for a text of a single token, which has
        no context.

    Raises:
        AttnExtError: the model lacks that mask or has virtual tokens from PEFT, the tensors have other shapes or
            dtypes, a token is not in the vocabulary, or a text is longer than the model's positions.

    Example:
        >>> scores = butterfly_score(model, **tokenizer(["One text."], return_tensors="pt"))  # doctest: +SKIP
        >>> (-scores.nanmean()).exp()  # the pseudo-perplexity  # doctest: +SKIP
    """
    base = read_model(model, "butterfly_score")
    options = _options(base)
    input_ids, real = read_texts(input_ids, attention_mask, base)
    table = position_table(base)
    limit, first = (None, 0) if table is None else table
    lengths = real.sum(1)
    width = max(2, int(lengths.max()))
    if limit is not None and width > limit:
        raise AttnExtError(
            f"a text has {width} tokens, but {type(base).__name__} has {limit} positions; cut it, or call "
            f"hf_attn_ext.extend_positions(model, {width})"
        )
    order = torch.argsort(real.int(), dim=1, descending=True, stable=True)
    ids = torch.nn.functional.pad(input_ids.gather(1, order), (0, max(0, width - input_ids.shape[1])))[:, :width]
    packed = torch.arange(width, device=ids.device) < lengths[:, None]
    laid = lay_out(butterfly(width, **options), ids.cpu(), packed.cpu(), first_position=first)
    laid = {name: x.to(input_ids.device) for name, x in laid.items()}
    labels = laid.pop("labels")[:, -width:]
    uncached = {"use_cache": False} if any(is_causal(module) for _, module in attention_modules(base)) else {}
    logits = base(**butterfly_embeddings(base, laid), **uncached).logits[:, -width:]
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    scores = logits.log_softmax(-1).gather(2, labels.clamp_min(0)[..., None])[..., 0]
    scores = scores.masked_fill(labels < 0, torch.nan)
    unscored = torch.full(input_ids.shape, torch.nan, dtype=scores.dtype, device=scores.device)
    kept = min(width, input_ids.shape[1])
    return unscored.scatter(1, order[:, :kept], scores[:, :kept])


def _options(model: Any) -> dict[str, Any]:
    masks = active_mask(model) or [None]
    kinds = [(mask.name, dict(mask.options)) if isinstance(mask, MaskSpec) else mask for mask in masks]
    if not all(isinstance(kind, tuple) and kind[0] == "butterfly" and kind == kinds[0] for kind in kinds):
        raise AttnExtError(
            f"butterfly_score needs the same mask 'butterfly' in every layer of {type(model).__name__}, as in its "
            "training; call hf_attn_ext.set_mask(model, 'butterfly')"
        )
    return {name: value for name, value in kinds[0][1].items() if name != "n"}
