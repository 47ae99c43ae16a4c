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
    causal_attention,
    linear_attention,
    list_kernels,
    make_feature_map,
    naive_attention,
    register_kernel,
)
from hf_attn_ext.attention.feature_maps.moments import matrix_power, phase_scale
from hf_attn_ext.errors import AttnExtError

from .kernels import KERNELS, TABLE, D, N, build

NOTHING_RANDOM = ("cosformer", "elu", "polaformer", "uniform")


def features(feature_map, x, side="key"):
    """The features multiplied out, without stabilisation; positions count from 0."""
    positions = torch.arange(x.shape[2]).expand(x.shape[0], -1)
    part = feature_map(x, side, positions) if feature_map.uses_positions else feature_map(x, side)
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
    feature_map = build(label, 3, D)
    assert feature_map.feature_dim == TABLE[label][2]
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
    kernel, options, _ = TABLE[label]
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
def test_gradients_reach_every_parameter(label):
    feature_map = build(label, 2, 6)
    parameters = dict(feature_map.named_parameters())
    q, k, v = tokens(3, 1, 2, 12, 6, seed=5).unbind()
    loss = linear_attention(q, k, v, feature_map).square().sum()
    gradients = torch.autograd.grad(loss, list(parameters.values())) if parameters else ()
    for name, gradient in zip(parameters, gradients, strict=True):
        assert gradient.isfinite().all() and gradient.reshape(len(gradient), -1).ne(0).any(1).all(), name


def test_elu_is_linear_attention_as_published():
    fm = make_feature_map("elu", 2, 6, 3)
    q, k, v = tokens(3, 1, 2, 10, 6).unbind()
    weights = (torch.nn.functional.elu(q) + 1) @ (torch.nn.functional.elu(k) + 1).mT
    expected = weights / weights.sum(-1, keepdim=True) @ v
    torch.testing.assert_close(linear_attention(q, k, v, fm), expected)
    low = fm(torch.full((1, 2, 1, 6), -80.0), "key").values
    assert (low > 0).all()
    x = torch.zeros(1, 2, 1, 6, requires_grad=True)
    fm(x, "key").values.sum().backward()
    assert x.grad.eq(1).all()


def test_rfa_converges_to_softmax_of_the_cosine():
    """The error of the weights falls about as n^-1/2: 8 seeds each, n = 64 to 4096."""
    sigma = 1.3
    q, k = tokens(1, 1, 24, 8, seed=1), tokens(1, 1, 24, 8, seed=2)
    cosine = torch.nn.functional.cosine_similarity(q[:, :, :, None], k[:, :, None], dim=-1)
    softmax = (sigma**2 * cosine).softmax(-1)
    errors = []
    for n in (64, 512, 4096):
        maps = [make_feature_map("rfa", 1, 8, n, seed, rho=0.0, frequency_std=sigma).double() for seed in range(8)]
        errors.append(sum((attention_weights(q, k, fm) - softmax).square().mean() for fm in maps).div(8).sqrt().item())
    slope = math.log(errors[-1] / errors[0]) / math.log(4096 / 64)
    assert -0.65 < slope < -0.35, errors
    assert errors[-1] < 0.05 * softmax.mean()


def test_rfa_is_a_gaussian_kernel_of_directions():
    fm = make_feature_map("rfa", 2, 4, 2**16).double()
    with torch.no_grad():
        fm.sigma.copy_(tokens(2, 4, seed=3))
    x = tokens(1, 2, 9, 4)
    phi = features(fm, x)
    unit = x / x.square().sum(-1, keepdim=True).sqrt() * fm.sigma[:, None]
    distance = (unit[:, :, :, None] - unit[:, :, None]).square().sum(-1)
    torch.testing.assert_close(phi @ phi.mT, (-distance / 2).exp(), rtol=0, atol=0.02)
    torch.testing.assert_close(features(fm, 7.0 * x), phi)
    torch.testing.assert_close(phi.square().sum(-1), torch.ones(1, 2, 9, dtype=torch.float64))


def cosformer_weights(q, k, max_length, mask):
    """The formula, pair by pair, for one row of real and padded tokens."""
    place = (mask.cumsum(-1) - 1).double()
    distance = place[:, None] - place[None, :]
    weights = (q.clamp_min(0) + 1e-6) @ (k.clamp_min(0) + 1e-6).mT * torch.cos(math.pi * distance / (2 * max_length))
    weights = weights * mask
    return weights / weights.sum(-1, keepdim=True)


@pytest.mark.parametrize("real", ["111111111111", "000111111111", "111111110000", "010110001111"])
def test_cosformer_is_its_formula(real):
    fm = make_feature_map("cosformer", 2, 6, 1, max_length=12)
    q, k = tokens(2, 1, 2, 12, 6).unbind()
    mask = torch.tensor([place == "1" for place in real])
    expected = cosformer_weights(q, k, 12, mask)
    assert (expected >= 0).all()
    weights = attention_weights(q, k, fm, key_padding_mask=mask[None])
    torch.testing.assert_close(weights[:, :, mask], expected[:, :, mask])


def test_cosformer_weighs_the_last_position_it_serves():
    """In float32, at the longest max_length, products at the largest distance are still positive."""
    for longest in (1, 2, 4096, 2**20):
        fm = make_feature_map("cosformer", 1, 2, 1, max_length=longest)
        ends = torch.tensor([[0, longest - 1]])
        phi = fm(torch.ones(1, 1, 2, 2), "key", ends).values
        assert (phi >= 0).all() and (phi @ phi.mT > 0).all()


