"""The statistics by loops over pairs, from captured outputs and attention maps: the readable twin."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter

import numpy as np
import torch
from streamed import probed

from hf_attn_ext.integration.capture.attention_maps import attention_map
from hf_attn_ext.integration.capture.capture import capture
from hf_attn_ext.probe import annotate
from hf_attn_ext.probe.counting import similarity
from hf_attn_ext.probe.counting.texts import DISTANCE_BINS
from hf_attn_ext.probe.statistics import PairStatistic, list_statistics, statistic_named

PERCENTS = (1, 2, 5)


@dataclasses.dataclass(frozen=True)
class LoopText:
    """One text of n tokens that are not special.

    Attributes:
        ids, sentences, separators: of each token; ``separators`` are bools.
        high: for each head, its high pairs (i, j).
        attention: (H, n, N) attention weights of the n queries.
        places: the n token positions among N.
        causal: queries see no later keys.
    """

    ids: list
    sentences: list
    high: list
    attention: np.ndarray
    places: list
    separators: list
    causal: bool

    @property
    def pairs(self):
        """All pairs i < j."""
        return [(i, j) for i in range(len(self.ids)) for j in range(i + 1, len(self.ids))]

    @property
    def weights(self):
        """(H, n, n): attention among the n tokens, rows normalised again."""
        among = self.attention[:, :, self.places]
        return among / among.sum(-1, keepdims=True)


def high(matrix, percent):
    """The top percent of pairs i < j of an (n, n) matrix without ties."""
    length = len(matrix)
    pairs = [(i, j) for i in range(length) for j in range(i + 1, length)]
    count = max(1, int(len(pairs) * percent / 100 + 0.5))
    return sorted(pairs, key=lambda pair: -matrix[pair])[:count]


def real_tokens(known):
    """For each text, the positions of its tokens that are not special."""
    return [np.flatnonzero(row) for row in known.attention_mask.numpy() * ~known.special]


def loop_texts(known, attentions, causal, vectors=None, percent=1):
    """One layer's texts.

    Args:
        known: their annotation.
        attentions: for each text (H, N, N) attention weights.
        vectors: for each text (H, N, d): what is compared by dot products; None leaves the high pairs out.
    """
    texts = []
    for row, places in enumerate(real_tokens(known)):
        ids = known.input_ids[row].numpy()[places]
        compared = [] if vectors is None else vectors[row][:, places]
        chosen = [high(x @ x.T, percent) for x in compared]
        sentences, separators = known.sentences[row, places], np.isin(ids, [5, 6])
        texts.append(LoopText(list(ids), sentences, chosen, attentions[row][:, places], places, separators, causal))
    return texts


def loops(name, texts):
    """The numbers of the registered statistic ``name`` by loops: its own, or those below."""
    kind = statistic_named(name)
    if isinstance(kind, PairStatistic):
        return pair_loops(kind, texts)
    return LOOPS[name](texts) if name in LOOPS else kind.loops(texts)


def pair_loops(kind, texts):
    sums = []
    for text in texts:
        length = len(text.ids)
        of = {pair: kind.loop_pair(text.ids, text.sentences, *pair) for pair in text.pairs}
        at = {d: np.mean([of[i, i + d] for i in range(length - d)]) for d in range(1, length)}
        chance = np.mean(list(of.values()))
        sums.append([(len(h), sum(of[p] for p in h), len(h) * chance, sum(at[j - i] for i, j in h)) for h in text.high])
    total = np.sum(sums, axis=0)  # (H, 4)
    names = ("values", "chance", "chance_matched")[: 2 + kind.matched]
    return {name: total[:, 1 + column] / total[:, 0] for column, name in enumerate(names)}


def top_token(texts):
    most = [[max(ends(text, high).values()) / 2 for high in text.high] for text in texts]
    return {"values": np.sum(most, axis=0) / sum(len(text.high[0]) for text in texts)}


def unique_tokens(texts):
    shares = []
    for text in texts:
        each = [ends(text, high) for high in text.high]
        tokens = {next(token for token in text.ids if e[token] == max(e.values())) for e in each}
        shares.append(len(tokens) / len(each))
    return {"values": np.mean(shares)}


def ends(text, high):
    return Counter(text.ids[i] for pair in high for i in pair)


def distance_overlap(texts):
    """All texts and heads: one less the total variation of their high pairs' distances and all pairs'."""
    chosen, every = np.zeros(len(DISTANCE_BINS)), np.zeros(len(DISTANCE_BINS))
    for text in texts:
        bins = {d: max(at for at, low in enumerate(DISTANCE_BINS) if low <= d) for d in range(1, len(text.ids))}
        for high in text.high:
            for i, j in high:
                chosen[bins[j - i]] += 1
            for i, j in text.pairs:
                every[bins[j - i]] += len(high) / len(text.pairs)
    return {"values": 1 - 0.5 * np.abs(chosen / chosen.sum() - every / every.sum()).sum()}


def separator_focus(texts):
    """Each head's attention on separators, summed over rows; by chance; at the same signed distances."""
    sums = []
    for text in texts:
        length, separators = len(text.ids), text.separators
        seen = [[j for j in range(length) if j <= i or not text.causal] for i in range(length)]
        by_count = sum(np.mean([separators[j] for j in row]) for row in seen)
        for weights in text.weights:
            focus = sum(weights[i, j] for i in range(length) for j in range(length) if separators[j])
            matched = 0.0
            for gap in range(1 - length, length):
                keys = [(i, i - gap) for i in range(length) if i - gap in seen[i]]
                if keys:
                    matched += np.mean([separators[j] for _, j in keys]) * sum(weights[pair] for pair in keys)
            sums.append((focus, by_count, matched))
    total = np.sum(np.reshape(sums, (len(texts), -1, 3)), axis=0) / sum(len(text.ids) for text in texts)
    return dict(zip(("values", "chance", "chance_matched"), total.T, strict=True))


