"""Two models on the same texts, head by head: is a head's context similarity still what it was?

Context similarity is 2512.21956's; comparing two models by it, the score and its chance levels are ours.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy.stats import rankdata
from torch import Tensor, nn

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.evaluation import evaluating
from hf_attn_ext.integration.base_models.readable_layers import Layer, capturable_layers, token_reader
from hf_attn_ext.integration.capture.capture import capture
from hf_attn_ext.integration.capture.head_outputs import HeadOutputs
from hf_attn_ext.probe.corpus.annotate import Annotation
from hf_attn_ext.probe.counting.high_pairs import in_parts
from hf_attn_ext.probe.counting.similarity import TIE, pair_values, select_high
from hf_attn_ext.probe.counting.sums import Sums, drawn_as_one, interval, ratio
from hf_attn_ext.probe.counting.texts import Text, make_text
from hf_attn_ext.probe.options import check_tokenizer, percents_of, special_ids, whole
from hf_attn_ext.probe.streaming.feeding import annotated_batches, read

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
    """Say of every head how far its function was kept: by conversion, or by anything else that was done to the model.

    Both models read the same texts, each on its own hidden states, so errors of earlier layers count. Of each text
    and head, the high pairs of context similarity of one model are compared with those of the other, and all pairs by
    rank. The score is what is kept of the overlap beyond nearness, ``(overlap - m) / (1 - m)``, with m the overlap
    that the converted head's pairs would have if they were drawn at the same distances: 1 is the same pairs, 0 what
    distances alone give. Streamed: memory does not depend on the corpus.

    Args:
        teacher, converted: models of transformers with the same layers, heads and vocabulary, stock or converted.
        tokenizer: the fast tokenizer of both.
        texts: strings; any iterable, read as it goes.
        percent: which pairs are high, the top percentage of each matrix.
        batch_size: texts a pass.
        truncation: cut texts to ``max_length`` tokens; otherwise a longer one is an error.
        max_length: the longest text in tokens, special ones included; None is what the models take.
        documents: the name of each text's document, which the bootstrap then draws; see
            :meth:`.ContextSimilarityProbe.feed`.
        bootstrap: replicates of the bootstrap over texts, or over the documents that they are of.
        seed: of the bootstrap, and of how ties are broken.

    Raises:
        AttnExtError: the two are one model or share layers, differ in layers, heads or vocabulary, or cannot be
            captured; no tokenizer; no texts, none of two tokens or more, or one that a model cannot read.

    Example:
        >>> found = compare(teacher, converted, tokenizer, texts)  # doctest: +SKIP
        >>> found.score.shape, found.heads_with("lost")  # doctest: +SKIP
        ((6, 12), [])
    """
    layers = _same_layers(teacher, converted)
    heads = layers[0][0].num_heads
    if tokenizer is None:
        raise AttnExtError("compare needs the models' tokenizer, to know special tokens and to read the texts")
    check_tokenizer(tokenizer)
    options = _Options(percents_of([percent]), whole(bootstrap, 2, "bootstrap"), whole(seed, 0, "seed"))
    sums = Sums(options.replicates)
    counts = dict.fromkeys(("texts", "skipped", "tokens", "pairs"), 0)
    special = np.array(sorted(special_ids(tokenizer)), dtype=np.int64)
    both = [teacher, converted]
    how = {"truncation": truncation, "max_length": max_length, "documents": documents}
    batches = annotated_batches(both, tokenizer, texts, batch_size, **how)
    with evaluating(*both):
        for annotation in batches:
            outputs = [
                _outputs(model, annotation, its) for model, its in zip(both, zip(*layers, strict=True), strict=True)
            ]
            for row in range(len(annotation.input_ids)):
                text = _text_of(annotation, special, row, options)
                if text is None:
                    counts["skipped"] += 1
                    continue
                weights, pairs, high = text.weights[None], len(text.pairs[0]), text.counts[0]
                for index in outputs[0]:
                    theirs = (_heads_of(side[index], text) for side in outputs)
                    sums.add(str(index), weights, _compared(*theirs, text)[None])
                sums.add("pairs", weights, np.array([[high, high**2 / pairs]]))
                sums.add("texts", weights, np.ones((1, 1)))
                for name, number in (("texts", 1), ("tokens", text.length), ("pairs", pairs)):
                    counts[name] += number
    if not counts["texts"]:
        raise AttnExtError(f"{counts['skipped']} texts, each of one token: there are no pairs to compare")
    settings = {"percent": options.percents[0], "bootstrap": options.replicates, "seed": options.seed}
    return _summed(sums, [pair[0].index for pair in layers], heads, counts, settings)


@dataclasses.dataclass(frozen=True)
class _Options:
    percents: tuple[float, ...]
    replicates: int
    seed: int


def _same_layers(teacher: nn.Module, converted: nn.Module) -> list[tuple[Layer, Layer]]:
    """The layers of both models, one by one.

    Raises:
        AttnExtError: they are the same modules, or differ in number, heads or vocabulary.
    """
    pairs = capturable_layers(teacher), capturable_layers(converted)
    if teacher is converted or {id(one.module) for one in pairs[0]} & {id(one.module) for one in pairs[1]}:
        raise AttnExtError(
            "the teacher and the converted model are one model, or share layers: convert changes a model in place; "
            "give compare a copy made before (copy.deepcopy(model)), or open the teacher again"
        )
    if len(pairs[0]) != len(pairs[1]):
        raise AttnExtError(f"the teacher has {len(pairs[0])} layers, the converted model {len(pairs[1])}")
    for one, other in zip(*pairs, strict=True):
        if one.num_heads != other.num_heads:
            raise AttnExtError(
                f"layer {one.index} has {one.num_heads} heads in the teacher and {other.num_heads} in the converted "
                "model; compare models of the same heads"
            )
    if len({one.num_heads for one in pairs[0]}) > 1:
        there = ", ".join(str(one.num_heads) for one in pairs[0])
        raise AttnExtError(f"the layers differ in their number of heads ({there}), which compare does not do")
    sizes = [
        getattr(token_reader(model).get_input_embeddings(), "num_embeddings", None) for model in (teacher, converted)
    ]
    if sizes[0] != sizes[1]:
        raise AttnExtError(
            f"the teacher knows {sizes[0]} tokens, the converted model {sizes[1]}: models of different tokenizers have "
            "no pairs in common"
        )
    return list(zip(*pairs, strict=True))


def _text_of(annotation: Annotation, special: np.ndarray, row: int, options: _Options) -> Text | None:
    """Row ``row``'s tokens that are neither padding nor special; None where they make no pair."""
    ids, mask = annotation.input_ids[row].numpy(), annotation.attention_mask[row].numpy().astype(bool)
    hidden = annotation.special[row] | np.isin(ids, special)
    places = np.flatnonzero(mask & ~hidden)
    if len(places) < 2:
        return None
    apart = np.flatnonzero(mask & hidden)
    document = None if annotation.documents is None else annotation.documents[row]
    drawn = options.percents, options.replicates, 1, options.seed, document
    return make_text(row, ids[places], places, apart, None, None, *drawn)


