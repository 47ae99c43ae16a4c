"""The laws that kernels share: positive semidefinite, deterministic, bounded, softmax in the limit."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attn_ext.attention import (
    QKStatistics,
    attention_weights,
    causal_attention,
    linear_attention,
    list_kernels,
    make_feature_map,
    naive_attention,
)
from tests.attention.kernels import KERNELS, TABLE, D, N, build, features, tokens

NOTHING_RANDOM = ("cosformer", "elu", "polaformer", "uniform")


FEATURE_DIM = {
    "flexformer_s": 2 * N,
    "flexformer_n": 2 * N,
    "flexformer_p": 2 * N,
    "flexformer_c": 2 * N,
    "flexformer_sq": N * (2 * N + 1),
    "cosformer": 2 * D,
    "elu": D,
    "hedgehog": 2 * N,
    "performer": N,
    "polaformer": 2 * D,
    "rfa": 2 * N,
    "uniform": 1,
}


def test_every_shipped_kernel_is_in_the_table():
    assert {kernel for kernel, _ in TABLE.values()} == set(list_kernels()) >= set(FEATURE_DIM)
    assert {"flexformer_c", "flexformer_c-complex"} <= set(KERNELS)


@pytest.mark.parametrize("label", KERNELS)
def test_feature_dim_and_shapes(label):
    feature_map = build(label, 3, D)
    assert feature_map.feature_dim == FEATURE_DIM.get(TABLE[label][0], feature_map.feature_dim)
    for side in ("query", "key"):
        assert features(feature_map, tokens(2, 3, 4, D), side).shape == (2, 3, 4, feature_map.feature_dim)


@pytest.mark.parametrize("label", KERNELS)
@settings(max_examples=20, deadline=None)
@given(length=st.integers(2, 20), head_dim=st.integers(1, 8), seed=st.integers(0, 10**6))
def test_gram_matrix_is_positive_semidefinite(label, length, head_dim, seed):
    x = tokens(1, 1, length, head_dim, seed=seed)
    phi = features(build(label, 1, head_dim, seed=seed), x)[0, 0]
    gram = phi @ phi.mT
    assert torch.linalg.eigvalsh(gram / gram.diagonal().max())[0] > -1e-10


@pytest.mark.parametrize("label", KERNELS)
def test_seed_determines_every_value_whatever_the_global_state(label):
    kernel, options = TABLE[label]
    torch.manual_seed(1)
    first = make_feature_map(kernel, 2, 4, N, 7, **options).state_dict()
    torch.manual_seed(2)
    again = make_feature_map(kernel, 2, 4, N, 7, **options).state_dict()
    other = make_feature_map(kernel, 2, 4, N, 8, **options).state_dict()
    assert all(first[name].equal(again[name]) for name in first)
    if kernel not in NOTHING_RANDOM:
        assert any(not first[name].equal(other[name]) for name in first)


@pytest.mark.parametrize("label", KERNELS)
def test_bounds_hold(label):
    """|phi(q) . phi(k)| <= bound(q) . bound(k), on which the normaliser's floor rests."""
    feature_map = build(label, 2, 5)
    if not feature_map.signed:
        assert (features(feature_map, tokens(1, 2, 50, 5)) >= 0).all()
        return
    sides = []
    for side, seed in (("query", 0), ("key", 1)):
        x = tokens(1, 2, 50, 5, seed=seed)
        part = feature_map(x, side)
        scale = x.new_ones(*x.shape[:-1], 1) if part.log_scale is None else part.log_scale.exp()
        bound = torch.ones_like(scale) if part.bound is None else part.bound
        sides.append((features(feature_map, x, side), scale * bound))
    (phi_q, bound_q), (phi_k, bound_k) = sides
    assert ((phi_q @ phi_k.mT).abs() <= bound_q @ bound_k.mT * (1 + 1e-9)).all()


