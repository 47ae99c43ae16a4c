"""Data of the head browser: for a few texts, every head's similarities in eight bits and the high pairs."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from hf_attn_ext.integration.base_models.evaluation import evaluating
from hf_attn_ext.integration.base_models.positions import max_tokens
from hf_attn_ext.probe.corpus.annotate import segment_starts, sentence_starts
from hf_attn_ext.probe.counting.similarity import high_counts, pair_values, pairs_of, select_high
from hf_attn_ext.probe.counting.texts import text_key
from hf_attn_ext.probe.options import (
    check_tokenizer,
    choose_heads,
    choose_layers,
    percents_of,
    readable_layers,
    special_ids,
)
from hf_attn_ext.probe.streaming.feeding import annotated_batches, head_outputs

# Bytes of the data in base64, all texts together; the report must stay under 5 MiB.
BUDGET = 3 * 2**20
# Fewer tokens show nothing, more cannot be read.
_LEAST_TOKENS, _MOST_TOKENS = 12, 160


@dataclasses.dataclass(frozen=True)
class BrowserText:
    """One text as the browser shows it.

    Attributes:
        tokens: n tokens that are not special, as text.
        sentences: n sentence numbers.
        shortened: whether the text was cut.
        values: (L, H, n(n-1)/2) uint8, pairs i < j row by row; with s = (value - 128) / 127, the similarity is s |s|
            times the scale.
        scales: (L, H) the greatest magnitude.
        full: (L, H) the magnitude of full colour, the 99th percentile.
        high: (L, H, k) uint16 indices of the high pairs.
    """

    tokens: list[str]
    sentences: list[int]
    shortened: bool
    values: np.ndarray
    scales: np.ndarray
    full: np.ndarray
    high: np.ndarray

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; arrays are base64, little-endian."""
        return {
            "tokens": self.tokens,
            "sentences": self.sentences,
            "shortened": self.shortened,
            "values": _base64(self.values),
            "scales": rounded(self.scales),
            "full": rounded(self.full),
            "high": _base64(self.high.astype("<u2")),
            "highCount": int(self.high.shape[-1]),
        }


def browse(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    layers: Sequence[int | str] | None = None,
    heads: Sequence[int] | None = None,
    *,
    percent: float = 1.0,
    max_length: int | None = None,
    language: str = "en",
    boundaries: Sequence[str] | None = None,
    projections: Sequence[str] | str | None = None,
    num_heads: int | None = None,
    seed: int = 0,
    budget: int = BUDGET,
) -> list[BrowserText]:
    """Run texts through the model and return what the browser shows, one entry per text of two tokens or more.

    Each text is cut to as many tokens as ``budget``, the bytes of all texts together, allows. The list is empty if the
    model has too many heads for it. Other arguments are those of :class:`.ContextSimilarityProbe` and its ``feed``.
    """
    (percent,) = percents_of([percent])
    texts = list(texts)
    chosen = choose_layers(readable_layers(model, projections, num_heads), layers)
    shown = choose_heads(chosen, heads)
    check_tokenizer(tokenizer)
    maps = len(chosen) * len(shown)
    while texts:
        limit = int((2 * budget * 3 / 4 / (len(texts) * maps)) ** 0.5)
        if limit >= _LEAST_TOKENS:
            break
        texts.pop()
    length = (
        min(each for each in (limit, max_length, _MOST_TOKENS, max_tokens(model)) if each is not None) if texts else 0
    )
    options: dict[str, Any] = {"truncation": True, "max_length": length, "language": language, "boundaries": boundaries}
    browsed = []
    for text in texts:
        known = next(annotated_batches([model], tokenizer, [text], 1, layers=chosen, **options))
        positions = known.positions(0, special_ids(tokenizer))
        if len(positions) > 1:
            with evaluating(model):
                of_layers = head_outputs(model, known, chosen)
            outputs = [of_layers[layer.index][0, shown][:, positions] for layer in chosen]
            ids = known.input_ids[0].tolist()
            whole_text = len(tokenizer(text, verbose=False)["input_ids"]) <= length
            browsed.append(
                BrowserText(
                    [_shown(tokenizer, ids[position]) for position in positions],
                    known.sentences[0, positions].tolist(),
                    not whole_text,
                    *_matrices(outputs, percent, text_key(known.input_ids[0].numpy()[positions], seed)),
                )
            )
    return browsed


def _matrices(outputs: list[Tensor], percent: float, key: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """``values``, ``scales``, ``full`` and ``high`` of :class:`BrowserText`."""
    pairs = pairs_of(outputs[0].shape[1])
    counts = high_counts(len(pairs[0]), (percent,))
    columns = []
    for of_layer in outputs:
        of_pairs, norms = pair_values(of_layer, pairs)
        high = np.sort(select_high(of_pairs, counts, norms, pairs, key), axis=1)
        magnitude = np.abs(of_pairs)
        scale = np.maximum(magnitude.max(1), np.finfo(magnitude.dtype).tiny)
        roots = np.sign(of_pairs) * np.sqrt(magnitude / scale[:, None])  # finer where most values are
        values = np.rint(128 + 127 * roots).astype(np.uint8)
        columns.append((values, scale, np.quantile(magnitude, 0.99, axis=1), high))
    values, scales, full, high = (np.stack(each) for each in zip(*columns, strict=True))
    return values, scales, full, high


def _shown(tokenizer: Any, token: int) -> str:
    text = tokenizer.decode([token])
    return text.strip() or repr(text)[1:-1] or str(tokenizer.convert_ids_to_tokens(token))


def choose_texts(
    texts: Sequence[str], count: int, language: str = "en", boundaries: Sequence[str] | None = None
) -> list[str]:
    """Return ``count`` texts spread evenly over ``texts``, of two sentences or more where such a text is near.

    Example:
        >>> choose_texts(["One.", "Two. Three.", "Four."], 1)
        ['Two. Three.']
    """

    def sentences(text: str) -> int:
        return len(segment_starts(text, boundaries) if boundaries else sentence_starts(text, language))

    chosen: dict[str, None] = {}
    for number in range(min(count, len(texts))):
        start = number * len(texts) // count
        near = [text for text in texts[start : start + 50] if text not in chosen] or list(texts[start : start + 1])
        chosen[next((text for text in near if sentences(text) > 1), near[0])] = None
    return list(chosen)


def rounded(values: np.ndarray) -> list[list[float | None]]:
    """Return the values (L, H) to four digits, None where they are not finite."""
    return [[float(f"{value:.4g}") if np.isfinite(value) else None for value in row] for row in values]


def _base64(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
