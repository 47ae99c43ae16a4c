"""Information flow against Boolean powers written out, its limits, its depth, and what it refuses."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import BitMatrix, convergence_depth, information_flow
from hf_attn_ext.hasse.order.products import boolean_product, product_by_blocks, product_by_rows
from tests.hasse.strategies import masks, powers, wide_masks


@given(masks())
def test_every_number_of_layers_is_a_boolean_power_and_the_limit_is_the_last(mask):
    expected = powers(mask)
    for layers, power in enumerate(expected):
        seen = information_flow(mask, layers)
        assert seen.dtype == torch.bool and seen.shape == mask.shape
        assert np.array_equal(seen.numpy(), power)
    assert np.array_equal(information_flow(mask).numpy(), expected[-1])
    assert np.array_equal(information_flow(mask, 10**9).numpy(), expected[-1])
    assert convergence_depth(mask) == next(n for n, power in enumerate(expected) if np.array_equal(power, expected[-1]))


@settings(max_examples=40, deadline=None)
@given(wide_masks(), st.integers(0, 6))
def test_the_same_beyond_one_word_of_bits(mask, layers):
    expected = powers(mask)
    assert np.array_equal(information_flow(mask, layers).numpy(), expected[layers])
    assert np.array_equal(information_flow(mask).numpy(), expected[-1])
    assert convergence_depth(mask) == next(n for n, power in enumerate(expected) if np.array_equal(power, expected[-1]))


@given(st.integers(1, 5).flatmap(lambda n: st.lists(masks(n).filter(lambda m: len(m) == n), min_size=1, max_size=4)))
def test_a_list_is_the_product_of_its_layers_the_first_one_first(layers):
    seen = [np.eye(len(layers[0]), dtype=bool)]
    for mask in layers:
        step = mask | np.eye(len(mask), dtype=bool)
        seen.append(np.array([[any(step[i, k] and seen[-1][k, j] for k in range(len(mask))) for j in range(len(mask))]
                              for i in range(len(mask))]))  # fmt: skip
    assert np.array_equal(information_flow(layers).numpy(), seen[-1])
    assert convergence_depth(layers) == next(n for n, some in enumerate(seen) if np.array_equal(some, seen[-1]))


def test_the_order_of_layers_matters():
    first, second = np.zeros((3, 3), bool), np.zeros((3, 3), bool)
    first[1, 0] = second[2, 1] = True  # 0 -> 1, then 1 -> 2
    assert information_flow([first, second])[2, 0] and not information_flow([second, first])[2, 0]


@pytest.mark.parametrize("count", [1, 2, 3, 17, 65, 200])
def test_a_chain_is_as_deep_as_it_is_long_and_a_window_divides_that(count):
    place = np.arange(count)
    gap = place[:, None] - place
    assert convergence_depth((gap >= 0) & (gap <= 1)) == count - 1
    for window in (2, 3, 7):
        assert convergence_depth((gap >= 0) & (gap <= window)) == -(-(count - 1) // window)
    assert convergence_depth(gap >= 0) == (count > 1)
    assert convergence_depth(np.zeros((count, count), bool)) == 0


def test_masks_of_every_kind_are_read_alike():
    rows = [[0, 0, 0], [1, 0, 0], [0, 1, 1]]
    expected = [[True, False, False], [True, True, False], [True, True, True]]
    kinds = [rows, tuple(map(tuple, rows)), np.array(rows), np.array(rows, bool), np.array(rows, np.float32)]
    kinds += [np.array(rows, np.uint8), torch.tensor(rows), torch.tensor(rows) > 0, torch.tensor(rows).bfloat16()]
    kinds += [torch.tensor(rows).double().requires_grad_(), torch.tensor(rows).to_sparse()]
    kinds += [np.asfortranarray(np.array(rows, bool)), BitMatrix.from_dense(np.array(rows, bool))]
    for mask in kinds:
        assert information_flow(mask).tolist() == expected
        assert information_flow([mask, mask]).tolist() == expected

    class Packed:
        def bits(self):
            return BitMatrix.from_dense(np.array(rows, bool))

    class Dense:
        def dense(self):
            return torch.tensor(rows) > 0

    assert information_flow(Packed()).tolist() == information_flow(Dense()).tolist() == expected
    assert information_flow([Dense(), Packed()]).tolist() == expected


def test_the_mask_given_stays_as_it_is_and_the_result_is_its_own():
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    mask[2, 2] = False
    before = mask.clone()
    flow = information_flow(mask)
    flow[:] = False
    assert torch.equal(mask, before) and information_flow(mask)[2, 2]
    bits = BitMatrix.from_dense(before.numpy())
    words = bits.words.copy()
    information_flow(bits)
    convergence_depth(bits)
    assert np.array_equal(bits.words, words)


HOLDS_ITSELF: list = [1]
HOLDS_ITSELF.append(HOLDS_ITSELF)


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (np.ones((2, 3)), "must be square, (positions, positions), got shape (2, 3)"),
        (np.ones(4), "must be square, (positions, positions), got shape (4,)"),
        (torch.ones(2, 2, 2), "got shape (2, 2, 2)"),
        (np.ones((0, 0)), "mask is empty, shape (0, 0)"),
        ([[1, 0], [1]], "rows of different lengths"),
        ([[1, 0], [2, 1]], "must be Boolean-like, only 0 and 1, got 2 at (1, 0)"),
        ([[1.0, 0.5], [1, 1]], "got 0.5 at (0, 1)"),
        ([[0.0, float("-inf")], [0.0, 0.0]], "of an additive mask give `mask == 0`"),
        ([[1.0, float("nan")], [1, 1]], "holds NaN at (0, 1)"),
        ([["a", "b"], ["c", "d"]], "must be Boolean-like (bool, or numbers 0 and 1), got dtype <U1"),
        (torch.ones(2, 2, dtype=torch.complex64), "got dtype complex64"),
        ("mask", "got shape ()"),
        (None, "got shape ()"),
        (torch.ones(2, 2, device="meta"), "meta tensor, which holds no values (torch.float32 (2, 2) on meta)"),
        ([torch.ones(2, device="meta"), torch.ones(2)], "cannot be read as a matrix"),
        ([[1, 0], [10**400, 1]], "got dtype object"),
        (np.ma.masked_array(np.eye(2), [[0, 1], [0, 0]]), "a masked array with entries left out"),
        (torch.full((2, 2), 0.5).to(torch.float8_e4m3fn), "got 0.5 at (0, 0)"),
        (torch.full((2, 2), float("nan")).to(torch.float8_e5m2), "holds NaN at (0, 0)"),
        (torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged), "must be Boolean-like"),
        (HOLDS_ITSELF, "must be square"),
    ],
)
@pytest.mark.parametrize("function", [information_flow, convergence_depth])
def test_a_bad_mask_gets_one_line(function, mask, said):
    with pytest.raises(AttnExtError) as error:
        function(mask)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("given_masks", "layers", "said"),
    [
        ([], None, "must hold at least one mask"),
        ([np.eye(2), np.eye(3)], None, "must have one size, got (2, 2) at 0 and (3, 3) at 1"),
        ([np.eye(2), np.eye(2) * 3], None, "masks[1] must be Boolean-like, only 0 and 1, got 3.0 at (0, 0)"),
        ([np.eye(2)], 1, "num_layers must be None for a list of 1 masks, got 1"),
        (np.eye(2), -1, "num_layers must be a whole number of at least 0, or None, got -1"),
        (np.eye(2), 1.5, "got 1.5"),
        (np.eye(2), True, "got True"),
    ],
)
def test_a_bad_list_or_number_gets_one_line(given_masks, layers, said):
    with pytest.raises(AttnExtError) as error:
        information_flow(given_masks, layers)
    assert said in str(error.value)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 90), st.integers(1, 90), st.integers(1, 90), st.integers(0, 2**32), st.floats(0, 1), st.floats(0, 1)
)
def test_both_ways_to_multiply_are_the_boolean_product(rows, inner, columns, seed, one, other):
    random = np.random.default_rng(seed)
    left, right = random.random((rows, inner)) < one, random.random((inner, columns)) < other
    expected = left.astype(int) @ right.astype(int) > 0
    packed = BitMatrix.from_dense(left), BitMatrix.from_dense(right)
    assert np.array_equal(product_by_rows(packed[0].integers(), packed[1]).dense(), expected)
    assert np.array_equal(product_by_blocks(*packed, block=32).dense(), expected)
    assert np.array_equal(boolean_product(*packed).dense(), expected)


FLOATS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.bfloat16, torch.float16, torch.float64]


@pytest.mark.parametrize("dtype", [*FLOATS, torch.uint16, torch.uint64, torch.int8, torch.bool])
def test_every_dtype_of_zeros_and_ones_is_a_mask(dtype):
    mask = torch.ones(3, 3).tril().to(dtype)
    assert torch.equal(information_flow(mask, 1), torch.ones(3, 3).tril().bool())


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_every_layout_and_gradient_is_a_mask():
    mask = torch.ones(3, 3).tril()
    for same in (mask.to_sparse(), mask.to_sparse_csr(), mask.clone().requires_grad_(), mask.T.contiguous().T):
        assert torch.equal(information_flow(same, 1), mask.bool())
