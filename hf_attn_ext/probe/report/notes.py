"""What a reader of statistics must know of their gaps, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hf_attn_ext.integration.base_models.readable_layers import Layer


def notes(
    counts: Mapping[str, int],
    settings: Mapping[str, Any],
    layers: Sequence[Layer],
    *,
    tokenizer: bool,
    part: bool,
    left_out: tuple[int, int],
    draws: float,
    unknown: Sequence[str],
    dtype: torch.dtype,
) -> list[str]:
    """Sentences for :attr:`.results.ProbeStatistics.notes`.

    Args:
        counts, settings: of the statistics.
        layers: that were looked at.
        tokenizer: whether the probe has one.
        part: whether the model has more.
        left_out: how many rows of attention maps could not be normalised again, and how many there are.
        draws: how many equal documents these would be, from :func:`.sums.equal_draws`.
        unknown: separators that the vocabulary has not.
        dtype: of the model's first parameter.
    """
    found = []
    if not counts["sentences"]:
        found.append("No sentences were known: sentence statistics need probe.feed(texts), which has the offsets.")
    if not tokenizer:
        found.append("Without a tokenizer, special tokens are those of the model's configuration.")
    elif unknown:
        left = "there are no others" if len(unknown) == len(settings["separators"]) else "the others are taken"
        shown = " and ".join(f'"{one}"' for one in unknown)
        found.append(f"The tokenizer's vocabulary has no token {shown}, a separator: {left}.")
    if dtype.itemsize < 4:
        found.append(
            f"The model computed in {str(dtype).removeprefix('torch.')}, whose rounding hangs on the shape of a batch: "
            "with other batches many near pairs change places. Load it in float32 for numbers that batches do not move."
        )
    if part:
        found.append(
            f"Only layers {', '.join(str(layer.index) for layer in layers)} were looked at: early, middle and last are "
            "said of these, not of the model."
        )
    if layers[0].counted:
        found.append(
            "The names of the projections do not tell their blocks' numbers: layers are numbered as they match, from 0."
        )
    if layers[0].projection:
        found.append(
            "Heads were read at the output projections, where there are no queries and keys: left out is what needs "
            "the attention map (separator_focus, special_focus, region, and A A^T as a control)."
        )
    if settings["sample"] and not counts["sampled"]:
        found.append(
            f"No text fell into the sample of {settings['sample']:.4g} of the texts: no controls and nothing "
            "of the attention map; feed more texts, or set sample=1."
        )
    if left_out[0]:
        found.append(
            f"{left_out[0]} of {left_out[1]} rows of attention maps have no weight on tokens that are not special, or "
            "weights that cancel (signed kernels): left out of the separator focus, and zero for the region."
        )
    if counts["texts"] < 20:
        found.append(f"Intervals from {counts['texts']} texts are too narrow; 20 are the least to rely on.")
    elif settings["resampled"] == "documents" and draws < 20:
        found.append(
            f"The texts are parts of documents that count as about {draws:.0f} equal ones: intervals from so few are "
            "too narrow; 20 are the least to rely on."
        )
    if counts["skipped"]:
        found.append(f"{counts['skipped']} texts of fewer than two tokens have no pairs and were left out.")
    return found
