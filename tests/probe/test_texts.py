"""The null model of a text: pairs drawn without replacement, from all pairs or at given distances."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attn_ext.probe.counting import texts
from hf_attn_ext.probe.counting.pair_set import PairSet
from hf_attn_ext.probe.counting.texts import make_text, starts_at
from hf_attn_ext.probe.statistics import statistic_named


def drawn_text(length, heads, number=0, percents=(1, 5), kinds=15, seed=0, document=None):
    ids = np.random.default_rng(number).integers(0, kinds, length) + 100 * number
    return make_text(0, ids, np.arange(length), np.array([0]), None, None, percents, 32, heads, seed, document)


def random_heads(text, heads, draw):
    """High pairs as heads without any rule would have them."""
    return np.stack([draw.choice(len(text.pairs[0]), text.counts[-1], replace=False) for _ in range(heads)])


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 40), st.integers(1, 6), st.integers(0, 99), st.sampled_from([1, 50, 2**20]))
def test_no_pair_is_drawn_twice_and_distances_stay(length, heads, seed, entries):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "SHUFFLE_ENTRIES", entries)
        text = drawn_text(length, heads, seed, percents=(5, 50))
    first, second, _ = text.pairs
    chosen = random_heads(text, heads, np.random.default_rng(seed))
    chosen[0] = np.argsort(second - first, kind="stable")[: text.counts[-1]]  # all the nearest pairs
    distance = (second - first)[chosen].astype(np.int64)
    starts = starts_at(distance, text)
    assert starts.min() >= 0 and (starts + distance).max() < length
    for head in range(heads):
        assert len(set(zip(starts[head].tolist(), distance[head].tolist(), strict=True))) == text.counts[-1]
        assert len(set(text.draws[head].tolist())) == text.counts[-1]


def test_every_start_is_as_likely():
    counts = np.zeros(9)
    for seed in range(150):
        text = drawn_text(12, 6, seed)
        counts += np.bincount(starts_at(np.full((6, 4), 3), text).ravel(), minlength=9)
    expected = counts.sum() / 9
    assert np.abs(counts - expected).max() < 4.5 * expected**0.5


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 99), st.integers(0, 99), st.text(max_size=9), st.text(max_size=9))
def test_texts_of_one_document_are_drawn_together_and_nothing_else_changes(one, other, name, another):
    texts_ = [drawn_text(12, 2, seed, document=document) for seed in (one, other) for document in (name, another, None)]
    for field in ("key", "draws", "shuffles", "shifts"):
        for alone, *rest in (texts_[2::-1], texts_[5:2:-1]):
            assert all(np.array_equal(getattr(alone, field), getattr(each, field)) for each in rest)
    weights = [tuple(text.weights) for text in texts_]
    assert weights[0] == weights[3] and weights[1] == weights[4] and all(each[0] == 1 for each in weights)
    assert (weights[0] == weights[1]) == (name == another) and (weights[2] == weights[5]) == (one == other)
    assert weights[0] not in (weights[2], weights[5])
    assert tuple(drawn_text(12, 2, one, document=name, seed=1).weights) != weights[0]


def test_heads_without_any_rule_are_at_chance():
    """Their most common tokens too: drawn with replacement, pairs would fall on more tokens."""
    draw, found = np.random.default_rng(0), []
    kinds = [statistic_named(name) for name in ("top_token", "unique_tokens")]
    for seed in range(300):
        text = drawn_text(40, 8, seed)
        pairs = PairSet.at(text, random_heads(text, 8, draw))
        for kind in kinds:
            value, matched = kind.count(pairs)[..., 1].reshape(2, -1).mean(1)
            found.append([value - kind.count_text(text)[0, 1], value - matched])
    found = np.array(found).reshape(300, 4)
    assert (np.abs(found.mean(0)) < 3.5 * found.std(0) / len(found) ** 0.5).all()
