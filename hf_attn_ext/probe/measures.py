"""What is counted in one text, per head: over its high pairs, and over its attention map.

Definitions are ours; the findings that they measure are the paper's (2512.21956). Every count comes with what a head
would give whose high pairs are drawn from all pairs of the text (*by count*), or from the pairs at the same distances
as the head's own (*distance-matched*).
"""

from __future__ import annotations

import numpy as np

from .similarity import pair_values, pairs_of, select_high
from .texts import DISTANCE_BINS, RELATIONS, Text, related

# Sums over a text's high pairs; those of participation count for half an end, so that all divide by the pairs.
PAIR_SUMS = (*RELATIONS, "distance", "top", *(f"{name}_matched" for name in RELATIONS), "top_matched")
UNIQUE_SUMS = ("unique", "unique_matched")
CHANCE_SUMS = (*RELATIONS, "distance", "top", "unique")
FOCUS_SUMS = ("separators", "separators_chance", "separators_matched", "special")
REGION_SUMS = ("region", "region_chance", "region_matched")

_BIN_OF = np.searchsorted(np.array(DISTANCE_BINS), np.arange(DISTANCE_BINS[-1] + 1), side="right") - 1


def distance_bins(distance: np.ndarray) -> np.ndarray:
    """The number of each distance's bin."""
    return _BIN_OF[np.minimum(distance, DISTANCE_BINS[-1])]


def pair_sums(chosen: list[np.ndarray], text: Text) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count one text's high pairs.

    Args:
        chosen: for each percentage (H, k) pair indices.

    Returns:
        (H, P, 9) in the order of :data:`PAIR_SUMS`, (P, 2) in that of :data:`UNIQUE_SUMS`, and (H, P, bins) pairs by
        distance.
    """
    heads, bins = len(chosen[0]), len(DISTANCE_BINS)
    first, second, _ = pairs_of(text.length)
    sums = np.zeros((heads, len(chosen), len(PAIR_SUMS)))
    unique, histogram = np.zeros((len(chosen), len(UNIQUE_SUMS))), np.zeros((heads, len(chosen), bins))
    offset = (np.arange(heads) * bins)[:, None]
    for level, pairs in enumerate(chosen):
        i, j = first[pairs], second[pairs]
        distance = (j - i).astype(np.int64)
        of = sums[:, level]
        of[:, 0:3] = np.count_nonzero(related(text.types, text.sentences, i, j), axis=2).T
        of[:, 3] = distance.sum(1)
        of[:, 4], unique[level, 0] = _participation(i, j, text)
        of[:, 5:8] = text.relation_at[:, distance].sum(2).T
        if text.sentences is None:
            of[:, [0, 2, 5, 7]] = 0.0
        start = (text.draws[:heads, : pairs.shape[1]] * (text.length - distance)).astype(np.int64)
        of[:, 8], unique[level, 1] = _participation(start, start + distance, text)
        counted = np.bincount((distance_bins(distance) + offset).ravel(), minlength=heads * bins)
        histogram[:, level] = counted.reshape(heads, bins)
    return sums, unique, histogram


def chance_sums(text: Text) -> tuple[np.ndarray, np.ndarray]:
    """What randomly drawn pairs of the text would give: (P, 6) in the order of :data:`CHANCE_SUMS`, and (P, bins).

    Participation has no simple expectation, so as many heads as there are draw their pairs at random, once a text.
    """
    first, second, _ = pairs_of(text.length)
    gaps = np.arange(1, text.length)
    at = text.length - gaps
    sums = np.zeros((len(text.counts), len(CHANCE_SUMS)))
    drawn = (text.draws * text.pairs).astype(np.int64)
    for level, count in enumerate(text.counts):
        sums[level, 0:3] = count * text.relation_share
        sums[level, 3] = count * (gaps * at).sum() / text.pairs
        pairs = drawn[:, :count]
        top, sums[level, 5] = _participation(first[pairs], second[pairs], text)
        sums[level, 4] = top.mean()
    by_bin = np.bincount(distance_bins(gaps), weights=at, minlength=len(DISTANCE_BINS)) / text.pairs
    return sums, np.array(text.counts)[:, None] * by_bin


def most_common(i: np.ndarray, j: np.ndarray, types: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each head's token of highest participation among pairs (H, k), and that participation in ends of pairs.

    Of equals the one that stands first in the text.
    """
    heads, kinds = len(i), int(types.max()) + 1
    offset = (np.arange(heads) * kinds)[:, None]
    ends = np.concatenate([types[i] + offset, types[j] + offset], axis=1)
    counted = np.bincount(ends.ravel(), minlength=heads * kinds).reshape(heads, kinds)
    return counted.argmax(1), counted.max(1)