@pytest.mark.parametrize("kernel", ["flexformer_s", "flexformer_n", "flexformer_c", "performer"])
def test_softmax_matched_kernels_converge_to_softmax(kernel):
    """The error of the weights falls about as n^-1/2: small |q|, |k|, 8 seeds each, n = 64 to 4096."""
    d = 8
    q, k = tokens(1, 1, 24, d, seed=1) * 0.5, tokens(1, 1, 24, d, seed=2) * 0.5
    softmax = (q @ k.mT / math.sqrt(d)).softmax(-1)
    options = {
        "flexformer_s": {"rho": 0.0},
        "flexformer_n": {"rho": 0.0, "difference_std": 0.0},
        "flexformer_c": {
            "complex_share": 1.0,
            "rho": 0.0,
            "real_std": (d**-0.5 / 2) ** 0.5,
            "imaginary_std": (d**-0.5 / 2) ** 0.5,
            "key_normaliser": 0.0,
        },
        "performer": {},
    }[kernel]
    errors = []
    for n in (64, 512, 4096):
        maps = [make_feature_map(kernel, 1, d, n, seed, **options).double() for seed in range(8)]
        errors.append(sum((attention_weights(q, k, fm) - softmax).square().mean() for fm in maps).div(8).sqrt().item())
    slope = math.log(errors[-1] / errors[0]) / math.log(4096 / 64)
    assert -0.65 < slope < -0.35, errors
    assert errors[-1] < 0.05 * softmax.mean()


@pytest.mark.parametrize("label", KERNELS)
def test_gradients_reach_every_parameter(label):
    feature_map = build(label, 2, 6)
    parameters = dict(feature_map.named_parameters())
    q, k, v = tokens(3, 1, 2, 12, 6, seed=5).unbind()
    loss = linear_attention(q, k, v, feature_map).square().sum()
    gradients = torch.autograd.grad(loss, list(parameters.values())) if parameters else ()
    for name, gradient in zip(parameters, gradients, strict=True):
        assert gradient.isfinite().all() and gradient.reshape(len(gradient), -1).ne(0).any(1).all(), name


@pytest.mark.parametrize("label", ["cosformer", "polaformer", "rfa", "elu"])
def test_padding_and_decoding_equal_the_whole(label):
    """Real tokens only count: padding on the left or inside changes nothing, nor does going on from a state, token by
    token or in larger steps.
    """
    fm = build(label, 2, 6)
    if label == "cosformer":
        fm = make_feature_map("cosformer", 2, 6, 1, max_length=90)  # angles that matter
    length = 90
    q, k, v = tokens(3, 4, 2, length, 6, seed=1).unbind()
    mask = torch.arange(length) >= torch.tensor([[0], [5], [70], [2]])
    mask[3, 4:75:2] = False
    whole = linear_attention(q, k, v, fm, causal=True, key_padding_mask=mask)
    dense = naive_attention(q, k, v, fm, causal=True, key_padding_mask=mask)
    cuts = [*range(1, 8), 40, *range(72, length)]
    state, parts = None, []
    for start, end in zip([0, *cuts], [*cuts, length], strict=True):
        part, state = causal_attention(*(x[:, :, start:end] for x in (q, k, v)), fm, state, mask[:, start:end])
        parts.append(part)
    assert state.length.equal(mask.sum(-1))
    for row, real in enumerate(mask):
        alone = naive_attention(*(x[row : row + 1, :, real] for x in (q, k, v)), fm, causal=True)
        for out in (whole, dense, torch.cat(parts, 2)):
            torch.testing.assert_close(out[row : row + 1, :, real], alone, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("label", KERNELS)
def test_calibration_keeps_the_map_finite_and_reads_the_data(label):
    feature_map = build(label, 2, 6)
    statistics = QKStatistics(2, 6)
    q, k = tokens(3, 2, 30, 6, seed=1) * 2, tokens(3, 2, 30, 6, seed=2) + 1
    mask = torch.rand(3, 30) > 0.3
    statistics.update(q.masked_fill(~mask[:, None, :, None], torch.nan), k, mask)
    feature_map.calibrate(statistics)
    assert all(value.isfinite().all() for value in feature_map.state_dict().values())
    if getattr(feature_map, "key_map", None) is not None:
        seen = k.transpose(1, 2)[mask].mean(0)
        torch.testing.assert_close(feature_map.key_map.shift.detach(), seen)
