"""Every token's log-probability given all other tokens: from one pass, or from one pass per token."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hf_attn_ext.hasse.masks import butterfly
from hf_attn_ext.integration import butterfly_embeddings
from hf_attn_ext.integration.base_models.positions import position_table
from hf_attn_ext.integration.masking.call import given_mask
from hf_attn_ext.integration.masking.layouts import lay_out

ROWS = 128  # rows of n passes, at most, that are computed at once


@torch.no_grad()
def masked_passes(model: nn.Module, ids: Tensor, mask_id: int) -> Tensor:
    """N passes of a masked language model: in pass k the mask token stands in the place of token k.

    Args:
        model: an encoder that was trained so.
        ids: int64 (B, n), without padding.
        mask_id: the mask token's.

    Returns:
        (B, n) natural logarithms.
    """
    batch, n = ids.shape
    places = torch.arange(n, device=ids.device)
    first = (position_table(model) or (None, 0))[1]
    rows = ids.repeat_interleave(n, 0)
    masked = places.repeat(batch)
    each = torch.arange(len(rows), device=ids.device)
    rows[each, masked] = mask_id
    hidden = [
        model.base_model(input_ids=part, position_ids=(places + first).expand_as(part)).last_hidden_state[
            torch.arange(len(part)), at
        ]
        for part, at in zip(rows.split(ROWS), masked.split(ROWS), strict=True)
    ]
    return _of_labels(model, torch.cat(hidden), ids)


@torch.no_grad()
def cloze_passes(model: nn.Module, ids: Tensor) -> Tensor:
    """N passes of a butterfly model: pass k holds what the prediction of token k sees, and nothing else.

    These are n positions: the tokens before k in the forward chain, those after it in the backward chain, and the
    prediction; what each sees is what the mask says. ``butterfly_score`` computes the same in one pass of 3n-2.

    Args:
        model: has the mask ``butterfly`` in every layer, without a window.
        ids: int64 (B, n), n >= 2, without padding.

    Returns:
        (B, n) natural logarithms.
    """
    batch, n = ids.shape
    spec, first = butterfly(n), (position_table(model) or (None, 0))[1]
    kept = torch.tensor([[*range(k), *range(n - 1 + k, 2 * n - 2), 2 * n - 2 + k] for k in range(n)])
    seen = spec.dense()[kept[:, :, None], kept[:, None, :]].to(ids.device)
    laid = lay_out(spec, ids.cpu(), torch.ones(batch, n, dtype=torch.bool), first_position=first)
    names = ("position_ids", "attention_mask", "input_ids", "neighbour_ids")
    rows = {name: laid[name][:, kept].flatten(0, 1).to(ids.device) for name in names}
    hidden = []
    for start in range(0, batch * n, ROWS):
        part = {name: tensor[start : start + ROWS] for name, tensor in rows.items()}
        each = torch.arange(start, min(start + ROWS, batch * n), device=ids.device) % n
        with given_mask(model.config, seen[each], spec.position_ids[kept].to(ids.device)[each]):
            hidden.append(model.base_model(**butterfly_embeddings(model, part)).last_hidden_state[:, -1])
    return _of_labels(model, torch.cat(hidden), ids)


def _of_labels(model: nn.Module, hidden: Tensor, ids: Tensor) -> Tensor:
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    labels = ids.flatten()[:, None].split(ROWS)
    parts = zip(hidden.split(ROWS), labels, strict=True)
    scores = [model.lm_head(part).to(dtype).log_softmax(-1).gather(1, label) for part, label in parts]
    return torch.cat(scores).view_as(ids)


def timed(score: Callable[..., Tensor], model: Any, ids: Tensor, *arguments: Any, batch: int = 16) -> tuple[Any, float]:
    """The scores (S, n) of all texts as an array, and the seconds a text, after one batch that does not count.

    The seconds are the process's own on all cores; those of the clock where a device computes.
    """
    clock = time.perf_counter if ids.is_cuda else time.process_time
    score(model, ids[:batch], *arguments).cpu()
    start = clock()
    found = torch.cat([score(model, part, *arguments).double().cpu() for part in ids.split(batch)])
    return found.numpy(), (clock() - start) / len(ids)
