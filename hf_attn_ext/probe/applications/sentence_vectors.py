"""Vectors of a text's sentences: each head's mean output per sentence, and the attention to each sentence's end.

The context similarity (arXiv 2512.21956) of two sentences, averaged over all pairs of their tokens, is the dot product
of the sentences' mean outputs. No N x N matrix is needed, and sentences from different passes can be compared.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hf_attn_ext.errors import AttnExtError, short
from hf_attn_ext.integration.base_models.evaluation import evaluating
from hf_attn_ext.integration.base_models.positions import max_tokens
from hf_attn_ext.integration.base_models.readable_layers import Layer, capturable_layers, causal_model, token_reader
from hf_attn_ext.integration.capture.attention_maps import attention_map, check_followed, visible_keys
from hf_attn_ext.integration.capture.capture import capture
from hf_attn_ext.integration.capture.head_outputs import HeadOutputs
from hf_attn_ext.probe.corpus.annotate import annotate, padding_id, sentence_starts
from hf_attn_ext.probe.counting.attention_rows import LEAST_SUM
from hf_attn_ext.probe.options import (
    check_ids,
    choose_heads,
    choose_layers,
    require_tokenizer,
    token_ids,
    tokens_of,
    whole,
)
from hf_attn_ext.probe.streaming.feeding import read

SENTENCE = "sentence"
SEPARATORS = (".", "!", "?", ";", ":", ",")


@dataclasses.dataclass(frozen=True, eq=False)
class SentenceVectors:
    """Mean head outputs of n sentences, for L layers with H heads of size d; the result of :func:`sentence_vectors`.

    Attributes:
        spans: int64 (n, 2), the first character of each sentence and of the next one.
        tokens: int64 (n,), the number of tokens in each sentence.
        layers: the layer numbers.
        vectors: L arrays, float64 (H, n, d), the mean outputs of the heads in each sentence.
        focus: float64 (L, H, n), the attention to the separator at each sentence's end, as a multiple of equal
            attention; None with ``focus=False``.
    """

    spans: np.ndarray
    tokens: np.ndarray
    layers: tuple[int, ...]
    vectors: list[np.ndarray]
    focus: np.ndarray | None

    def of_layers(self, *layers: int) -> SentenceVectors:
        """Return the vectors of some of the layers only.

        Args:
            *layers: layer numbers, each one of :attr:`layers`.
        """
        indices = [self.layers.index(layer) for layer in layers]
        focus = None if self.focus is None else self.focus[indices]
        return dataclasses.replace(self, layers=layers, vectors=[self.vectors[i] for i in indices], focus=focus)


@dataclasses.dataclass(frozen=True)
class _Chunk:
    """A window of tokens: ``first`` to ``end`` are read in one pass, ``own`` to ``own_end`` are used from it."""

    first: int
    end: int
    own: int
    own_end: int


@torch.no_grad()
def sentence_vectors(
    model: nn.Module,
    tokenizer: Any,
    text: str,
    *,
    layers: Sequence[int | str] | int | str | None = None,
    heads: Sequence[int] | int | None = None,
    window: int | str = SENTENCE,
    focus: bool = True,
    separators: Sequence[str] = SEPARATORS,
    language: str = "en",
    batch_size: int = 8,
) -> SentenceVectors:
    """Run a model over a text of any length and return the mean output of each head in each sentence.

    Overlapping windows begin every half window. Each token is used from the window with the most context on both sides,
    or with the most preceding context in a causal model.

    The focus of a sentence's end is the attention to the last separator of the sentence, or to its last token if there
    is no separator. It is averaged over all tokens of the pass that can attend to it, with rows normalised without
    special tokens and multiplied by the number of visible keys, so that equal attention gives 1. The focus is ours;
    that the last layers attend to separators is from arXiv 2512.21956.

    Args:
        model: an encoder or a decoder that the probe can capture; it runs in evaluation mode.
        tokenizer: its fast tokenizer.
        text: two sentences or more.
        layers: layer numbers or patterns of module names; None for the last two layers.
        heads: head numbers; None for all heads.
        window: ``"sentence"`` to read every sentence by itself, or the size of the windows in tokens, special tokens
            included.
        focus: False to skip the attention weights.
        separators: the tokens that may end a sentence.
        language: the language code for the sentence splitter.
        batch_size: windows per pass.

    Returns:
        The sentences' spans, mean outputs and focus.

    Raises:
        AttnExtError: ``tokenizer`` is missing; the text is blank or has one sentence; ``language`` is not a language
            code; the window is too long for the model; the model cannot be captured, or its outputs are not finite.

    Example:
        >>> vectors = sentence_vectors(model, tokenizer, "One. Two.", layers=[5])  # doctest: +SKIP
        >>> vectors.vectors[0].shape  # (heads, sentences, head size)  # doctest: +SKIP
        (12, 2, 32)

    Source:
        Ours; context similarity is from arXiv 2512.21956.
    """
    chosen = choose_layers(capturable_layers(model), layers)
    chosen = chosen[-2:] if layers is None else chosen
    chosen_heads = choose_heads(chosen, heads)
    batch_size = whole(batch_size, 1, "batch_size")
    require_tokenizer(tokenizer, "sentence_vectors")
    if not isinstance(text, str):
        raise AttnExtError(f"text must be one string, got {short(text)}")
    known = annotate([text], tokenizer, language=language)
    check_ids(known.input_ids, token_reader(model))
    positions = np.flatnonzero(~known.special[0])
    if not len(positions):
        raise AttnExtError(f"the tokenizer makes no tokens of {short(text)}; pass a text with words")
    first, end = int(positions[0]), int(positions[-1]) + 1
    before, ids, behind = known.input_ids[0].tensor_split([first, end])
    # a sentence without tokens (signs that the tokenizer drops) belongs to the sentence before it
    numbers, sentences = np.unique(known.sentences[0, first:end], return_inverse=True)
    starts = np.array(sentence_starts(text, language))[numbers]
    starts[0] = 0
    count = len(starts)
    if count < 2:
        raise AttnExtError(f"the text has one sentence, got {short(text)}; pass a text with two sentences or more")
    room = _room(model, window, len(before) + len(behind))
    causal = causal_model(model)
    bounds = np.searchsorted(sentences, np.arange(count + 1))
    parts = list(itertools.pairwise(bounds.tolist())) if window == SENTENCE else [(0, len(ids))]
    chunks = [chunk for start, stop in parts for chunk in _chunks(start, stop, room, causal)]
    chunks.sort(key=lambda chunk: chunk.end - chunk.first)
    marks = np.isin(ids.numpy(), list(token_ids(tokenizer, tokens_of(separators))))
    sums = _SentenceSums(
        chosen, chosen_heads, torch.from_numpy(sentences), count, _ends(bounds, marks), len(before), focus
    )
    with evaluating(model), capture(model, sums.on_layer, layers=chosen):
        for start in range(0, len(chunks), batch_size):
            sums.chunks = chunks[start : start + batch_size]
            rows = [torch.cat([before, ids[chunk.first : chunk.end], behind]) for chunk in sums.chunks]
            batch = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding_id(tokenizer))
            lengths = torch.tensor([len(row) for row in rows])
            mask = (torch.arange(batch.shape[1]) < lengths[:, None]).long()
            read(model, batch, mask)
    tokens = np.diff(bounds)
    vectors = [(total / torch.from_numpy(tokens)[:, None]).numpy() for total in sums.outputs.values()]
    if not all(np.isfinite(of_layer).all() for of_layer in vectors):
        raise AttnExtError(
            "a head's outputs are not finite, possibly by overflow in half precision; load the model in float32"
        )
    spans = np.stack([starts, np.append(starts[1:], len(text))], axis=1)
    focused = np.stack([of_layer.numpy() for of_layer in sums.focus.values()]) if focus else None
    return SentenceVectors(spans, tokens, tuple(layer.index for layer in chosen), vectors, focused)


class _SentenceSums:
    """Sums of head outputs per sentence, and the focus, by layer number.

    Each token of the text has a sentence index in ``sentences``, each sentence the position of its last separator in
    ``ends``; ``offset`` is the number of special tokens before the text in each pass.
    """

    def __init__(
        self,
        layers: list[Layer],
        heads: list[int],
        sentences: Tensor,
        count: int,
        ends: np.ndarray,
        offset: int,
        focus: bool,
    ) -> None:
        self.heads, self.sentences, self.count = heads, sentences, count
        self.ends, self.offset = ends, offset
        self.outputs: dict[int, Tensor] = {layer.index: torch.empty(0) for layer in layers}
        shape = (len(heads), count)
        self.focus = {layer.index: torch.zeros(shape, dtype=torch.float64) for layer in layers} if focus else {}
        self.chunks: list[_Chunk] = []  # of the current pass, one per row

    def on_layer(self, call: HeadOutputs) -> None:
        """Add one layer's outputs in one pass."""
        call.check_single(self)
        index = call.layer.index
        if not len(self.outputs[index]):
            shape = (len(self.heads), self.count, call.output.shape[-1])
            self.outputs[index] = torch.zeros(shape, dtype=torch.float64)
        for row, chunk in enumerate(self.chunks):
            own = slice(chunk.own - chunk.first + self.offset, chunk.own_end - chunk.first + self.offset)
            outputs = call.output[row, self.heads, own].cpu().to(torch.float64)
            self.outputs[index].index_add_(1, self.sentences[chunk.own : chunk.own_end], outputs)
            if self.focus:
                self._add_focus(call, row, chunk)

    def _add_focus(self, call: HeadOutputs, row: int, chunk: _Chunk) -> None:
        check_followed(call)
        owned = np.flatnonzero((self.ends >= chunk.own) & (self.ends < chunk.own_end))
        if not len(owned):
            return
        tokens = slice(self.offset, self.offset + chunk.end - chunk.first)
        attention = attention_map(call, row, self.heads)[:, tokens, tokens].cpu().to(torch.float64)
        visible = visible_keys(call, row).cpu()
        visible = (visible if len(visible) == 1 else visible[self.heads])[:, tokens, tokens]
        total = attention.sum(-1)
        # the weights of a signed kernel may cancel
        counted = total > (LEAST_SUM * attention.abs().sum(-1)).clamp(min=1e-30)
        lift = attention * (visible.sum(-1) / torch.where(counted, total, 1.0))[..., None]
        ends = torch.from_numpy(self.ends[owned] - chunk.first)
        rows = (visible & counted[..., None])[:, :, ends]
        mean = (lift[:, :, ends] * rows).sum(1) / rows.sum(1).clamp(min=1)
        self.focus[call.layer.index][:, owned] = mean


