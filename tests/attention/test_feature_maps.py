"""The laws of each kernel: positive semidefinite, its limits, its relations to the others."""

import math
import textwrap

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attn_ext.attention import (
    FeatureMap,
    Features,
    QKStatistics,
    attention_weights,
    linear_attention,
    list_kernels,
    make_feature_map,
    register_kernel,
)
from hf_attn_ext.attention.feature_maps.moments import matrix_power, phase_scale
from hf_attn_ext.errors import AttnExtError

from .kernels import KERNELS, TABLE, N, build


def features(feature_map, x, side="key"):
    """The features multiplied out, without stabilisation."""
    part = feature_map(x, side)
    if part.log_scale is None:
        return part.values
    scale = part.log_scale.exp()
    if part.values is None:
        return scale
    return (part.values.unflatten(-1, (-1, scale.shape[-1])) * scale[..., None, :]).flatten(-2)


def tokens(*size, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_every_shipped_kernel_is_in_the_table():
    assert {row[0] for row in TABLE.values()} == set(list_kernels())


@pytest.mark.parametrize("label", KERNELS)
def test_feature_dim_and_shapes(label):
    feature_map = build(label, 3, 7)
    assert feature_map.feature_dim == TABLE[label][2]
    for side in ("query", "key"):
        assert features(feature_map, tokens(2, 3, 4, 7), side).shape == (2, 3, 4, feature_map.feature_dim)


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
    kernel, options, _ = TABLE[label]
    torch.manual_seed(1)
    first = make_feature_map(kernel, 2, 4, N, 7, **options).state_dict()
    torch.manual_seed(2)
    again = make_feature_map(kernel, 2, 4, N, 7, **options).state_dict()
    other = make_feature_map(kernel, 2, 4, N, 8, **options).state_dict()
    assert all(first[name].equal(again[name]) for name in first)
    if kernel != "uniform":
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
        bound = torch.ones_like(part.log_scale) if part.bound is None else part.bound
        sides.append((features(feature_map, x, side), part.log_scale.exp() * bound))
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


def test_flexformer_n_contains_flexformer_s():
    s = make_feature_map("flexformer_s", 2, 6, N).double()
    n = make_feature_map("flexformer_n", 2, 6, N, difference_std=0.0).double()
    with torch.no_grad():
        n.frequency_1.copy_(s.frequency)
        n.frequency_2.copy_(s.frequency)
    x = tokens(1, 2, 10, 6)
    torch.testing.assert_close(features(n, x), features(s, x))


def test_flexformer_n_is_the_symmetrised_yaglom_kernel():
    """sum_i of cos(w1.x - w2.y) + cos(w2.x - w1.y) + cos(w1.(x-y)) + cos(w2.(x-y)), a quarter each."""
    n = make_feature_map("flexformer_n", 1, 4, N, difference_std=0.4).double()
    x, y = tokens(1, 1, 6, 4, seed=1), tokens(1, 1, 7, 4, seed=2)
    x1, x2 = (x @ w.mT for w in (n.frequency_1, n.frequency_2))
    y1, y2 = (y @ w.mT for w in (n.frequency_1, n.frequency_2))
    terms = [(x1, y1), (x1, y2), (x2, y1), (x2, y2)]
    yaglom = sum((a[:, :, :, None] - b[:, :, None]).cos() for a, b in terms).mean(-1) / 4
    norm = n.tau.exp()
    envelope = torch.exp((x.square().sum(-1)[..., None] + y.square().sum(-1)[:, :, None]) / norm)
    torch.testing.assert_close(features(n, x) @ features(n, y).mT, envelope * yaglom)


def complex_map(n, d, **options):
    defaults = {"complex_share": 1.0, "key_normaliser": 0.0, "affine": False}
    return make_feature_map("flexformer_c", 2, d, n, **(defaults | options)).double()


def test_flexformer_c_with_zero_imaginary_part_is_performers_features():
    d = 6
    performer = make_feature_map("performer", 2, d, N).double()
    c = complex_map(N, d, imaginary_std=0.0)
    with torch.no_grad():
        c.real.copy_(performer.projection * d**-0.25)
        c.norm_weight.fill_(-(d**0.5) / 2)
    x = tokens(1, 2, 10, d)
    phi, reference = features(c, x), features(performer, x) * N**0.5
    torch.testing.assert_close(phi[..., :N], reference)
    assert phi[..., N:].eq(0).all()


def test_flexformer_c_with_zero_real_part_is_fourier_features():
    d = 6
    s = make_feature_map("flexformer_s", 2, d, N).double()
    c = complex_map(N, d, real_std=0.0)
    with torch.no_grad():
        c.imaginary.copy_(s.frequency)
        c.norm_weight.fill_(d**0.5 / 2)
    x = tokens(1, 2, 10, d)
    torch.testing.assert_close(features(c, x), features(s, x) * N**0.5)


def test_flexformer_c_holding_frequencies_at_zero_loses_nothing():
    """complex_share below 1 is the same kernel with the imaginary parts of the other frequencies at 0."""
    half = build("flexformer_c-half", 2, 6)
    full = complex_map(2 * N - half.num_complex, 6, affine=True)
    with torch.no_grad():
        for name, parameter in full.named_parameters():
            if name == "imaginary":
                parameter.zero_()[:, : half.num_complex] = half.imaginary
            else:
                parameter.copy_(half.get_parameter(name))
    q, k = tokens(1, 2, 9, 6, seed=1), tokens(1, 2, 9, 6, seed=2)
    kernel = [features(fm, q, "query") @ features(fm, k, "key").mT for fm in (half, full)]
    torch.testing.assert_close(kernel[0], kernel[1])


@settings(max_examples=25, deadline=None)
@given(head_dim=st.integers(1, 8), n=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_flexformer_sq_is_never_negative_and_is_a_square(head_dim, n, seed):
    fm = build("flexformer_sq", 1, head_dim, n, seed)
    q, k = tokens(1, 1, 12, head_dim, seed=seed), tokens(1, 1, 12, head_dim, seed=seed + 1)
    kernel = features(fm, q, "query") @ features(fm, k, "key").mT
    assert kernel.min() > -1e-12 * kernel.abs().max()


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


def test_statistics_are_additive_and_match_the_plain_formulas():
    q, k = tokens(4, 2, 9, 3, seed=1), tokens(4, 2, 9, 3, seed=2)
    whole, first, second = (QKStatistics(2, 3) for _ in range(3))
    whole.update(q, k)
    first.update(q[:1], k[:1])
    second.update(q[1:], k[1:])
    first.merge(second)
    for name in ("query_mean", "key_mean", "query_covariance", "key_covariance"):
        torch.testing.assert_close(getattr(first, name), getattr(whole, name))
    flat = k.transpose(0, 1).flatten(1, 2)
    for head in range(2):
        torch.testing.assert_close(whole.key_covariance[head], flat[head].mT.cov(correction=0))
        assert {tuple(row) for row in whole.key_sample[head].tolist()} == {
            tuple(row) for row in flat[head].float().tolist()
        }
    assert first.key_sample.shape == whole.key_sample.shape == (2, 36, 3)
    with pytest.raises(AttnExtError, match="no token"):
        _ = QKStatistics(2, 3).key_mean


def test_matrix_power():
    x = tokens(2, 20, 4)
    matrix = x.mT @ x
    root = matrix_power(matrix, 0.5)
    torch.testing.assert_close(root @ root, matrix)
    torch.testing.assert_close(matrix_power(matrix, -1.0), torch.linalg.inv(matrix))


def test_phase_scale_sets_the_spread_of_phases():
    x = tokens(2, 500, 4, seed=3) * 3
    frequency = tokens(2, 6, 4, seed=4)
    scaled = frequency * phase_scale(frequency, x.mT @ x / 500, 0.7)
    torch.testing.assert_close((x @ scaled.mT).square().mean((1, 2)).sqrt(), torch.full((2,), 0.7, dtype=torch.float64))


def test_the_documented_example_of_a_kernel_runs_in_half_precision():
    from hf_attn_ext.attention import registry

    example = textwrap.dedent(registry.__doc__.partition("in one file:\n")[2].partition("\nAfter that")[0])
    try:
        exec(example, {})
        feature_map = make_feature_map("squared_relu", 2, 4, 3).bfloat16()
        q, k, v = torch.randn(3, 1, 2, 5, 4).bfloat16()
        assert linear_attention(q, k, v, feature_map).isfinite().all()
    finally:
        registry._KERNELS.pop("squared_relu", None)


def test_a_kernel_of_ones_own():
    @register_kernel("test_squared_relu")
    class SquaredReLU(FeatureMap):
        def __init__(self, num_heads, head_dim, num_features, seed=0):
            super().__init__(num_heads, head_dim, num_features, num_features)

        def forward(self, x, side):
            return Features(None, torch.relu(x[..., : self.num_features]) ** 2 + 0.1)

    try:
        feature_map = make_feature_map("test_squared_relu", 2, 4, 3)
        weights = attention_weights(tokens(1, 2, 5, 4), tokens(1, 2, 5, 4), feature_map)
        torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 5, dtype=torch.float64))
    finally:
        from hf_attn_ext.attention import registry

        del registry._KERNELS["test_squared_relu"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("hedgehg", 2, 4, 3), ["'hedgehg'", "Did you mean 'hedgehog'?"]),
        (("hedgehog", 2, 4, 0), ["num_features", "0"]),
        (("hedgehog", 2, 4, 2.5), ["num_features", "2.5"]),
        (("hedgehog", 0, 4, 2), ["num_heads", "0"]),
        (("hedgehog", 2, 4, 2**16 + 1), ["num_features", "at most 65536", "65537"]),
        (("hedgehog", 2, 4, 3, -1), ["seed", "-1"]),
        (("hedgehog", 2, 4, 3, "x"), ["seed", "'x'"]),
    ],
)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(AttnExtError) as caught:
        make_feature_map(*arguments)
    assert all(word in str(caught.value) for word in words) and "\n" not in str(caught.value)


