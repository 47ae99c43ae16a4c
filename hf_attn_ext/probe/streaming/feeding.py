"""Annotated batches of texts, and one pass of a model over each."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hf_attn_ext.errors import AttnExtError, short
from hf_attn_ext.integration.base_models.positions import max_tokens
from hf_attn_ext.integration.base_models.projections import call_options
from hf_attn_ext.integration.base_models.readable_layers import Layer, causal_model, token_reader
from hf_attn_ext.integration.capture.capture import capture
from hf_attn_ext.integration.capture.head_outputs import HeadOutputs
from hf_attn_ext.probe.corpus.annotate import Annotation, annotate, check_boundaries, check_language
from hf_attn_ext.probe.options import check_ids, whole


def annotated_batches(
    models: Sequence[nn.Module],
    tokenizer: Any,
    texts: Iterable[str],
    batch_size: int,
    *,
    truncation: bool = False,
    max_length: int | None = None,
    language: str = "en",
    boundaries: Sequence[str] | None = None,
    pad_to: int | None = None,
    documents: Iterable[str] | None = None,
    layers: Sequence[Layer] = (),
) -> Iterator[Annotation]:
    """Yield batches of texts, made by :func:`.annotate`, that every one of ``models`` can read; no model is run.

    Texts are read lazily. The options are those of :meth:`.ContextSimilarityProbe.feed`; the ``layers`` of the probe
    tell which module reads the tokens. Where heads are read at projections and the first batch has as many texts as
    tokens, it is padded by one token, to tell batch and tokens apart (with ``pad_to``: every batch).
    """
    if isinstance(texts, (str, bytes)):
        raise AttnExtError("texts must be a list of strings, got one string; put it in a list")
    if not isinstance(texts, Iterable):
        raise AttnExtError(f"texts must be a list of strings, got {short(texts)}")
    if isinstance(documents, (str, bytes)) or not (documents is None or isinstance(documents, Iterable)):
        raise AttnExtError(f"documents must be a list with one name per text, got {short(documents)}")
    batch_size = whole(batch_size, 1, "batch_size")
    max_length = None if max_length is None else whole(max_length, 1, "max_length")
    check_language(language)
    check_boundaries(boundaries)
    pad_to = None if pad_to is None else whole(pad_to, 1, "pad_to")
    most = min((each for each in map(max_tokens, models) if each is not None), default=None)
    if pad_to is not None and most is not None and pad_to > most:
        raise AttnExtError(f"pad_to is {pad_to}, the model takes {most} tokens at most")
    limit = min((each for each in (most, max_length) if each is not None), default=None)
    options: dict[str, Any] = {"truncation": truncation, "max_length": limit, "language": language}
    options |= {"boundaries": boundaries, "pad_to": pad_to}
    # the model's limit, whatever max_length is
    room = (most or 2**63) if any(layer.projection for layer in layers) else None
    readers = [token_reader(model, layers) for model in models]
    return _batches(readers, tokenizer, texts, documents, batch_size, options, room)


def _batches(
    readers: list[nn.Module],
    tokenizer: Any,
    texts: Iterable[str],
    documents: Iterable[str] | None,
    batch_size: int,
    options: dict[str, Any],
    room: int | None,
) -> Iterator[Annotation]:
    """``room``: the models' limit in tokens, where batch and tokens must be told apart; else None."""
    count, source = 0, iter(texts)
    names = None if documents is None else iter(documents)
    while batch := list(itertools.islice(source, batch_size)):
        annotation = annotate(batch, tokenizer, first=count, **options)
        size, length = annotation.input_ids.shape
        if room is not None and not count and 1 < size == length < room:
            longer = {**options, "pad_to": length + 1}
            annotation = annotate(batch, tokenizer, first=count, **longer)
            options = options if options["pad_to"] is None else longer
        for reader in readers:
            check_ids(annotation.input_ids, reader)
        if names is not None:
            own = list(itertools.islice(names, len(batch)))
            annotation = dataclasses.replace(annotation, documents=_names(own, len(batch), count))
        yield annotation
        count += len(batch)
    if not count:
        raise AttnExtError("there are no texts to feed; the list is empty")
    if names is not None and next(names, None) is not None:
        raise AttnExtError(f"there are more documents than texts, {count}; name each text's document once")


def _names(names: list[Any], texts: int, first: int) -> list[str]:
    """Check the names of a batch's documents; ``first`` is the number of the first text."""
    if len(names) < texts:
        raise AttnExtError(f"text {first + len(names)} has no document; name each text's document once")
    for number, name in enumerate(names, first):
        if not isinstance(name, str):
            raise AttnExtError(f"the document of text {number} must be a string, got {short(name)}")
    return names


@torch.no_grad()
def read(model: nn.Module, input_ids: Tensor, attention_mask: Tensor, layers: Sequence[Layer] = ()) -> Any:
    """Run the part of ``model`` that reads tokens, without its head, over one batch, and return its output."""
    reader = token_reader(model, layers)
    device = next(reader.parameters()).device
    if any(layer.projection for layer in layers):
        extra = call_options(reader)
    else:
        extra = {"use_cache": False} if causal_model(model) else {}
    try:
        return reader(input_ids=input_ids.to(device), attention_mask=attention_mask.to(device), **extra)
    except IndexError as error:
        if max_tokens(model) is not None:
            raise
        raise AttnExtError(
            f"{type(reader).__name__} failed over {input_ids.shape[1]} tokens a text, padding included "
            f"(IndexError: {error}); if it has fewer positions, give a smaller pad_to, or max_length with "
            "truncation=True"
        ) from error


def head_outputs(model: nn.Module, annotation: Annotation, layers: list[Layer]) -> dict[int, Tensor]:
    """Run one batch and return, by layer, the heads' outputs before the output projection, (B, H, N, d) on the CPU."""
    outputs: dict[int, Tensor] = {}

    def keep(call: HeadOutputs) -> None:
        call.check_single(outputs_of)
        outputs[call.layer.index] = call.output.cpu()

    outputs_of = object()
    with capture(model, keep, layers=layers):
        read(model, annotation.input_ids, annotation.attention_mask, layers)
    return outputs