def _room(model: nn.Module, window: int | str, special: int) -> int:
    """Return the maximum number of the text's tokens in a pass."""
    limit = max_tokens(model)
    if window == SENTENCE:
        return (2**31 if limit is None else limit) - special
    if isinstance(window, str):
        raise AttnExtError(f"window must be {SENTENCE!r} or a number of tokens, got {short(window)}")
    window = whole(window, special + 2, "window")
    if limit is not None and window > limit:
        raise AttnExtError(f"window must be at most {limit} tokens for this model, got {window}")
    return window - special


def _chunks(first: int, end: int, room: int, causal: bool) -> list[_Chunk]:
    """Divide the tokens from ``first`` to ``end`` into overlapping windows of ``room`` tokens; the last one is full."""
    if end - first <= room:
        return [_Chunk(first, end, first, end)]
    starts = [*range(first, end - room, max(1, room // 2)), end - room]
    ends = [start + room for start in starts]
    if causal:
        cuts = ends[:-1]
    else:
        cuts = [(start + before + 1) // 2 for start, before in zip(starts[1:], ends[:-1], strict=True)]
    owned = zip([first, *cuts], [*cuts, end], strict=True)
    return [_Chunk(start, stop, *own) for start, stop, own in zip(starts, ends, owned, strict=True)]


def _ends(bounds: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """Return the position of each sentence's last separator, or of its last token, (n,)."""
    ends = bounds[1:] - 1
    for number, (first, end) in enumerate(itertools.pairwise(bounds)):
        separators = np.flatnonzero(marks[first:end])
        ends[number] = first + separators[-1] if len(separators) else ends[number]
    return ends
