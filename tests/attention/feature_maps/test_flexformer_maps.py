"""The laws of single FlexFormer kernels: their formulas, their limits, what each contains of the others."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attn_ext.attention import make_feature_map
from tests.attention.kernels import N, build, features, tokens


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
    half = build("flexformer_c", 2, 6)
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
