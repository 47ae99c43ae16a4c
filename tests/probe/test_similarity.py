"""Which pairs are high: the fast selection against sorting all pairs, ties included."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.probe.counting.similarity import (
    TIE,
    high_counts,
    pair_values,
    pairs_of,
    select_high,
    similarity_matrices,
)


def test_matrices_have_no_diagonal_and_at_least_float32():
    outputs = torch.randn(2, 3, 5, 4)
    found = similarity_matrices(outputs.half())
    assert found.dtype == torch.float32 and found.diagonal(dim1=-2, dim2=-1).abs().max() == 0
    exact = similarity_matrices(outputs.double())
    assert exact.dtype == torch.float64 and exact[1, 2, 0, 3] == pytest.approx(
        float((outputs[1, 2, 0].double() * outputs[1, 2, 3].double()).sum())
    )


def test_pair_values_are_the_upper_triangle():
    outputs = torch.randn(3, 6, 4, dtype=torch.float64)
    values, norms = pair_values(outputs, pairs_of(6))
    first, second, flat = pairs_of(6)
    expected = similarity_matrices(outputs).numpy()[:, first, second]
    assert np.allclose(values, expected) and np.array_equal(flat, first * 6 + second)
    assert np.allclose(norms, outputs.norm(dim=-1))


def test_overflow_is_one_line():
    with pytest.raises(AttnExtError, match=r"not finite.*float32"):
        pair_values(torch.full((1, 3, 2), torch.inf), pairs_of(3))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    length=st.sampled_from([2, 3, 9, 40, 80, 130]),
    heads=st.integers(1, 4),
    kind=st.sampled_from(["random", "ties", "noisy ties", "equal", "zero", "heavy"]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_selected_pairs_are_the_highest(seed, length, heads, kind, dtype):
    draw = np.random.default_rng(seed)
    pairs = length * (length - 1) // 2
    values = draw.normal(size=(heads, pairs))
    if "ties" in kind:
        values = np.round(values * 2) / 2 + (kind == "noisy ties") * 1e-7 * draw.normal(size=values.shape)
    if kind == "heavy":
        values = np.exp(4 * values)
    if kind in ("equal", "zero"):
        values = np.full(values.shape, 0.0 if kind == "zero" else -2.0)
    values, norms = values.astype(dtype), np.ones((heads, length))
    counts = high_counts(pairs, (1, 2, 5))
    chosen = select_high(values, counts, norms, pairs_of(length))
    assert chosen.shape == (heads, counts[-1])
    assert all(len(set(row)) == counts[-1] for row in chosen.tolist())
    ordered = -np.sort(-values.astype(np.float64), axis=1)
    for count in counts:
        picked = np.take_along_axis(values, chosen[:, :count], axis=1).astype(np.float64)
        found = -np.sort(-picked, axis=1)
        # thresholds of several percentages in one tie share it, so up to a few ties' width
        assert np.abs(found - ordered[:, :count]).max() <= 6 * TIE


def test_ties_do_not_depend_on_noise_and_do_not_lean_to_near_pairs():
    length, draw = 90, np.random.default_rng(0)
    values = np.zeros((1, length * (length - 1) // 2), dtype=np.float32)
    counts = high_counts(values.shape[1], (1, 2, 5))
    chosen = select_high(values, counts, np.ones((1, length)), pairs_of(length))
    for _ in range(5):
        noisy = values + (1e-7 * draw.normal(size=values.shape)).astype(np.float32)
        again = select_high(noisy, counts, np.ones((1, length)), pairs_of(length))
        for count in counts:
            assert set(again[0, :count]) == set(chosen[0, :count])
    first, second, _ = pairs_of(length)
    distance = (second - first)[chosen[0]]
    error = (second - first).std() / counts[-1] ** 0.5
    assert abs(distance.mean() - (second - first).mean()) < 3 * error


@pytest.mark.parametrize(("length", "outliers"), [(24, 1), (128, 1), (128, 3), (128, 20)])
@pytest.mark.parametrize("norm", [30.0, 1e3, 1e5])
def test_tokens_of_great_norm_make_no_ties_of_the_others(norm, length, outliers):
    """Also where the threshold lies just below their pairs."""
    outputs = torch.randn(40, length, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    outputs[:, torch.arange(outliers) * 3 + 1] *= norm
    values, norms = pair_values(outputs, pairs_of(length))
    counts = high_counts(values.shape[1], (1, 2, 5))
    first, second, _ = pairs_of(length)
    width = 1.01 * TIE * norms[:, first] * norms[:, second]  # a pair's own: nobody else's makes it a tie
    chosen = select_high(values, counts, norms, pairs_of(length))
    for count in counts:
        inside = np.zeros(values.shape, dtype=bool)
        np.put_along_axis(inside, chosen[:, :count], True, axis=1)
        threshold = -np.sort(-values, axis=1)[:, count - 1 : count]
        assert (values >= threshold - width)[inside].all() and (values <= threshold + width)[~inside].all()
        assert (inside.sum(1) == count).all()


@pytest.mark.parametrize("small", [60, 95])
def test_equal_outputs_tie_beside_tokens_of_far_smaller_norm(small):
    draw = torch.Generator().manual_seed(0)
    outputs = torch.ones(1, 128, 8)
    outputs[:, :small] = 1e-6
    counts = high_counts(128 * 127 // 2, (1, 2, 5))
    first = None
    for _ in range(5):
        noisy = outputs * (1 + 1e-7 * torch.randn(outputs.shape, generator=draw))
        values, norms = pair_values(noisy, pairs_of(128))
        sets = [set(select_high(values, counts, norms, pairs_of(128), 7)[0, :count].tolist()) for count in counts]
        first = first or sets
        assert sets == first


def test_a_misleading_sample_is_noticed():
    # every sixteenth pair is high: the bound from the sample is above nearly all that must be chosen
    length = 100
    values = np.random.default_rng(0).normal(size=(2, length * (length - 1) // 2)).astype(np.float32)
    values[:, ::16] += 100
    counts = high_counts(values.shape[1], (1, 2, 10))
    chosen = select_high(values, counts, np.ones((2, length)), pairs_of(length))
    expected = np.sort(np.argsort(-values, axis=1)[:, : counts[-1]], axis=1)
    assert np.array_equal(np.sort(chosen, axis=1), expected)


def test_counts_are_rounded_and_never_none():
    assert high_counts(8128, (1, 2, 5)) == [81, 163, 406]
    assert high_counts(1, (1, 2, 5)) == [1, 1, 1]
