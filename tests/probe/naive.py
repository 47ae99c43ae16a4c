"""The statistics by loops over pairs, from similarity matrices: the readable twin."""

from __future__ import annotations

from collections import Counter

import numpy as np

from hf_attn_ext.probe.counting.texts import DISTANCE_BINS

PERCENTS = (1, 2, 5)


def high(matrix, percent):
    """The top percent of pairs i < j of an (n, n) matrix without ties."""
    length = len(matrix)
    pairs = [(i, j) for i in range(length) for j in range(i + 1, length)]
    count = max(1, int(len(pairs) * percent / 100 + 0.5))
    return sorted(pairs, key=lambda pair: -matrix[pair])[:count]


def shares(matrices, ids, sentences, percent):
    """One text: sums over its high pairs for each head, as a dictionary of lists; and the layer's distinct tokens.

    Args:
        matrices: (H, n, n) of the tokens that count.
    """
    length = len(ids)
    pairs = [(i, j) for i in range(length) for j in range(i + 1, length)]
    relations = {
        "within_sentence": lambda i, j: sentences[i] == sentences[j],
        "repeated_tokens": lambda i, j: ids[i] == ids[j],
        "signal": lambda i, j: sentences[i] == sentences[j] or ids[i] == ids[j],
    }
    found = {name: [] for name in (*relations, "distance", "top_token", "pairs")}
    chance = {name: [] for name in relations}
    matched = {name: [] for name in relations}
    tokens = set()
    for matrix in matrices:
        chosen = high(matrix, percent)
        found["pairs"].append(len(chosen))
        found["distance"].append(sum(j - i for i, j in chosen))
        for name, holds in relations.items():
            found[name].append(sum(holds(*pair) for pair in chosen))
            chance[name].append(len(chosen) * np.mean([holds(*pair) for pair in pairs]))
            at = {d: np.mean([holds(i, i + d) for i in range(length - d)]) for d in range(1, length)}
            matched[name].append(sum(at[j - i] for i, j in chosen))
        ends = Counter(ids[i] for pair in chosen for i in pair)
        best = max(ends.values())
        found["top_token"].append(best / 2)
        tokens.add(next(token for token in ids if ends[token] == best))
    return found, chance, matched, len(tokens) / len(matrices)


def separator_focus(attention, separators, causal):
    """One text: each head's attention on separators, summed over rows; by chance; distance-matched."""
    length = len(separators)
    focus, matched = [], []
    for weights in attention:
        weights = weights / weights.sum(-1, keepdims=True)
        focus.append(sum(weights[i, j] for i in range(length) for j in range(length) if separators[j]))
        total = 0.0
        for gap in range(-length + 1, length):
            there = [(i, i - gap) for i in range(length) if 0 <= i - gap < length and (gap >= 0 or not causal)]
            if there:
                share = np.mean([separators[j] for _, j in there])
                total += share * sum(weights[pair] for pair in there)
        matched.append(total)
    seen = [range(i + 1) if causal else range(length) for i in range(length)]
    return focus, sum(np.mean([separators[j] for j in row]) for row in seen), matched


def distance_overlap(outputs, percent):
    """All texts and heads of one layer: one less the total variation of their high pairs' distances and all pairs'.

    Args:
        outputs: one (H, n, d) a text.
    """
    chosen, everywhere = np.zeros(len(DISTANCE_BINS)), np.zeros(len(DISTANCE_BINS))
    for heads in outputs:
        length = heads.shape[1]
        bins = {d: max(at for at, low in enumerate(DISTANCE_BINS) if low <= d) for d in range(1, length)}
        pairs = [(i, j) for i in range(length) for j in range(i + 1, length)]
        for x in heads:
            its = high(x @ x.T, percent)
            for i, j in its:
                chosen[bins[j - i]] += 1
            for i, j in pairs:
                everywhere[bins[j - i]] += len(its) / len(pairs)
    return 1 - 0.5 * np.abs(chosen / chosen.sum() - everywhere / everywhere.sum()).sum()
