"""Texts as the statistics' slow loops take them, from captured outputs and attention maps."""

from __future__ import annotations

import numpy as np

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
