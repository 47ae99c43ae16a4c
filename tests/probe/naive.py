"""Texts as the statistics' slow loops take them, from captured outputs and attention maps."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from streamed import probed

from hf_attn_ext.integration.capture.attention_maps import attention_map
from hf_attn_ext.integration.capture.capture import capture
from hf_attn_ext.probe import annotate
from hf_attn_ext.probe.counting import similarity
from hf_attn_ext.probe.statistics import PairStatistic, list_statistics, statistic_named
from hf_attn_ext.probe.statistics.base import LoopText

PERCENTS = (1, 2, 5)


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
                    expected = kind.loops(given)
                    levels = isinstance(kind, PairStatistic) + (isinstance(kind, PairStatistic) and kind.matched)
                    assert "values" in expected and len(expected) > levels, kind.name
                    for field, values in expected.items():
                        assert np.allclose(getattr(found, field)[layer], values, rtol=1e-6), (kind.name, field)
    return statistics
