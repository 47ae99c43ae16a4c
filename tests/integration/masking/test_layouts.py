"""Texts in the layout of a mask: what stands where, and that padding is nothing."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import masks
from hf_attn_ext.integration.masking.layouts import NEIGHBOURS, lay_out

MASK = 99


def batch_of(lengths, width):
    ids, real = torch.zeros(len(lengths), width, dtype=torch.int64), torch.zeros(len(lengths), width, dtype=torch.bool)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.arange(10 * row + 1, 10 * row + 1 + length)
        real[row, :length] = True
    return ids, real


def test_block_two_stream_by_hand():
    laid = lay_out(masks.block_two_stream(4, 2), *batch_of([4, 3], 4), mask_id=MASK, first_position=2)
    assert laid["input_ids"].tolist() == [[1, 2, 3, 4, 99, 99, 99, 99], [11, 12, 13, 0, 99, 99, 99, 99]]
    assert laid["position_ids"].tolist() == [[2, 3, 4, 5, 2, 3, 4, 5]] * 2
    assert laid["labels"].tolist() == [[-100] * 4 + [1, 2, 3, 4], [-100] * 4 + [11, 12, 13, -100]]
    assert laid["attention_mask"].tolist() == [[1] * 8, [1, 1, 1, 0, 1, 1, 1, 0]]


def test_butterfly_by_hand():
    laid = lay_out(masks.butterfly(3), *batch_of([3, 2, 1], 3))
    pairs = laid[NEIGHBOURS].tolist()
    # F0 F1 B1 B2 P0 P1 P2
    assert pairs[0] == [[1, 1], [2, 2], [2, 2], [3, 3], [2, 2], [1, 3], [2, 2]]
    assert pairs[1][:3] == [[11, 11], [12, 12], [12, 12]] and pairs[1][4:6] == [[12, 12], [11, 11]]
    assert laid["labels"].tolist()[:2] == [[-100] * 4 + [1, 2, 3], [-100] * 4 + [11, 12, -100]]
    assert laid["attention_mask"].tolist()[1] == [1, 1, 1, 0, 1, 1, 0]
    # one token alone is predicted from nothing, so it is not predicted
    assert laid["labels"][2].tolist() == [-100] * 7 and laid["attention_mask"].tolist()[2] == [1, 0, 0, 0, 0, 0, 0]
    assert laid["position_ids"].tolist() == [[0, 1, 1, 2, 0, 1, 2]] * 3


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_a_padded_text_is_laid_out_as_it_is_alone(data):
    length = data.draw(st.integers(2, 8))
    width = data.draw(st.integers(length, 10))
    size = data.draw(st.integers(1, length))
    makers = [lambda n: masks.butterfly(n), lambda n: masks.block_two_stream(n, size)]
    for make in makers:
        together = lay_out(make(width), *batch_of([length], width), mask_id=MASK)
        alone = lay_out(make(length), *batch_of([length], length), mask_id=MASK)
        seen = together["attention_mask"][0].bool()
        keys = [name for name in alone if name != "attention_mask"]
        if make(width).name == "butterfly":  # in a longer text the last token is in F and the first in B as well
            kept = [p for p in seen.nonzero().flatten().tolist() if p != length - 1 or width == length]
            seen = torch.tensor(kept)
        for name in keys:
            assert torch.equal(together[name][0, seen], alone[name][0]), name
        assert alone["attention_mask"].all()
        assert sorted(x for x in together["labels"][0].tolist() if x >= 0) == list(range(1, length + 1))


def test_what_cannot_be_laid_out_is_refused():
    with pytest.raises(AttnExtError, match="give the id of the mask token"):
        lay_out(masks.block_two_stream(4, 2), *batch_of([4], 4))
    with pytest.raises(AttnExtError, match="cannot be filled with texts of 3 tokens"):
        lay_out(masks.causal(4), *batch_of([3], 3))
    with pytest.raises(AttnExtError, match=r"its inputs are .*noisy"):
        lay_out(masks.block_diffusion(4, 2), *batch_of([4], 4))
