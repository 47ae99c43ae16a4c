"""What is counted in one text, per head: over its high pairs, and over its attention map.

Definitions are ours; the findings that they measure are the paper's (2512.21956). Every count comes with what a head
would give whose high pairs are drawn from all pairs of the text (*by count*), or from the pairs at the same distances
as the head's own (*distance-matched*).
"""

from __future__ import annotations

import functools

import numpy as np

from hf_attn_ext.probe.counting.attention_rows import LEAST_SUM
from hf_attn_ext.probe.counting.similarity import select_high
from hf_attn_ext.probe.counting.texts import DISTANCE_BINS, RELATIONS, Text, related, starts_at

# Sums over a text's high pairs; those of participation count for half an end, so that all divide by the pairs.
PAIR_SUMS = (*RELATIONS, "distance", "top", *(f"{name}_matched" for name in RELATIONS), "top_matched")
UNIQUE_SUMS = ("unique", "unique_matched")
CHANCE_SUMS = (*RELATIONS, "distance", "top", "unique")
FOCUS_SUMS = ("separators", "separators_chance", "separators_matched", "special", "rows")
REGION_SUMS = ("region", "region_chance", "region_matched")


_BIN_OF = np.searchsorted(np.array(DISTANCE_BINS), np.arange(DISTANCE_BINS[-1] + 1), side="right") - 1


def distance_bins(distance: np.ndarray) -> np.ndarray:
    """The number of each distance's bin."""
    return _BIN_OF[np.minimum(distance, DISTANCE_BINS[-1])]


def pair_sums(chosen: np.ndarray, text: Text) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Count one text's high pairs.

    Args:
        chosen: (H, k), from :func:`.select_high`.

    Returns:
        (H, P, 9) in the order of :data:`PAIR_SUMS`, (P, 2) in that of :data:`UNIQUE_SUMS`, and (H, P, bins) pairs by
        distance.
    """
    heads, levels = len(chosen), len(text.counts)
    first, second, _ = text.pairs
    i, j = first[chosen], second[chosen]
    distance = (j - i).astype(np.int64)
    parts = np.empty((7, *chosen.shape), dtype=np.float32)
    related(text.types, text.sentences, i, j, out=parts[0:3])
    parts[3] = distance
    np.take(text.relation_at, distance, axis=1, out=parts[4:7], mode="clip")
    summed = (parts @ _up_to(text.counts)).transpose(1, 2, 0)  # (H, P, 7)
    sums, unique = np.empty((heads, levels, len(PAIR_SUMS))), np.empty((levels, len(UNIQUE_SUMS)))
    sums[:, :, 0:4], sums[:, :, 5:8] = summed[:, :, 0:4], summed[:, :, 4:7]
    if text.sentences is None:
        sums[:, :, [0, 2, 5, 7]] = 0.0
    sums[:, :, 4], unique[:, 0] = _participation(i, j, text)
    start = starts_at(distance, text)
    sums[:, :, 8], unique[:, 1] = _participation(start, start + distance, text)
    return sums, unique, _counted(distance_bins(distance), len(DISTANCE_BINS), text.counts).swapaxes(0, 1)


def chance_sums(text: Text) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What randomly drawn pairs of the text would give: (P, 6) in the order of :data:`CHANCE_SUMS`, (P, bins) twice.

    Of these the first holds what is expected of as many pairs as are high. Participation has no simple expectation, so
    as many heads as there are draw their pairs at random, once a text; the second holds the pairs of these together.
    """
    first, second, _ = text.pairs
    gaps = np.arange(1, text.length)
    at = text.length - gaps
    counts = np.array(text.counts)
    sums = np.zeros((len(counts), len(CHANCE_SUMS)))
    sums[:, 0:3] = counts[:, None] * text.relation_share
    sums[:, 3] = counts * (gaps * at).sum() / len(first)
    top, sums[:, 5] = _participation(first[text.draws], second[text.draws], text)
    sums[:, 4] = top.mean(0)
    by_bin = np.bincount(distance_bins(gaps), weights=at, minlength=len(DISTANCE_BINS)) / len(first)
    drawn = distance_bins((second - first)[text.draws].astype(np.int64))
    return sums, counts[:, None] * by_bin, _counted(drawn, len(DISTANCE_BINS), text.counts).sum(1)


@functools.lru_cache(maxsize=16)
def _steps(counts: tuple[int, ...]) -> np.ndarray:
    """(k,): the smallest percentage that each column of a selection belongs to."""
    return np.repeat(np.arange(len(counts)), np.diff((0, *counts)))


@functools.lru_cache(maxsize=16)
def _up_to(counts: tuple[int, ...]) -> np.ndarray:
    """(k, P): which columns of a selection each percentage takes."""
    return (_steps(counts)[:, None] <= np.arange(len(counts))).astype(np.float32)