def special_focus(texts):
    sums = [text.attention.sum((1, 2)) - text.attention[:, :, text.places].sum((1, 2)) for text in texts]
    return {"values": np.sum(sums, axis=0) / sum(len(text.ids) for text in texts)}


def region(texts):
    shares = []
    for head in range(len(texts[0].high)):
        both = total = 0
        for text in texts:
            weights, chosen = text.weights[head], text.high[head]
            strongest = sorted(text.pairs, key=lambda p, w=weights: -max(w[p], w[p[::-1]]))
            both, total = both + len(set(strongest[: len(chosen)]) & set(chosen)), total + len(chosen)
        shares.append(both / total)
    return {"values": np.array(shares)}


LOOPS = {f.__name__: f for f in (top_token, unique_tokens, distance_overlap, separator_focus, special_focus, region)}


def check_loops(model, tokenizer, texts, monkeypatch):
    """Compare every registered statistic, at every measure and percentage that it has, with its loops; return them."""
    monkeypatch.setattr(similarity, "TIE", 1e-12)  # the loops know no ties
    model = model.double()
    statistics = probed(model, tokenizer, texts, batch_size=3).statistics()
    known, calls = annotate(texts, tokenizer), []
    with torch.no_grad(), capture(model, calls.append):
        model(input_ids=known.input_ids, attention_mask=known.attention_mask)
    kinds = [statistic_named(name) for name in list_statistics()]
    for layer, call in enumerate(calls):
        maps = [attention_map(call, row).numpy() for row in range(len(texts))]
        vectors = {"dot": [output.numpy() for output in call.output], "attention": maps}
        vectors["cosine"] = [torch.nn.functional.normalize(output, dim=-1).numpy() for output in call.output]
        for measure, percent in itertools.product(vectors, PERCENTS):
            given = loop_texts(known, maps, call.causal, vectors[measure], percent)
            for kind in kinds:
                if measure == "dot" or (kind.controls and not kind.needs_attention):
                    found = statistics.get(kind.name, percent if kind.by_percent else None, measure)
                    expected = loops(kind.name, given)
                    levels = isinstance(kind, PairStatistic) + (isinstance(kind, PairStatistic) and kind.matched)
                    assert "values" in expected and len(expected) > levels, kind.name
                    for field, values in expected.items():
                        assert np.allclose(getattr(found, field)[layer], values, rtol=1e-6), (kind.name, field)
    return statistics