def _participation(i: np.ndarray, j: np.ndarray, text: Text) -> tuple[np.ndarray, float]:
    token, ends = most_common(i, j, text.types)
    return ends / 2, len(np.unique(token)) / len(token)


def attention_sums(
    attention: np.ndarray, text: Text, causal: bool, chosen: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Where one text's attention rests, and whether it delineates the high similarity.

    Rows and columns are the real tokens that are not special, rows normalised again; what special tokens take is
    counted apart. The region is the pairs whose attention, the greater of both directions, is in the top percent too.

    Args:
        attention: (H, N, N), all tokens of the batch's row.
        chosen: the high pairs of context similarity.

    Returns:
        (H, 4) in the order of :data:`FOCUS_SUMS`, sums over rows, and (H, P, 3) in that of :data:`REGION_SUMS`, sums
        over the high pairs. Separators are 0 where they are not known.
    """
    heads, length = len(attention), text.length
    rows = attention[:, text.places]
    focus = np.zeros((heads, len(FOCUS_SUMS)))
    focus[:, 3] = rows[:, :, text.special_places].sum((1, 2))
    among = rows[:, :, text.places].astype(np.float64)
    among /= np.maximum(among.sum(-1, keepdims=True), 1e-30)
    if text.separators is not None:
        focus[:, 0] = among[:, :, text.separators].sum((1, 2))
        seen = np.tri(length) if causal else np.ones((length, length))
        focus[:, 1] = (seen[:, text.separators].sum(1) / seen.sum(1)).sum()
        focus[:, 2] = _matched_focus(among, text.separators, seen)
    region = np.zeros((heads, len(text.counts), len(REGION_SUMS)))
    first, second, flat = pairs_of(length)
    strength = np.take(np.maximum(among, among.transpose(0, 2, 1)).reshape(heads, -1), flat, axis=1)
    inside = select_high(strength, text.counts, np.ones(heads), length)
    gaps = (second - first).astype(np.int64)
    for level, pairs in enumerate(chosen):
        count = text.counts[level]
        mask = np.zeros((heads, text.pairs), dtype=bool)
        np.put_along_axis(mask, inside[level], True, axis=1)
        region[:, level, 0] = np.take_along_axis(mask, pairs, axis=1).sum(1)
        region[:, level, 1] = count * count / text.pairs
        offset = (np.arange(heads) * length)[:, None]
        at = np.bincount((gaps[inside[level]] + offset).ravel(), minlength=heads * length).reshape(heads, length)
        region[:, level, 2] = np.take_along_axis(at / (length - np.arange(length)), gaps[pairs], axis=1).sum(1)
    return focus, region


def _matched_focus(among: np.ndarray, separators: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Attention on separators if a head's weights were their own mean at each signed distance."""
    heads, length, _ = among.shape
    place = np.arange(length)
    offset = place[:, None] - place + length - 1
    size = 2 * length - 1
    # separators among the keys at each offset, over the keys there are
    available = np.bincount(offset.ravel(), weights=seen.ravel(), minlength=size)
    hits = np.bincount(offset.ravel(), weights=(seen * separators).ravel(), minlength=size)
    share = hits / np.maximum(available, 1)
    return np.einsum("hij,ij->h", among, share[offset])


def high_pairs(outputs, text: Text) -> list[np.ndarray]:
    """The high pairs of heads' vectors (H, n, d), one entry a percentage."""
    values, scale = pair_values(outputs)
    return select_high(values, text.counts, scale, text.length)
