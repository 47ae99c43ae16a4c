"""Bit rows hold what the dense matrix holds, through every way in and out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import BitMatrix
from hf_attn_ext.hasse.order import bits as module
from hf_attn_ext.hasse.order.bits import bits_of, row_of


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.integers(1, 200), st.integers(0, 2**32))
def test_rows_columns_and_orders(rows, columns, seed):
    random = np.random.default_rng(seed)
    dense = random.random((rows, columns)) < random.random()
    packed = BitMatrix.from_dense(dense)
    assert packed.shape == dense.shape and np.array_equal(packed.dense(), dense)
    assert packed.integers() == [sum(1 << int(j) for j in np.flatnonzero(row)) for row in dense]
    assert BitMatrix.from_integers(packed.integers(), columns) == packed
    assert np.array_equal(packed.transposed().dense(), dense.T)
    assert packed[rows - 1, columns - 1] == dense[-1, -1] and packed[0, columns // 2] == dense[0, columns // 2]
    some = random.permutation(rows)[: rows // 2 + 1]
    assert np.array_equal(packed.dense(some), dense[some])
    assert np.array_equal(packed.united_rows(some).dense(), dense[some])
    starts = np.arange(0, len(some), 3)
    united = np.logical_or.reduceat(dense[some], starts, axis=0)
    assert np.array_equal(packed.united_rows(some, starts).dense(), united)
    for value in (True, False):
        expected = dense.copy()
        np.fill_diagonal(expected, value)
        assert np.array_equal(packed.with_diagonal(value).dense(), expected)
    assert np.array_equal(packed.dense(), dense)


@pytest.mark.parametrize("count", [1, 63, 64, 65, 130])
def test_reordering_takes_rows_and_columns_along(count):
    random = np.random.default_rng(count)
    dense, order = random.random((count, count)) < 0.4, random.permutation(count)
    assert np.array_equal(BitMatrix.from_dense(dense).reordered(order).dense(), dense[np.ix_(order, order)])


@pytest.mark.parametrize("shape", [(64, 1), (128, 3), (704, 9)])
def test_both_ways_to_transpose_agree(shape):
    words = np.random.default_rng(0).integers(0, 2**64, shape, dtype=np.uint64)
    small, large = module._turned_small(words.copy()), module._turned(words.copy())
    assert np.array_equal(small, large)
    assert np.array_equal(BitMatrix(large, shape[0]).dense(), BitMatrix(words, shape[1] * 64).dense().T)


def test_large_matrices_are_transposed_too():
    dense = np.random.default_rng(1).random((2100, 2300)) < 0.3
    assert np.array_equal(BitMatrix.from_dense(dense).transposed().dense(), dense.T)


@given(st.sets(st.integers(0, 300)))
def test_integers_as_sets(places):
    assert bits_of(row_of(places)).tolist() == sorted(places)


def test_equality_and_no_hash():
    one = BitMatrix.from_dense(np.eye(3, dtype=bool))
    assert one == BitMatrix.from_integers([1, 2, 4], 3) and one != BitMatrix.from_integers([1, 2, 4], 4)
    assert one != "bits" and repr(one) == "BitMatrix(3, 3)"
    with pytest.raises(TypeError):
        hash(one)


@pytest.mark.parametrize(
    ("words", "columns", "said"),
    [
        (np.zeros((2, 1), np.int64), 2, "must be numpy.uint64 (rows, 1), got int64 (2, 1)"),
        (np.zeros((2, 1), np.uint64), 65, "must be numpy.uint64 (rows, 2), got uint64 (2, 1)"),
        ([[1]], 1, "got list"),
        (np.full((1, 1), 4, np.uint64), 2, "have a bit set past the last column"),
    ],
)
def test_words_that_do_not_fit_are_refused(words, columns, said):
    with pytest.raises(AttnExtError) as error:
        BitMatrix(words, columns)
    assert said in str(error.value)