def test_unknown_option_is_named_with_the_nearest():
    with pytest.raises(AttnExtError, match="no option 'roh'. Did you mean 'rho'?"):
        make_feature_map("flexformer_n", 2, 4, 3, roh=0.1)


@pytest.mark.parametrize(
    ("kernel", "options", "words"),
    [
        ("flexformer_c", {"rho": "x"}, ["'rho'", "finite number", "'x'"]),
        ("flexformer_c", {"affine": 1}, ["'affine'", "true or false", "1"]),
        ("flexformer_s", {"frequency_std": float("inf")}, ["'frequency_std'", "inf"]),
        ("hedgehog", {"weight_std": None}, ["'weight_std'", "None"]),
    ],
)
def test_an_option_of_the_wrong_type_is_named(kernel, options, words):
    with pytest.raises(AttnExtError) as caught:
        make_feature_map(kernel, 2, 4, 3, **options)
    assert all(word in str(caught.value) for word in words) and "\n" not in str(caught.value)


def test_an_integer_does_where_a_number_is_asked_for():
    ours = make_feature_map("flexformer_c", 2, 4, 3, key_normaliser=1, spread=None).state_dict()
    assert ours["key_normaliser"].equal(torch.ones(2))


def test_a_name_cannot_be_taken_twice():
    with pytest.raises(AttnExtError, match="already registered"):

        @register_kernel("hedgehog")
        class Other(FeatureMap):
            pass