def _counted(numbers: np.ndarray, kinds: int, counts: tuple[int, ...]) -> np.ndarray:
    """(P, H, kinds): how often each number below ``kinds`` occurs in the first ``counts`` columns of (H, k)."""
    heads, levels = len(numbers), len(counts)
    offset = (_steps(counts) * heads + np.arange(heads)[:, None]) * kinds
    found = np.bincount((numbers + offset).ravel(), minlength=levels * heads * kinds)
    return found.reshape(levels, heads, kinds).cumsum(0)


def most_common(i: np.ndarray, j: np.ndarray, text: Text) -> tuple[np.ndarray, np.ndarray]:
    """Each head's token of highest participation among high pairs (H, k), and that participation in ends of pairs.

    Returns:
        (P, H) numbers of the text's distinct ids, of equals the one that stands first in the text, and (P, H).
    """
    kinds = int(text.types.max()) + 1
    found = _counted(text.types[i], kinds, text.counts) + _counted(text.types[j], kinds, text.counts)
    return found.argmax(2), found.max(2)


def _participation(i: np.ndarray, j: np.ndarray, text: Text) -> tuple[np.ndarray, list[float]]:
    token, ends = most_common(i, j, text)
    return ends.T / 2, [len(set(of_level)) / len(of_level) for of_level in token.tolist()]


def attention_sums(
    attention: np.ndarray, text: Text, seen: np.ndarray, chosen: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Where one text's attention rests, and whether it delineates the high similarity.

    Rows and columns are the real tokens that are not special, rows normalised again; what special tokens take is
    counted apart. Rows that have no weight there, or whose weights cancel (:data:`LEAST_SUM`), are left out of the
    separator focus and are zero for the region: the pairs whose attention, the greater of both directions, is in the
    top percent too.

    Args:
        attention: (H, N, N), all tokens of the batch's row.
        seen: bool (1 or H, N, N), which keys a row sees at all.
        chosen: the high pairs of context similarity.

    Returns:
        (H, 5) in the order of :data:`FOCUS_SUMS`, sums over rows and how many were not left out, and (H, P, 3) in that
        of :data:`REGION_SUMS`, sums over the high pairs. Separators are 0 where they are not known.
    """
    heads, length = len(attention), text.length
    rows = attention[:, text.places]
    focus = np.zeros((heads, len(FOCUS_SUMS)))
    focus[:, 3] = rows[:, :, text.special_places].sum((1, 2))
    among = rows[:, :, text.places]
    total = among.sum(-1)
    counted = total > np.maximum(LEAST_SUM * np.abs(among).sum(-1), 1e-30)
    among = np.where(counted[..., None], among / np.where(counted, total, 1.0)[..., None], 0.0)
    focus[:, 4] = counted.sum(1)
    if text.separators is not None:
        by_count, at_distance = _separators(text, seen[:, text.places][:, :, text.places])
        focus[:, 0] = among[:, :, text.separators].sum((1, 2))
        focus[:, 1] = (counted * by_count).sum(1)
        focus[:, 2] = (among.reshape(heads, -1) * at_distance).sum(1)
    region = np.zeros((heads, len(text.counts), len(REGION_SUMS)))
    first, second, flat = text.pairs
    gaps = (second - first).astype(np.int64)
    among = among.reshape(heads, -1)
    back = flat + gaps * (length - 1)  # j, i in place of i, j
    strength = np.maximum(np.take(among, flat, axis=1), np.take(among, back, axis=1))
    inside = select_high(strength, text.counts, np.ones((heads, length)), text.pairs, text.key)
    by_gap = _counted(gaps[inside], length, text.counts)
    for level, count in enumerate(text.counts):
        pairs, at = chosen[:, :count], by_gap[level]
        mask = np.zeros((heads, len(first)), dtype=bool)
        np.put_along_axis(mask, inside[:, :count], True, axis=1)
        region[:, level, 0] = np.take_along_axis(mask, pairs, axis=1).sum(1)
        region[:, level, 1] = count * count / len(first)
        region[:, level, 2] = np.take_along_axis(at / (length - np.arange(length)), gaps[pairs], axis=1).sum(1)
    return focus, region


def _separators(text: Text, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What separators would get by count, a row, and their share among the keys that are seen at each signed distance.

    The second, weighted by attention, is what they would get if a head's weights were their own mean at each distance.

    Args:
        seen: bool (G, n, n), one a head or one for all.

    Returns:
        (G, n) and (G, n * n).
    """
    key = seen.shape[0], np.packbits(seen).tobytes()
    if key not in text.separators_by:
        groups, length = seen.shape[:2]
        place = np.arange(length)
        size = 2 * length - 1
        offset = (place[:, None] - place + length - 1).ravel()
        there = (np.arange(groups)[:, None] * size + offset).ravel()
        separates = seen & text.separators
        available = np.bincount(there, weights=seen.ravel(), minlength=groups * size)
        hits = np.bincount(there, weights=separates.ravel(), minlength=groups * size)
        share = (hits / np.maximum(available, 1)).reshape(groups, size)
        text.separators_by[key] = separates.sum(-1) / np.maximum(seen.sum(-1), 1), share[:, offset]
    return text.separators_by[key]
