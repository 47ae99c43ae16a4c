"""Compare two models head by head on the same texts: does each head keep its context similarity?

Context similarity is from arXiv 2512.21956; the comparison of two models, its score and its chance levels are ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy.stats import rankdata
from torch import Tensor, nn

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.evaluation import evaluating
from hf_attn_ext.integration.base_models.readable_layers import Layer, capturable_layers, token_reader
from hf_attn_ext.probe.corpus.annotate import Annotation
from hf_attn_ext.probe.counting.high_pairs import in_parts
from hf_attn_ext.probe.counting.similarity import TIE, pair_values, select_high
from hf_attn_ext.probe.counting.sums import Sums, drawn_as_one, interval, ratio
from hf_attn_ext.probe.counting.texts import Text, make_text
from hf_attn_ext.probe.options import percents_of, require_tokenizer, special_ids, vocabulary_size, whole
from hf_attn_ext.probe.streaming.feeding import annotated_batches, head_outputs

from .comparison import HeadComparison


def compare(
    teacher: nn.Module,
    converted: nn.Module,
    tokenizer: Any,
    texts: Iterable[str],
    *,
    percent: float = 5,
    batch_size: int = 8,
    truncation: bool = False,
    max_length: int | None = None,
    documents: Iterable[str] | None = None,
    bootstrap: int = 64,
    seed: int = 0,
) -> HeadComparison:
    """Measure how much of each head's function a converted, or otherwise changed, model keeps.

    Both models read the same texts, each on its own hidden states, so errors of earlier layers count. For each text and
    head, the high pairs of context similarity in one model are compared with those in the other, and all pairs are
    compared by rank. The score is the overlap beyond what equal distances give, ``(overlap - m) / (1 - m)``. Here m is
    the expected overlap if the converted head's pairs were drawn at the same distances: a score of 1 means the same
    pairs, 0 means chance. The computation is streaming, with constant memory.

    Args:
        teacher, converted: Transformers models with the same layers, heads and vocabulary, converted or not.
        tokenizer: the fast tokenizer of both models.
        texts: any iterable of strings; it is read lazily.
        percent: the percentage of pairs in each matrix that are high.
        batch_size, truncation, max_length, documents: see :meth:`.ContextSimilarityProbe.feed`.
        bootstrap: the number of bootstrap replicates.
        seed: the seed of the bootstrap and of the order among equal similarities.

    Returns:
        The scores, overlaps, rank correlations and intervals of all heads.

    Raises:
        AttnExtError: the two are the same model or share layers; they differ in layers, heads or vocabulary, or cannot
            be captured; ``tokenizer`` is missing; no text has two tokens, or a model cannot read one.

    Example:
        >>> comparison = compare(teacher, converted, tokenizer, texts)  # doctest: +SKIP
        >>> comparison.score.shape, comparison.heads_with("lost")  # doctest: +SKIP
        ((6, 12), [])

    Source:
        Ours.
    """
    layers = _same_layers(teacher, converted)
    require_tokenizer(tokenizer, "compare")
    (percent,) = percents_of([percent])
    settings: dict[str, Any] = {"percent": percent, "bootstrap": whole(bootstrap, 2, "bootstrap")}
    settings["seed"] = whole(seed, 0, "seed")
    sums = Sums(settings["bootstrap"])
    counts = dict.fromkeys(("texts", "skipped", "tokens", "pairs"), 0)
    special = special_ids(tokenizer)
    models = [teacher, converted]
    batches = annotated_batches(
        models, tokenizer, texts, batch_size, truncation=truncation, max_length=max_length, documents=documents
    )
    with evaluating(*models):
        for annotation in batches:
            outputs = [
                head_outputs(model, annotation, of_model) for model, of_model in zip(models, layers, strict=True)
            ]
            for row in range(len(annotation.input_ids)):
                text = _text_of(annotation, special, row, settings)
                if text is None:
                    counts["skipped"] += 1
                else:
                    _add_text(sums, counts, text, outputs)
    if not counts["texts"]:
        raise AttnExtError(f"{counts['skipped']} texts, each of one token: there are no pairs to compare")
    return _summed(sums, [layer.index for layer in layers[0]], layers[0][0].num_heads, counts, settings)


def _same_layers(teacher: nn.Module, converted: nn.Module) -> tuple[list[Layer], list[Layer]]:
    """Return the layers of both models."""
    layers = capturable_layers(teacher), capturable_layers(converted)
    if teacher is converted or {id(layer.module) for layer in layers[0]} & {id(layer.module) for layer in layers[1]}:
        raise AttnExtError(
            "the teacher and the converted model are one model, or share layers, because convert works in place; pass "
            "a copy made before the conversion (copy.deepcopy(model)), or open the teacher again"
        )
    if len(layers[0]) != len(layers[1]):
        raise AttnExtError(
            f"the teacher has {len(layers[0])} layers, the converted model {len(layers[1])}; compare models with the "
            "same layers"
        )
    for one, other in zip(*layers, strict=True):
        if one.num_heads != other.num_heads:
            raise AttnExtError(
                f"layer {one.index} has {one.num_heads} heads in the teacher and {other.num_heads} in the converted "
                "model; compare models with the same heads"
            )
    if len({layer.num_heads for layer in layers[0]}) > 1:
        numbers = ", ".join(str(layer.num_heads) for layer in layers[0])
        raise AttnExtError(f"compare needs the same number of heads in all layers, got {numbers}")
    sizes = [vocabulary_size(token_reader(model)) for model in (teacher, converted)]
    if sizes[0] != sizes[1]:
        raise AttnExtError(
            f"the teacher knows {sizes[0]} tokens, the converted model {sizes[1]}; compare models with one tokenizer"
        )
    return layers


def _text_of(annotation: Annotation, special: set[int], row: int, settings: dict[str, Any]) -> Text | None:
    """Return row ``row``'s tokens that are neither padding nor special, or None if they make no pair."""
    positions = annotation.positions(row, special)
    if len(positions) < 2:
        return None
    real = np.flatnonzero(annotation.attention_mask[row].numpy())
    document = None if annotation.documents is None else annotation.documents[row]
    return make_text(
        row,
        annotation.input_ids[row].numpy()[positions],
        positions,
        np.setdiff1d(real, positions),
        None,
        None,
        (settings["percent"],),
        settings["bootstrap"],
        1,
        settings["seed"],
        document,
    )


