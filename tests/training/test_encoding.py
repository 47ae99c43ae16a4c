"""Laws of the data order, padding and packing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attn_ext import AttnExtError
from hf_attn_ext.training.data.encoding import (
    Collator,
    EncodedSplit,
    TrainingOrder,
    encode,
    evaluation_batches,
    pack,
    special_tokens,
)
from hf_attn_ext.training.data.loading import Split
from tests.training import small


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return small.save_tokenizer(tmp_path_factory.mktemp("tokenizer"))


SPLIT = Split(["the film is good", "a plot", "it was very bad and dull"], None, np.array([1, 0, 0]), ["a", "b", "a"])


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 50), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(0, 5), st.booleans())
def test_a_step_is_the_same_however_it_is_spread(size, batch, accumulate, processes, seed, by_length):
    lengths = np.random.default_rng(seed).integers(3, 20, size)
    spread = TrainingOrder(lengths, batch, accumulate, processes, seed, by_length)
    whole = TrainingOrder(lengths, batch * accumulate * processes, 1, 1, seed, by_length)
    for step in (0, 3, 40):
        parts = [rows for rank in range(processes) for rows in spread.rank_batches(step, rank)]
        assert all(len(rows) == batch for rows in parts)
        assert sorted(np.concatenate(parts)) == sorted(whole.rank_batches(step, 0)[0])


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 7), st.booleans())
def test_epochs_see_every_example_once(size, batch, by_length):
    order = TrainingOrder(np.arange(size), batch, seed=1, group_by_length=by_length)
    steps = TrainingOrder.WINDOW * size  # a whole number of epochs, and of windows
    counts = np.bincount(np.concatenate([order.step(step) for step in range(steps)]), minlength=size)
    assert (counts == counts[0]).all()


def test_the_order_has_no_memory():
    order = TrainingOrder(np.arange(20), 3, seed=4, group_by_length=True)
    forward = [order.step(step).tolist() for step in range(70)]
    fresh = TrainingOrder(np.arange(20), 3, seed=4, group_by_length=True)
    assert [fresh.step(step).tolist() for step in reversed(range(70))] == forward[::-1]
    assert [TrainingOrder(np.arange(20), 3, seed=5).step(step).tolist() for step in range(70)] != forward


def test_sorting_by_length_saves_padding():
    lengths = np.random.default_rng(0).integers(5, 100, 1000)
    waste = {}
    for by_length in (False, True):
        order = TrainingOrder(lengths, 16, seed=0, group_by_length=by_length)
        batches = [lengths[order.step(step)] for step in range(64)]
        waste[by_length] = np.mean([batch.max() - batch.mean() for batch in batches])
    assert waste[True] < waste[False] / 5


@pytest.mark.parametrize("side", ["right", "left"])
def test_batches_are_padded(tokenizer, side):
    data = encode(SPLIT, tokenizer, 16)
    tokenizer.padding_side = side
    batch = Collator(tokenizer)([data[0], data[1]])
    tokenizer.padding_side = "right"
    assert batch["input_ids"].shape == (2, 6)
    assert batch["attention_mask"].tolist() == [[1] * 6, [0, 0, 1, 1, 1, 1] if side == "left" else [1, 1, 1, 1, 0, 0]]
    assert (batch["input_ids"][batch["attention_mask"] == 0] == tokenizer.pad_token_id).all()
    assert batch["labels"].tolist() == [1, 0] and batch["index"].tolist() == [0, 1]


def test_cut_to_max_length_and_pairs(tokenizer):
    assert encode(SPLIT, tokenizer, 5).lengths.max() == 5
    pairs = Split(["a plot"], ["the film"], None, None)
    ids = encode(pairs, tokenizer, 16)[0]["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == ["<s>", "a", "plot", "</s>", "</s>", "the", "film", "</s>"]


def test_packed_sequences_are_full_and_keep_groups_apart(tokenizer):
    assert special_tokens(tokenizer) == ([0], [2])
    data = pack(SPLIT, tokenizer, 6)
    texts = [tokenizer.convert_ids_to_tokens(data[i]["input_ids"]) for i in range(len(data))]
    assert texts == [
        ["<s>", "the", "film", "is", "good", "</s>"],
        ["<s>", "it", "was", "very", "bad", "</s>"],
    ]
    with pytest.raises(AttnExtError, match=r"no text.*long enough.*30"):
        pack(SPLIT, tokenizer, 30)


def test_no_padding_token_is_told(tokenizer):
    class Bare:
        pad_token_id = None

    with pytest.raises(AttnExtError, match="no padding token"):
        Collator(Bare())


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_evaluation_reaches_every_example(size, batch, processes, even):
    class Indices:
        def __call__(self, items):
            return [item["index"] for item in items]

    data = EncodedSplit([[1] * (i % 5 + 1) for i in range(size)], None, None)
    shares = [list(evaluation_batches(data, Indices(), batch, rank, processes, even)) for rank in range(processes)]
    seen = sorted(i for share in shares for rows in share for i in rows)
    assert set(seen) == set(range(size))
    if even:
        assert len({len(share) for share in shares}) == 1
    else:
        assert seen == list(range(size))