def _outputs(model: nn.Module, annotation: Annotation, layers: list[Layer]) -> dict[int, Tensor]:
    """One pass: the heads' outputs (B, H, N, d) of each layer."""
    found: dict[int, Tensor] = {}

    def keep(call: HeadOutputs) -> None:
        if call.layer.index in found:
            raise AttnExtError(
                f"{call.layer.name} ran more than once in a pass: layers that share weights are not told apart"
            )
        found[call.layer.index] = call.output.cpu()

    with capture(model, keep, layers=layers):
        read(model, annotation.input_ids, annotation.attention_mask)
    return found


# Sums over texts, (5, H, H) by teacher's head and converted head: common high pairs, what they would be at the same
# distances, rank correlation, the same at the same distances, and in how many texts there are ranks.
_OVERLAP, _OVERLAP_MATCHED, _RANKS, _RANKS_MATCHED, _RANKED = range(5)


def _compared(teacher: Tensor, converted: Tensor, text: Text) -> np.ndarray:
    """One text, one layer: the sums (5, H, H) of heads' outputs (H, n, d) of either model."""
    high, ranks, known = zip(*(_high_and_ranks(side, text) for side in (teacher, converted)), strict=True)
    there = text.length - np.arange(1, text.length)
    found = np.zeros((5, len(teacher), len(converted)))
    for place, (one, other) in ((_OVERLAP, high), (_RANKS, ranks)):
        found[place] = one @ other.T
        found[place + 1] = (_by_distance(one, text) / there) @ _by_distance(other, text).T
    found[_RANKED] = np.outer(*known)
    return found