def test_cosformer_without_a_shared_channel_averages_by_distance():
    """Not 0 / 0: outputs and gradients stay finite, also where the gradient that comes in is large."""
    fm = make_feature_map("cosformer", 1, 2, 1, max_length=3)
    q = torch.tensor([[-1.0, -2.0], [1.0, -1.0], [1.0, 1.0]])[None, None].requires_grad_()
    k = torch.tensor([[-1.0, 2.0], [-3.0, 2.0], [-1.0, 2.0]])[None, None].requires_grad_()
    v = torch.randn(1, 1, 3, 2, requires_grad=True)
    distance = torch.arange(3.0)[:, None] - torch.arange(3.0)
    expected = torch.cos(math.pi * distance / 6)
    torch.testing.assert_close(attention_weights(q, k, fm)[0, 0], expected / expected.sum(-1, keepdim=True))
    for form in (linear_attention, naive_attention):
        gradients = torch.autograd.grad((1e4 * form(q, k, v, fm)).sum(), [q, k, v])
        assert all(x.isfinite().all() and x.abs().max() < 1e5 for x in gradients)


def test_cosformer_refuses_what_is_longer_than_max_length():
    fm = make_feature_map("cosformer", 1, 2, 1, max_length=8)
    q, k, v = tokens(3, 2, 1, 9, 2).unbind()
    mask = torch.ones(2, 9, dtype=torch.bool)
    for form in (linear_attention, naive_attention, lambda *x: causal_attention(*x)[0]):
        with pytest.raises(AttnExtError, match="9 or more tokens, max_length is 8"):
            form(q, k, v, fm)
    mask[:, 4] = False
    assert linear_attention(q, k, v, fm, key_padding_mask=mask).isfinite().all()
    _, state = causal_attention(*(x[:, :, :8] for x in (q, k, v)), fm)
    with pytest.raises(AttnExtError, match="max_length is 8"):
        causal_attention(*(x[:, :, 8:] for x in (q, k, v)), fm, state)
    with pytest.raises(RuntimeError, match="longer than max_length = 8"):
        torch.compile(linear_attention, backend="eager", fullgraph=True)(q, k, v, fm)


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


def polaformer_kernel(fm, q, k):
    """Same-signed plus w times opposite-signed similarity, from the formula."""
    power = 1 + fm.alpha / (1 + (-fm.power).exp())
    sides = []
    for x in (q * fm.scale[:, None], k * fm.scale[:, None]):
        sides.append([torch.where(sign * x > 0, x.abs(), 0.0) ** power[:, None] for sign in (1, -1)])
    (q_plus, q_minus), (k_plus, k_minus) = sides
    weight = 1 / (1 + (-fm.opposite).exp())[:, None, None]
    same = q_plus @ k_plus.mT + q_minus @ k_minus.mT
    return same, weight * (q_plus @ k_minus.mT + q_minus @ k_plus.mT)


def test_polaformer_is_same_plus_weighted_opposite_similarity():
    fm = build("polaformer", 2, 6)
    q, k = tokens(1, 2, 9, 6, seed=1), tokens(1, 2, 8, 6, seed=2)
    same, opposite = polaformer_kernel(fm, q, k)
    torch.testing.assert_close(features(fm, q, "query") @ features(fm, k, "key").mT, same + opposite)
    plain = make_feature_map("polaformer", 2, 6, 1, alpha=0.0, opposite_weight=0.25).double()
    same, opposite = polaformer_kernel(plain, q, k)
    torch.testing.assert_close(same - opposite / 0.25, q @ k.mT / 6**0.5)
    torch.testing.assert_close(features(plain, q, "query") @ features(plain, k, "key").mT, same + opposite)


@settings(max_examples=25, deadline=None)
@given(length=st.integers(2, 16), head_dim=st.integers(1, 8), weight=st.floats(0.01, 0.99), seed=st.integers(0, 10**6))
def test_polaformer_is_positive_semidefinite(length, head_dim, weight, seed):
    fm = make_feature_map("polaformer", 1, head_dim, 1, opposite_weight=weight).double()
    x = tokens(1, 1, length, head_dim, seed=seed)
    gram = (features(fm, x, "query") @ features(fm, x, "key").mT)[0, 0]
    torch.testing.assert_close(gram, gram.mT)
    assert torch.linalg.eigvalsh(gram / gram.diagonal().max())[0] > -1e-10


def test_polaformer_calibrates_its_scale_to_the_tokens():
    fm = make_feature_map("polaformer", 2, 6, 1)
    statistics = QKStatistics(2, 6)
    q, k = 9 * tokens(1, 2, 50, 6, seed=1), tokens(1, 2, 50, 6, seed=2)
    statistics.update(q, k)
    fm.calibrate(statistics)
    scaled = torch.cat([q, k], 2) * fm.scale.double()[:, None]
    torch.testing.assert_close(scaled.square().mean((0, 2, 3)), torch.ones(2, dtype=torch.float64), rtol=1e-5, atol=0)


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
        ("cosformer", {"max_length": 512.0}, ["'max_length'", "whole number", "512.0"]),
        ("cosformer", {"max_length": True}, ["'max_length'", "whole number", "True"]),
        ("cosformer", {"max_length": 0}, ["max_length", "between 1 and 1048576", "0"]),
        ("polaformer", {"opposite_weight": 1.0}, ["opposite_weight", "between 0 and 1", "1.0"]),
        ("polaformer", {"alpha": -1}, ["alpha", "at least 0", "-1"]),
    ],
)
def test_an_option_of_the_wrong_type_or_out_of_range_is_named(kernel, options, words):
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
