"""Texts into annotated batches, and one pass of a model over each."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import AttnExtError, short
from ..integration.capture import causal_model, max_tokens, token_reader
from .annotate import Annotation, annotate, check_language
from .options import whole


def annotated_batches(
    models: Sequence[nn.Module],
    tokenizer: Any,
    texts: Iterable[str],
    batch_size: int,
    *,
    truncation: bool = False,
    max_length: int | None = None,
    language: str = "en",
) -> Iterator[Annotation]:
    """Batches of texts, as :func:`.annotate` makes them, that every one of ``models`` can read.

    Args:
        models: none of them is run.
        texts: any iterable of strings, read as it goes.
        truncation: cut texts to ``max_length`` tokens; otherwise a longer one is an error.
        max_length: the longest text in tokens, special ones included; None is what the models take.

    Raises:
        AttnExtError: at once for a wrong option; on the way for a blank text, one that is too long, a token id that a
            model does not know, and at the end where there was no text.
    """
    if isinstance(texts, (str, bytes)):
        raise AttnExtError("texts must be a list of strings, got one string; put it in a list")
    if not isinstance(texts, Iterable):
        raise AttnExtError(f"texts must be a list of strings, got {short(texts)}")
    batch_size = whole(batch_size, 1, "batch_size")
    max_length = None if max_length is None else whole(max_length, 1, "max_length")
    check_language(language)
    limit = min((each for each in (*map(max_tokens, models), max_length) if each is not None), default=None)
    options = {"truncation": truncation, "max_length": limit, "language": language}
    return _batches([token_reader(model) for model in models], tokenizer, texts, batch_size, options)


def _batches(
    readers: list[nn.Module], tokenizer: Any, texts: Iterable[str], batch_size: int, options: dict[str, Any]
) -> Iterator[Annotation]:
    count, source = 0, iter(texts)
    while batch := list(itertools.islice(source, batch_size)):
        annotation = annotate(batch, tokenizer, first=count, **options)
        for reader in readers:
            _check_ids(annotation, reader)
        yield annotation
        count += len(batch)
    if not count:
        raise AttnExtError("there are no texts to feed; the list is empty")


@torch.no_grad()
def read(model: nn.Module, input_ids: Tensor, attention_mask: Tensor) -> Any:
    """Run the part of ``model`` that reads tokens, without its head, over one batch; return what it returns."""
    reader = token_reader(model)
    device = next(reader.parameters()).device
    extra = {"use_cache": False} if causal_model(model) else {}
    return reader(input_ids=input_ids.to(device), attention_mask=attention_mask.to(device), **extra)


@contextlib.contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Inside, the models are in evaluation mode; afterwards every part is in its own mode again."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _check_ids(annotation: Annotation, reader: nn.Module) -> None:
    known = getattr(reader.get_input_embeddings(), "num_embeddings", None)
    largest = int(annotation.input_ids.max())
    if known is not None and largest >= known:
        raise AttnExtError(
            f"the tokenizer gives token id {largest}, the model knows 0 to {known - 1}; give the model's own tokenizer"
        )