def _add_text(sums: Sums, counts: dict[str, int], text: Text, outputs: list[dict[int, Tensor]]) -> None:
    """Add one text to the sums and counts; ``outputs`` holds both models' (B, H, N, d) by layer number."""
    weights, pairs, high = text.weights[None], len(text.pairs[0]), text.counts[0]
    for index in outputs[0]:
        teacher, converted = (of_model[index][text.row][:, text.positions] for of_model in outputs)
        sums.add(str(index), weights, _compared(teacher, converted, text)[None])
    sums.add("pairs", weights, np.array([[high, high**2 / pairs]]))
    sums.add("texts", weights, np.ones((1, 1)))
    for name, number in (("texts", 1), ("tokens", text.length), ("pairs", pairs)):
        counts[name] += number


# The first axis of the sums over texts, (5, H, H) by the teacher's head and the converted head: common high pairs,
# their expectation at the same distances, rank correlation, its expectation at the same distances, and the number of
# texts in which both heads have ranks.
_OVERLAP, _OVERLAP_MATCHED, _RANKS, _RANKS_MATCHED, _RANKED = range(5)


def _compared(teacher: Tensor, converted: Tensor, text: Text) -> np.ndarray:
    """Return the sums (5, H, H) of one text and layer, from the heads' outputs (H, n, d) in both models."""
    high, ranks, ranked = zip(*(_high_and_ranks(outputs, text) for outputs in (teacher, converted)), strict=True)
    pairs_by_distance = text.length - np.arange(1, text.length)
    sums = np.zeros((5, len(teacher), len(converted)))
    for row, (one, other) in ((_OVERLAP, high), (_RANKS, ranks)):
        sums[row] = one @ other.T
        sums[row + 1] = (_by_distance(one, text) / pairs_by_distance) @ _by_distance(other, text).T
    sums[_RANKED] = np.outer(*ranked)
    return sums


