"""The laws of single published kernels: each is its formula."""

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
    make_feature_map,
    naive_attention,
)
from hf_attn_ext.errors import AttnExtError
from tests.attention.kernels import build, features, tokens


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
        with pytest.raises(AttnExtError, match="9 or more tokens, but max_length is 8"):
            form(q, k, v, fm)
    mask[:, 4] = False
    assert linear_attention(q, k, v, fm, key_padding_mask=mask).isfinite().all()
    _, state = causal_attention(*(x[:, :, :8] for x in (q, k, v)), fm)
    with pytest.raises(AttnExtError, match="max_length is 8"):
        causal_attention(*(x[:, :, 8:] for x in (q, k, v)), fm, state)
    with pytest.raises(RuntimeError, match="longer than max_length = 8"):
        torch.compile(linear_attention, backend="eager", fullgraph=True)(q, k, v, fm)
    # A graph that raises inside an autocast region never leaves it: later tests would find casts of other dtypes kept.
    torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()


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
