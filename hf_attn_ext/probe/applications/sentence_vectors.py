"""A text's sentences as a head sees them: the mean of its outputs in each, and how much attention each end draws.

The mean over all token pairs of two sentences of their context similarity (2512.21956) is the dot product of the
sentences' mean outputs: no N x N matrix is needed, and tokens that were read in different passes can be compared.
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
    check_tokenizer,
    choose_heads,
    choose_layers,
    token_ids,
    tokens_of,
    whole,
)
from hf_attn_ext.probe.streaming.feeding import read

SENTENCE = "sentence"
SEPARATORS = (".", "!", "?", ";", ":", ",")


@dataclasses.dataclass(frozen=True, eq=False)
class SentenceVectors:
    """What :func:`sentence_vectors` read: n sentences, L layers, H heads of size d.

    Attributes:
        spans: int64 (n, 2), where each sentence begins in the text and where the next one does.
        tokens: int64 (n,), how many tokens each has.
        layers: the layers' numbers.
        vectors: L arrays, float64 (H, n, d): mean outputs of the heads in each sentence.
        focus: float64 (L, H, n), the attention that the separator at each sentence's end draws, as a multiple of what
            equal attention would give it; None where it was not asked for.
    """

    spans: np.ndarray
    tokens: np.ndarray
    layers: tuple[int, ...]
    vectors: list[np.ndarray]
    focus: np.ndarray | None

    def of_layers(self, *layers: int) -> SentenceVectors:
        """The same with some of its layers only."""
        places = [self.layers.index(layer) for layer in layers]
        focus = None if self.focus is None else self.focus[places]
        return dataclasses.replace(self, layers=layers, vectors=[self.vectors[at] for at in places], focus=focus)


@dataclasses.dataclass(frozen=True)
class _Chunk:
    """Tokens ``first`` to ``end`` are read in one pass; those from ``own`` to ``own_end`` are taken from it."""

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
    """Read a text of any length, in evaluation mode, and keep what its sentences are to the heads.

    Overlapping windows begin every half window. A token is taken from the window that has the most of the text on both
    sides of it; in a model whose tokens see only what is before them, from the window that has the most before it.

    The focus of a sentence's end (ours; that the last layers attend to separators is the source's) is the attention on
    the last separator in the sentence, on its last token if it has none: over all tokens of the pass that see it, rows
    normalised again without special tokens, times the number of keys that each sees, averaged. 1 is equal attention.

    Args:
        model, tokenizer: as of :class:`.probe.ContextSimilarityProbe`.
        text: two sentences or more.
        layers: numbers from 0 or patterns of names; None is the last two.
        heads: numbers from 0; None is all.
        window: ``"sentence"``, each sentence is read by itself; or the tokens of a window, special ones included.
        focus: False does without attention maps.
        separators: tokens that may end a sentence.
        language: for the sentence splitter.
        batch_size: windows a pass.

    Raises:
        AttnExtError: no tokenizer, a blank text, one sentence only, no code of a language, a window that is too long
            for the model, a model that cannot be captured.

    Example:
        >>> read = sentence_vectors(model, tokenizer, "One. Two.", layers=[5])  # doctest: +SKIP
        >>> read.vectors[0].shape  # heads, sentences, head size
        (12, 2, 32)
    """
    chosen = choose_layers(capturable_layers(model), layers)
    chosen = chosen[-2:] if layers is None else chosen
    heads = choose_heads(chosen, heads)
    batch_size = whole(batch_size, 1, "batch_size")
    if tokenizer is None:
        raise AttnExtError("sentences are found with the model's tokenizer, which is missing; give tokenizer")
    check_tokenizer(tokenizer)
    if not isinstance(text, str):
        raise AttnExtError(f"text must be one string, got {short(text)}")
    known = annotate([text], tokenizer, language=language)
    check_ids(known.input_ids, token_reader(model))
    places = np.flatnonzero(~known.special[0])
    if not len(places):
        raise AttnExtError(f"the tokenizer makes no tokens of {short(text)}; there is nothing to segment")
    before, behind = known.input_ids[0, : places[0]], known.input_ids[0, places[-1] + 1 :]
    ids = known.input_ids[0, places[0] : places[-1] + 1]
    # a sentence without any token of its own (signs that the tokenizer drops) belongs to the one before it
    numbers, sentences = np.unique(known.sentences[0, places[0] : places[-1] + 1], return_inverse=True)
    starts = np.array(sentence_starts(text, language))[numbers]
    starts[0] = 0
    count = len(starts)
    if count < 2:
        raise AttnExtError(f"the text has one sentence, which cannot be divided: {short(text)}")
    room = _room(model, window, len(before) + len(behind))
    causal = causal_model(model)
    bounds = np.searchsorted(sentences, np.arange(count + 1))
    parts = list(itertools.pairwise(bounds)) if window == SENTENCE else [(0, len(ids))]
    chunks = [chunk for first, end in parts for chunk in _chunks(int(first), int(end), room, causal)]
    chunks.sort(key=lambda chunk: chunk.end - chunk.first)
    marks = np.isin(ids.numpy(), list(token_ids(tokenizer, tokens_of(separators))))
    kept = _Kept(chosen, heads, torch.from_numpy(sentences), count, _ends(bounds, marks), len(before), focus)
    with evaluating(model), capture(model, kept.on_layer, layers=chosen):
        for at in range(0, len(chunks), batch_size):
            kept.chunks = chunks[at : at + batch_size]
            rows = [torch.cat([before, ids[chunk.first : chunk.end], behind]) for chunk in kept.chunks]
            batch = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=padding_id(tokenizer))
            lengths = torch.tensor([len(row) for row in rows])
            mask = (torch.arange(batch.shape[1]) < lengths[:, None]).long()
            read(model, batch, mask)
    tokens = np.diff(bounds)
    vectors = [(sums / torch.from_numpy(tokens)[:, None]).numpy() for sums in kept.sums.values()]
    if not all(np.isfinite(each).all() for each in vectors):
        raise AttnExtError(
            "a head's outputs are not finite (overflow of half precision?): their similarities mean nothing; load the "
            "model in float32"
        )
    spans = np.stack([starts, np.append(starts[1:], len(text))], axis=1)
    focused = np.stack([each.numpy() for each in kept.focus.values()]) if focus else None
    return SentenceVectors(spans, tokens, tuple(layer.index for layer in chosen), vectors, focused)


class _Kept:
    """What the passes have given so far."""

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
        self.sums: dict[int, Tensor] = {layer.index: torch.empty(0) for layer in layers}
        shape = (len(heads), count)
        self.focus = {layer.index: torch.zeros(shape, dtype=torch.float64) for layer in layers} if focus else {}
        self.chunks: list[_Chunk] = []

    def on_layer(self, call: HeadOutputs) -> None:
        call.check_single(self)
        index = call.layer.index
        if not len(self.sums[index]):
            shape = (len(self.heads), self.count, call.output.shape[-1])
            self.sums[index] = torch.zeros(shape, dtype=torch.float64)
        for row, chunk in enumerate(self.chunks):
            own = slice(chunk.own - chunk.first + self.offset, chunk.own_end - chunk.first + self.offset)
            outputs = call.output[row, self.heads, own].cpu().to(torch.float64)
            self.sums[index].index_add_(1, self.sentences[chunk.own : chunk.own_end], outputs)
            if self.focus:
                self._focus(call, row, chunk)

    def _focus(self, call: HeadOutputs, row: int, chunk: _Chunk) -> None:
        check_followed(call)
        owned = np.flatnonzero((self.ends >= chunk.own) & (self.ends < chunk.own_end))
        if not len(owned):
            return
        tokens = slice(self.offset, self.offset + chunk.end - chunk.first)
        attention = attention_map(call, row, self.heads)[:, tokens, tokens].cpu().to(torch.float64)
        seen = visible_keys(call, row).cpu()
        seen = (seen if len(seen) == 1 else seen[self.heads])[:, tokens, tokens]
        total = attention.sum(-1)
        counted = total > (LEAST_SUM * attention.abs().sum(-1)).clamp(
            min=1e-30
        )  # weights of a signed kernel may cancel
        lift = attention * (seen.sum(-1) / torch.where(counted, total, 1.0))[..., None]
        ends = torch.from_numpy(self.ends[owned] - chunk.first)
        rows = (seen & counted[..., None])[:, :, ends]
        mean = (lift[:, :, ends] * rows).sum(1) / rows.sum(1).clamp(min=1)
        self.focus[call.layer.index][:, owned] = mean


def _room(model: nn.Module, window: int | str, special: int) -> int:
    """How many tokens of the text go into a pass."""
    limit = max_tokens(model)
    if window == SENTENCE:
        return (2**31 if limit is None else limit) - special
    if isinstance(window, str):
        raise AttnExtError(f"window must be {SENTENCE!r} or a number of tokens, got {short(window)}")
    window = whole(window, special + 2, "window")
    if limit is not None and window > limit:
        raise AttnExtError(f"window is {window} tokens, the model takes {limit}; give at most that, or {SENTENCE!r}")
    return window - special


def _chunks(first: int, end: int, room: int, causal: bool) -> list[_Chunk]:
    """Windows of ``room`` tokens over the tokens from ``first`` to ``end``, the last one full."""
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
    """(n,) the place of each sentence's last separator, or of its last token."""
    ends = bounds[1:] - 1
    for number, (first, end) in enumerate(itertools.pairwise(bounds)):
        found = np.flatnonzero(marks[first:end])
        ends[number] = first + found[-1] if len(found) else ends[number]
    return ends