def _high_and_ranks(outputs: Tensor, text: Text) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return, by head and pair, which pairs are high (0 or 1) and their ranks as unit vectors; by head, whether ranked.

    A head whose similarities are all equal has high pairs by the order of ties alone. It has no ranks, so zeros.
    """
    shape = len(outputs), len(text.pairs[0])
    high, ranks, ranked = np.zeros(shape, dtype=np.float32), np.zeros(shape), np.zeros(len(outputs), dtype=bool)
    for part in in_parts(len(outputs), text.length):
        values, norms = pair_values(outputs[part], text.pairs)
        np.put_along_axis(high[part], select_high(values, text.counts, norms, text.pairs, text.key), 1.0, axis=1)
        ranked[part] = np.ptp(values, axis=1) > 2 * TIE * np.square(norms).mean(1)
        centred = rankdata(values, axis=1) - (shape[1] + 1) / 2
        length = np.linalg.norm(centred, axis=1)
        ranks[part] = np.where(ranked[part], 1 / np.where(ranked[part], length, 1.0), 0.0)[:, None] * centred
    return high, ranks, ranked


def _by_distance(values: np.ndarray, text: Text) -> np.ndarray:
    """Return the sums (H, n - 1) of ``values`` (H, pairs) over the pairs at each distance, from 1 on."""
    gaps = text.pairs[1] - text.pairs[0]
    order = np.argsort(gaps, kind="stable")
    starts = np.searchsorted(gaps[order], np.arange(1, text.length))
    return np.add.reduceat(values[:, order], starts, axis=1, dtype=np.float64)


def _summed(
    sums: Sums, layers: list[int], heads: int, counts: dict[str, int], settings: dict[str, Any]
) -> HeadComparison:
    """Turn sums over texts and their bootstrap replicates into shares, scores and intervals."""
    by_layer = np.stack([sums[str(layer)] for layer in layers], 1)  # (R + 1, L, 5, H, H)
    pairs, by_count = np.moveaxis(sums["pairs"], -1, 0)[:, :, None, None]  # (R + 1, 1, 1)
    overlaps = ratio(by_layer[:, :, _OVERLAP], pairs[..., None])
    own = np.arange(heads)
    overlap, matched = overlaps[..., own, own], ratio(by_layer[:, :, _OVERLAP_MATCHED], pairs[..., None])[..., own, own]
    score = ratio(overlap - matched, 1 - matched)
    correlation, correlation_matched = (
        ratio(by_layer[:, :, row], by_layer[:, :, _RANKED])[..., own, own] for row in (_RANKS, _RANKS_MATCHED)
    )
    others = np.where(np.eye(heads, dtype=bool), -np.inf, overlaps)
    best_other = others[0].argmax(1)
    margin = overlap - others.max(2) if heads > 1 else np.full(overlap.shape, np.nan)
    drawn_together = drawn_as_one(sums["texts"][:, 0])

    def bounds(values: np.ndarray) -> np.ndarray:
        both = interval(values[1:], values[0])
        return np.full(both.shape, np.nan) if drawn_together else both

    return HeadComparison(
        layers=layers,
        heads=list(range(heads)),
        score=score[0],
        score_interval=bounds(score),
        overlap=overlap[0],
        overlap_interval=bounds(overlap),
        overlap_matched=matched[0],
        overlap_by_count=float(by_count.ravel()[0] / pairs.ravel()[0]),
        correlation=correlation[0],
        correlation_interval=bounds(correlation),
        correlation_matched=correlation_matched[0],
        overlaps=overlaps[0],
        best_other=best_other,
        margin=margin[0],
        margin_interval=bounds(margin),
        counts=counts,
        settings=settings,
    )