def _high_and_ranks(outputs: Tensor, text: Text) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Which pairs are high, 1 or 0, (H, pairs); their ranks as vectors of length one; where there are ranks, (H,).

    A head whose similarities are all the same has high pairs by the order of ties alone, and no ranks: zeros.
    """
    shape = len(outputs), len(text.pairs[0])
    high, ranks, known = np.zeros(shape, dtype=np.float32), np.zeros(shape), np.zeros(len(outputs), dtype=bool)
    for part in in_parts(len(outputs), text.length):
        values, norms = pair_values(outputs[part], text.pairs)
        np.put_along_axis(high[part], select_high(values, text.counts, norms, text.pairs, text.key), 1.0, axis=1)
        known[part] = np.ptp(values, axis=1) > 2 * TIE * np.square(norms).mean(1)
        centred = rankdata(values, axis=1) - (shape[1] + 1) / 2
        length = np.linalg.norm(centred, axis=1)
        ranks[part] = np.where(known[part], 1 / np.where(known[part], length, 1.0), 0.0)[:, None] * centred
    return high, ranks, known


def _by_distance(values: np.ndarray, text: Text) -> np.ndarray:
    """(H, n - 1): sums of values (H, pairs) over the pairs at each distance, from 1 on."""
    gaps = text.pairs[1] - text.pairs[0]
    order = np.argsort(gaps, kind="stable")
    starts = np.searchsorted(gaps[order], np.arange(1, text.length))
    return np.add.reduceat(values[:, order], starts, axis=1, dtype=np.float64)


def _summed(
    sums: Sums, layers: list[int], heads: int, counts: dict[str, int], settings: dict[str, Any]
) -> HeadComparison:
    """From sums over texts and their bootstrap replicates to shares, scores and intervals."""
    found = np.stack([sums[str(layer)] for layer in layers], 1)  # (R + 1, L, 5, H, H)
    pairs, by_count = np.moveaxis(sums["pairs"], -1, 0)[:, :, None, None]  # (R + 1, 1, 1)
    overlaps = ratio(found[:, :, _OVERLAP], pairs[..., None])
    own = np.arange(heads)
    overlap, matched = overlaps[..., own, own], ratio(found[:, :, _OVERLAP_MATCHED], pairs[..., None])[..., own, own]
    score = ratio(overlap - matched, 1 - matched)
    correlation, correlation_matched = (
        ratio(found[:, :, place], found[:, :, _RANKED])[..., own, own] for place in (_RANKS, _RANKS_MATCHED)
    )
    others = np.where(np.eye(heads, dtype=bool), -np.inf, overlaps)
    best_other = others[0].argmax(1)
    margin = overlap - others.max(2) if heads > 1 else np.full(overlap.shape, np.nan)

    alone = drawn_as_one(sums["texts"][:, 0])

    def bounds(values: np.ndarray) -> np.ndarray:
        each = interval(values[1:], values[0])
        return np.full(each.shape, np.nan) if alone else each

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


def _heads_of(outputs: Tensor, text: Text) -> Tensor:
    """(H, n, d): the outputs (B, H, N, d) of one text's chosen tokens."""
    return outputs[text.row][:, text.positions]
