"""Notes on the gaps of a probe's statistics, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from hf_attn_ext.integration.base_models.readable_layers import Layer
from hf_attn_ext.probe.statistics import list_statistics, statistic_named


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
    """Return the sentences of :attr:`.ProbeStatistics.notes`, from its ``counts`` and ``settings`` and these facts.

    Args:
        layers: the layers that were looked at; ``part``: whether the model has more.
        tokenizer: whether the probe has a tokenizer; ``unknown``: separators that are not in its vocabulary.
        left_out: how many rows of attention maps could not be normalised again, and how many there are.
        draws: the effective number of documents, from :func:`.sums.equal_draws`.
        dtype: of the model's first parameter.
    """
    return [
        *_on_tokens(counts, settings, tokenizer, unknown),
        *_on_layers(layers, part, dtype),
        *_on_amounts(counts, settings, left_out, draws),
    ]


def _on_tokens(
    counts: Mapping[str, int], settings: Mapping[str, Any], tokenizer: bool, unknown: Sequence[str]
) -> Iterator[str]:
    if not counts["sentences"]:
        yield "No sentences were known: sentence statistics need probe.feed(texts), which has the offsets."
    if not tokenizer:
        yield "Without a tokenizer, special tokens are those of the model's configuration."
    elif unknown:
        left = "there are no others" if len(unknown) == len(settings["separators"]) else "the others are taken"
        shown = " and ".join(f'"{one}"' for one in unknown)
        yield f"The tokenizer's vocabulary has no token {shown}, a separator: {left}."


def _on_layers(layers: Sequence[Layer], part: bool, dtype: torch.dtype) -> Iterator[str]:
    if dtype.itemsize < 4:
        yield (
            f"The model computed in {str(dtype).removeprefix('torch.')}, whose rounding depends on the shape of a "
            "batch: with other batches many near pairs change their order. Load the model in float32 for numbers that "
            "do not depend on batches."
        )
    if part:
        yield (
            f"Only layers {', '.join(str(layer.index) for layer in layers)} were looked at: early, middle and last "
            "refer to these, not to the model."
        )
    if layers[0].counted:
        yield "The projections' names do not give their blocks' numbers: layers are numbered as they match, from 0."
    if layers[0].projection:
        named = [name for name in list_statistics() if statistic_named(name).needs_attention]
        yield (
            "Heads were read at the output projections, where there are no queries and keys: statistics of the "
            f"attention map are left out ({', '.join(named)}, and A A^T as a control)."
        )


def _on_amounts(
    counts: Mapping[str, int], settings: Mapping[str, Any], left_out: tuple[int, int], draws: float
) -> Iterator[str]:
    if settings["sample"] and not counts["sampled"]:
        yield (
            f"No text fell into the sample of {settings['sample']:.4g} of the texts: there are no controls and no "
            "statistics of the attention map; feed more texts, or set sample=1."
        )
    if left_out[0]:
        yield (
            f"{left_out[0]} of {left_out[1]} rows of attention maps have no weight on tokens that are not special, or "
            "weights that cancel (signed kernels): left out of the separator focus, and zero for the region."
        )
    if counts["texts"] < 20:
        yield f"Intervals from {counts['texts']} texts are too narrow; 20 are the least to rely on."
    elif settings["resampled"] == "documents" and draws < 20:
        yield (
            f"The texts are parts of documents that count as about {draws:.0f} equal ones: intervals from so few are "
            "too narrow; 20 are the least to rely on."
        )
    if counts["skipped"]:
        yield f"{counts['skipped']} texts of fewer than two tokens have no pairs and were left out."
