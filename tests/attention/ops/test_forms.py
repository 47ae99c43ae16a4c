"""Fast forms against the dense reference, in float64, outputs and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attn_ext.attention import attention_weights, linear_attention, make_feature_map, naive_attention
from hf_attn_ext.errors import AttnExtError
from tests.attention.kernels import KERNELS, build


def inputs(batch, heads, length, head_dim, seed=0, spread=1.0):
    generator = torch.Generator().manual_seed(seed)
    size = (3, batch, heads, length, head_dim)
    return [spread * x for x in torch.randn(size, generator=generator, dtype=torch.float64).unbind()]


def random_padding(batch, length, seed):
    """At least one real token a row, the others anywhere: left, right, inside."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(batch, length, generator=generator) > 0.4
    mask[torch.arange(batch), torch.randint(length, (batch,), generator=generator)] = True
    return mask


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@settings(max_examples=15, deadline=None)
@given(
    batch=st.integers(1, 3),
    heads=st.integers(1, 3),
    length=st.integers(1, 20),
    head_dim=st.integers(1, 9),
    padded=st.booleans(),
    causal=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_linear_equals_naive(kernel, batch, heads, length, head_dim, padded, causal, seed):
    feature_map = build(kernel, heads, head_dim)
    mask = random_padding(batch, length, seed) if padded else None
    results = []
    for form in (linear_attention, naive_attention):
        q, k, v = (x.requires_grad_() for x in inputs(batch, heads, length, head_dim, seed))
        out = form(q, k, v, feature_map, causal=causal, key_padding_mask=mask)
        parameters = list(feature_map.parameters())
        gradients = torch.autograd.grad(
            (out * out.detach().cos()).sum(), [q, k, v, *parameters], allow_unused=True, materialize_grads=True
        )
        results.append((out, *gradients))
    for fast, naive in zip(*results, strict=True):
        torch.testing.assert_close(fast, naive, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@settings(max_examples=10, deadline=None)
@given(length=st.integers(2, 16), seed=st.integers(0, 10**6))
def test_padding_is_exact(kernel, length, seed):
    """Real tokens come out as in the unpadded run; masked inputs get gradient exactly 0, whatever they hold."""
    feature_map = build(kernel, 2, 6)
    mask = random_padding(3, length, seed)
    q, k, v = inputs(3, 2, length, 6, seed)
    garbage = ~mask[:, None, :, None]
    q, k, v = (x.masked_fill(garbage, 50.0).requires_grad_() for x in (q, k, v))
    out = linear_attention(q, k, v, feature_map, key_padding_mask=mask)
    real = out.masked_fill(garbage, 0.0)
    gradients = torch.autograd.grad(real.square().sum(), [q, k, v], allow_unused=True, materialize_grads=True)
    for gradient in gradients:
        assert gradient.masked_select(garbage).eq(0).all()
    for row in range(3):
        keep = mask[row]
        alone = linear_attention(*(x[row : row + 1, :, keep] for x in (q, k, v)), feature_map)
        torch.testing.assert_close(out[row : row + 1, :, keep], alone, rtol=0, atol=1e-10)
        single = [x.float()[row : row + 1] for x in (q, k, v)]
        padded = linear_attention(*single, build(kernel, 2, 6).float(), key_padding_mask=mask[row : row + 1])
        unpadded = linear_attention(*(x[:, :, keep] for x in single), build(kernel, 2, 6).float())
        assert (padded[:, :, keep] - unpadded).norm() / unpadded.norm() < 1e-4


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_sequence_without_real_tokens_gives_zero(kernel):
    q, k, v = inputs(2, 2, 5, 6)
    mask = torch.zeros(2, 5, dtype=torch.bool)
    mask[1] = True
    for form in (linear_attention, naive_attention):
        out = form(q, k, v, build(kernel, 2, 6), key_padding_mask=mask)
        assert out[0].eq(0).all() and out[1].isfinite().all()


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_inputs_are_computed_in_float32(kernel, dtype):
    """10,000 tokens: a half-precision sum of keys would overflow or stop growing."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, 1, 2, 10_000, 8, generator=generator) * 2).to(dtype).unbind()
    feature_map = build(kernel, 2, 8).float()
    out = linear_attention(q, k, v, feature_map)
    assert out.dtype == dtype and out.isfinite().all()
    exact = linear_attention(q.float(), k.float(), v.float(), feature_map)
    torch.testing.assert_close(out.float(), exact, rtol=1e-2, atol=1e-2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear_attention(q.float(), k.float(), v.float(), feature_map).sub(exact).abs().max() < 1e-5


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_huge_queries_and_keys_stay_finite(kernel):
    """Trained heads have |q|^2 / sqrt d of 10 and more; the exponentials must not overflow nor all vanish."""
    q, k, v = (x.float() for x in inputs(1, 2, 64, 8, spread=12.0))
    feature_map = build(kernel, 2, 8).float()
    for x in (q, v):
        x.requires_grad_()
    out = linear_attention(q, k, v, feature_map)
    out.sum().backward()
    assert out.isfinite().all() and (q.grad is None or q.grad.isfinite().all())


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_output_is_bounded_by_the_floor(kernel):
    """|out| <= max |v| / rho for signed kernels, max |v| for positive ones."""
    feature_map = build(kernel, 2, 8)
    for seed in range(20):
        q, k, v = inputs(1, 2, 40, 8, seed, spread=4.0)
        limit = v.abs().max() / (feature_map.rho if feature_map.signed else 1.0)
        assert linear_attention(q, k, v, feature_map).abs().max() <= limit * (1 + 1e-9)


def test_scaling_is_split_over_queries_and_keys():
    """A model with scores scaled by s: as softmax would see q and k multiplied by (s sqrt d)^1/2 each."""
    q, k, v = inputs(1, 2, 9, 4)
    feature_map = build("flexformer_s", 2, 4)
    factor = (0.3 * 4**0.5) ** 0.5
    torch.testing.assert_close(
        linear_attention(q, k, v, feature_map, scaling=0.3),
        linear_attention(q * factor, k * factor, v, feature_map),
    )


def test_dropout_drops_whole_tokens_on_the_value_side():
    q, k, _ = inputs(1, 1, 200, 4)
    v = torch.eye(200, dtype=torch.float64)[None, None]
    feature_map = build("hedgehog", 1, 4)
    whole = linear_attention(q, k, v, feature_map)
    torch.manual_seed(0)
    ratio = linear_attention(q, k, v, feature_map, dropout_p=0.25) / whole
    assert (ratio == ratio[:, :, :1]).all() or torch.allclose(ratio, ratio[:, :, :1].expand_as(ratio))
    kept = ratio[0, 0, 0] > 0.5
    torch.testing.assert_close(ratio[0, 0, 0, kept], torch.full_like(ratio[0, 0, 0, kept], 1 / 0.75))
    assert 0.6 < kept.double().mean() < 0.9


def test_naive_takes_any_mask_and_causal():
    q, k, v = inputs(2, 2, 7, 4)
    feature_map = build("flexformer_n", 2, 4)
    lower = torch.ones(7, 7, dtype=torch.bool).tril()
    causal = naive_attention(q, k, v, feature_map, causal=True)
    torch.testing.assert_close(causal, naive_attention(q, k, v, feature_map, mask=lower))
    prefix = naive_attention(q[:, :, :3], k[:, :, :3], v[:, :, :3], feature_map)
    torch.testing.assert_close(causal[:, :, 2], prefix[:, :, 2])
    weights = attention_weights(q, k, feature_map, mask=lower.expand(2, 7, 7))
    assert weights.masked_select(~lower).eq(0).all()


def test_weights_of_a_subset_of_queries():
    q, k, _ = inputs(2, 2, 9, 4)
    feature_map = build("flexformer_p", 2, 4)
    chosen = torch.tensor([1, 5, 6])
    some = attention_weights(q[:, :, chosen], k, feature_map)
    torch.testing.assert_close(some, attention_weights(q, k, feature_map)[:, :, chosen])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key_padding_mask": torch.ones(1, 5, 5, dtype=torch.bool)}, "naive_attention"),
        ({"key_padding_mask": torch.ones(1, 5)}, "bool"),
        ({"q": torch.zeros(1, 3, 5, 4)}, "(1, 3, 5, 4)"),
        ({"v": torch.zeros(1, 2, 6, 4)}, "(1, 2, 6, 4)"),
        ({"k": torch.zeros(2, 2, 5, 4), "v": torch.zeros(2, 2, 5, 4)}, "batch size"),
        ({"causal": True, "q": torch.zeros(1, 2, 4, 4)}, "as many queries as keys, got 4 and 5"),
        ({"order": object()}, "order"),
        ({"v": torch.zeros(1, 2, 5, 4, dtype=torch.int64)}, "value has dtype torch.int64"),
        ({"q": torch.zeros(1, 2, 5, 4, dtype=torch.complex64)}, "query has dtype torch.complex64"),
        ({"scaling": -1.0}, "scaling"),
        ({"scaling": float("nan")}, "nan"),
        ({"dropout_p": 1.0}, "dropout_p"),
        ({"dropout_p": -0.1}, "-0.1"),
    ],
)
def test_bad_input_is_named(change, message):
    arguments = {name: torch.zeros(1, 2, 5, 4) for name in ("q", "k", "v")} | change
    with pytest.raises(AttnExtError) as caught:
        linear_attention(feature_map=make_feature_map("hedgehog", 2, 4, 3), **arguments)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_mask_for_another_batch_size_is_named():
    q, k, v = inputs(2, 2, 5, 4)
    feature_map = build("hedgehog", 2, 4)
    one, three = (torch.ones(batch, 5, 5, dtype=torch.bool) for batch in (1, 3))
    torch.testing.assert_close(naive_attention(q, k, v, feature_map, mask=one), naive_attention(q, k, v, feature_map))
    with pytest.raises(AttnExtError, match=r"\(3, 5, 5\)"):
        naive_attention(q, k, v, feature_map, mask=three)


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_no_key_at_all_gives_zero(kernel):
    q, k, v = inputs(2, 2, 5, 4)
    feature_map = build(kernel, 2, 4)
    for attention in (linear_attention, naive_attention):
        assert attention(q, k[:, :, :0], v[:, :, :0], feature_map).eq(0).all()
        assert attention(q[:, :, :0], k[:, :, :0], v[:, :, :0], feature_map).shape == (2, 2, 0, 4)
