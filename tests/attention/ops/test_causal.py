"""The causal form in chunks, from a state, and token by token: against the dense reference, in float64."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attn_ext.attention import (
    BoundMaps,
    causal_attention,
    linear_attention,
    make_feature_map,
    naive_attention,
    plain_forms,
)
from hf_attn_ext.attention.ops import causal as causal_form
from hf_attn_ext.attention.ops import inputs as form_inputs
from hf_attn_ext.attention.ops.causal_product import causal_product
from hf_attn_ext.attention.ops.order import order_attention as partial_order
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import masks
from tests.attention.kernels import KERNELS, build

from .test_forms import inputs, random_padding


@pytest.fixture(params=["one reference", "reference per query", "small blocks"])
def way(request, monkeypatch):
    """The ways a block is computed; on a CPU the second is only taken where amplitudes lie far apart."""
    if request.param == "reference per query":
        monkeypatch.setattr(causal_form, "_narrow", lambda amplitude, reference: False)
    if request.param == "small blocks":
        monkeypatch.setattr(form_inputs, "CPU_BLOCK", 1)
    return request.param


def outputs_and_gradients(form, tensors, feature_map, **options):
    tensors = [x.detach().requires_grad_() for x in tensors]
    out = form(*tensors, feature_map, **options)
    wanted = [*tensors, *feature_map.parameters()]
    gradients = torch.autograd.grad((out * out.detach().cos()).sum(), wanted, allow_unused=True, materialize_grads=True)
    return out, *gradients


@pytest.mark.parametrize("length", [63, 64, 65, 200])
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_chunks_equal_the_dense_form(kernel, length, way):
    feature_map = build(kernel, 2, 5)
    mask = random_padding(2, length, 0)
    mask[0, : length // 2] = False  # a padded start: queries without any key
    tensors = inputs(2, 2, length, 5, spread=2.0)
    fast, naive = (
        outputs_and_gradients(form, tensors, feature_map, causal=True, key_padding_mask=mask)
        for form in (linear_attention, naive_attention)
    )
    for one, other in zip(fast, naive, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@settings(max_examples=8, deadline=None)
@given(cuts=st.lists(st.integers(1, 90), min_size=1, max_size=4), padded=st.booleans(), seed=st.integers(0, 10**6))
def test_parts_of_any_length_equal_the_whole(kernel, cuts, padded, seed):
    feature_map = build(kernel, 2, 4)
    length = sum(cuts)
    q, k, v = inputs(2, 2, length, 4, seed)
    mask = random_padding(2, length, seed) if padded else None
    whole = naive_attention(q, k, v, feature_map, causal=True, key_padding_mask=mask)
    state, start, parts = None, 0, []
    for cut in cuts:
        at = slice(start, start + cut)
        part, state = causal_attention(
            q[:, :, at], k[:, :, at], v[:, :, at], feature_map, state, None if mask is None else mask[:, at]
        )
        parts.append(part)
        start += cut
    torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=1e-9, atol=1e-10)
    assert state.length.tolist() == ([length] * 2 if mask is None else mask.sum(1).tolist())


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_token_by_token_equals_the_whole_and_the_state_keeps_its_size(kernel):
    feature_map = build(kernel, 2, 4)
    q, k, v = inputs(2, 2, 70, 4)
    mask = random_padding(2, 70, 1)
    whole = naive_attention(q, k, v, feature_map, causal=True, key_padding_mask=mask)
    state, sizes = None, set()
    for i in range(70):
        at = slice(i, i + 1)
        out, state = causal_attention(q[:, :, at], k[:, :, at], v[:, :, at], feature_map, state, mask[:, at])
        torch.testing.assert_close(out, whole[:, :, at], rtol=1e-9, atol=1e-10)
        sizes.add(state.nbytes)
    assert len(sizes) == 1


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_no_query_sees_a_later_key_however_large(kernel):
    """Keys that grow a hundredfold: in float32 a shared reference would push the early ones out of range."""
    feature_map = build(kernel, 2, 6).float()
    q, k, v = (x.float() for x in inputs(1, 2, 130, 6))
    first = linear_attention(q[:, :, :70], k[:, :, :70], v[:, :, :70], feature_map, causal=True)
    k[:, :, 70:] *= 100
    both = linear_attention(q, k, v, feature_map, causal=True)
    assert both.isfinite().all()
    torch.testing.assert_close(both[:, :, :70], first, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_a_row_without_keys_has_no_gradient_that_is_not_finite(kernel):
    feature_map = build(kernel, 2, 4).float()
    q, k, v = (x.float().requires_grad_() for x in inputs(2, 2, 6, 4))
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[0] = False
    mask[1, :3] = False
    for causal in (False, True):
        for form in (linear_attention, naive_attention):
            out = form(q, k, v, feature_map, causal=causal, key_padding_mask=mask)
            gradients = torch.autograd.grad(out, [q, k, v], 100 * torch.ones_like(out), allow_unused=True)
            assert all(gradient is None or gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_finite_over_8192_tokens(kernel, dtype):
    """The sum of keys would overflow in fp16."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (2 * torch.randn(3, 1, 1, 8192, 8, generator=generator)).to(dtype).unbind()
    feature_map = build(kernel, 1, 8).float()
    out = linear_attention(q, k, v, feature_map, causal=True)
    exact = linear_attention(q.float(), k.float(), v.float(), feature_map, causal=True)
    assert out.dtype == dtype and out.isfinite().all()
    torch.testing.assert_close(out.float(), exact, rtol=1e-2, atol=1e-2)


def test_the_causal_product_has_the_gradients_of_its_definition():
    q, k, v, state = (torch.randn(2, 2, 11, 3, dtype=torch.float64, requires_grad=True) for _ in range(4))
    state = torch.randn(2, 2, 3, 3, dtype=torch.float64, requires_grad=True)

    def dense(q, k, v, state):
        inside = (q @ k.mT).tril()
        return q @ state + inside @ v, state + k.mT @ v

    for chunk in (4, 11, 64):
        results = [f(q, k, v, state) for f in (dense, partial(causal_product, chunk=chunk))]
        gradients = [
            torch.autograd.grad((out.sin().sum() + after.cos().sum()), [q, k, v, state]) for out, after in results
        ]
        for one, other in zip([*results[0], *gradients[0]], [*results[1], *gradients[1]], strict=True):
            torch.testing.assert_close(one, other)


def test_gradients_of_gradients_are_refused_where_a_part_would_be_missing():
    q, k, v = (x.requires_grad_() for x in inputs(1, 2, 9, 4))
    out = linear_attention(q, k, v, build("flexformer_p", 2, 4), causal=True)
    (gradient,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    with pytest.raises(AttnExtError, match="naive_attention"):
        torch.autograd.grad(gradient.square().sum(), q)


@pytest.mark.parametrize(
    "options", [{"causal": True}, {"order": masks.causal(9)}, {"order": masks.butterfly(3)}], ids=str
)
def test_gradients_of_gradients_are_refused_wherever_the_weight_lies(options):
    """With another path to the weight, autograd alone would drop a part unseen."""
    x = inputs(1, 2, 7 if "butterfly" in str(options) else 9, 4)[0]
    weight = torch.eye(4, dtype=torch.float64, requires_grad=True)
    tokens = x @ weight
    out = linear_attention(tokens, tokens, tokens, build("flexformer_p", 2, 4), **options)
    (gradient,) = torch.autograd.grad(out.square().sum(), weight, create_graph=True)
    with pytest.raises(AttnExtError, match="no gradients of gradients: use naive_attention"):
        torch.autograd.grad(gradient.square().sum() + weight.sum(), weight)


def opposed(last, length, signed=False):
    """Queries and early keys of one sign on the one axis that counts, so that their features hardly meet; a last key
    with an amplitude of ``last ** 2``, the others' being 25.
    """
    feature_map = make_feature_map("flexformer_c" if signed else "flexformer_p", 1, 4, 6)
    with torch.no_grad():
        feature_map.norm_weight.fill_(4.0)
        feature_map.real.zero_()
        half = feature_map.real.shape[1] // 2
        feature_map.real[:, :half, 0], feature_map.real[:, half:, 0] = 4.0, -4.0
    q, k = torch.zeros(2, 1, 1, length, 4).unbind()
    q[..., 0], k[..., 0], k[..., -1, 0] = 4.25, -5.0, last
    v = torch.randn(1, 1, length, 4, generator=torch.Generator().manual_seed(0))
    return feature_map, q, k, v


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("length", [3, 64, 70, 130])
@pytest.mark.parametrize("last", [5.0, 6.5, 7.9])
def test_a_later_key_never_hides_what_is_small(last, length, signed):
    """Neither the amplitudes, 37 apart, nor the products of features are out of range; both together are."""
    feature_map, q, k, v = opposed(last, length, signed)
    mask = torch.ones(1, length, dtype=torch.bool)
    for padded in (0, 1):
        mask[:, :padded] = False
        naive = naive_attention(q, k, v, feature_map, causal=True, key_padding_mask=mask)
        assert naive[:, :, padded:].abs().amax(-1).gt(1e-2).all()
        for options in ({"causal": True}, {"order": masks.causal(length)}):
            with plain_forms():
                ours = outputs_and_gradients(linear_attention, (q, k, v), feature_map, key_padding_mask=mask, **options)
            torch.testing.assert_close(ours[0], naive, rtol=1e-3, atol=1e-4)
            assert all(gradient.isfinite().all() for gradient in ours[1:])
    with plain_forms():
        first, state = causal_attention(q[:, :, :-1], k[:, :, :-1], v[:, :, :-1], feature_map)
        rest, _ = causal_attention(q[:, :, -1:], k[:, :, -1:], v[:, :, -1:], feature_map, state)
    naive = naive_attention(q, k, v, feature_map, causal=True)
    torch.testing.assert_close(torch.cat([first, rest], 2), naive, rtol=1e-3, atol=1e-4)


def test_rows_without_keys_cost_no_second_way(monkeypatch):
    """A padded start, and documents of padding, whose rows are truly empty."""
    monkeypatch.setattr(causal_form, "_reference_per_query", None)
    monkeypatch.setattr(partial_order, "order_sums", None)
    mask = torch.ones(1, 70, dtype=torch.bool)
    mask[:, :20] = False
    tensors = inputs(1, 2, 70, 4)
    for options in ({"causal": True}, {"order": masks.document([20, 50])}):
        with plain_forms():
            out = linear_attention(*tensors, build("flexformer_p", 2, 4), key_padding_mask=mask, **options)
        assert out[:, :, :20].eq(0).all()


def test_gradients_flow_through_a_state():
    feature_map = build("flexformer_p", 2, 4)
    q, k, v = (x.requires_grad_() for x in inputs(1, 2, 80, 4))
    whole = naive_attention(q, k, v, feature_map, causal=True)
    first, state = causal_attention(q[:, :, :40], k[:, :, :40], v[:, :, :40], feature_map)
    rest, _ = causal_attention(q[:, :, 40:], k[:, :, 40:], v[:, :, 40:], feature_map, state)
    parts = torch.cat([first, rest], 2)
    weight = torch.randn_like(whole)
    for one, other in zip(*(torch.autograd.grad((x * weight).sum(), [q, k, v]) for x in (whole, parts)), strict=True):
        torch.testing.assert_close(one, other)


def test_a_state_of_another_batch_or_model_is_refused():
    feature_map = make_feature_map("flexformer_p", 2, 4, 8)
    x = torch.randn(2, 2, 5, 4)
    _, state = causal_attention(x, x, x, feature_map)
    with pytest.raises(AttnExtError, match="holds 2 sequences, but this call has 1"):
        causal_attention(x[:1], x[:1], x[:1], feature_map, state)
    with pytest.raises(AttnExtError, match="another model"):
        causal_attention(x, x, x, make_feature_map("flexformer_p", 2, 4, 9), state)
    assert state.select(torch.tensor([1, 1, 0])).batch_size == 3


def test_a_state_of_another_dtype_or_kernel_is_refused():
    """Also where the sizes agree."""
    x = torch.randn(2, 2, 5, 4)
    maps = [make_feature_map("flexformer_p", 2, 4, 2), make_feature_map("elu", 2, 4, 4)]
    maps.append(make_feature_map("flexformer_c", 2, 4, 2, complex_share=1.0))
    assert len({one.feature_dim for one in maps}) == 1
    states = [causal_attention(x, x, x, one)[1] for one in maps]
    for feature_map, own in zip(maps, states, strict=True):
        for state in states:
            for tokens in (x, x[:, :, :1]):
                if state is own:
                    causal_attention(tokens, tokens, tokens, feature_map, state)
                    continue
                with pytest.raises(AttnExtError, match="another kernel"):
                    causal_attention(tokens, tokens, tokens, feature_map, state)
        with pytest.raises(AttnExtError, match=r"the state is torch.float32, but this call computes in torch.float64"):
            causal_attention(x.double(), x.double(), x.double(), feature_map, own)
        causal_attention(x.bfloat16(), x.bfloat16(), x.bfloat16(), feature_map, own)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_stacked_maps_under_vmap(kernel, grad):
    q, k, v = inputs(1, 2, 70, 4)

    class Attention(torch.nn.Module):
        def __init__(self, seed):
            super().__init__()
            self.feature_map = build(kernel, 2, 4, seed=seed)

        def forward(self, causal):
            if causal:
                return causal_attention(q, k, v, self.feature_map, maps=kept)[0]
            return linear_attention(q, k, v, self.feature_map)

    kept = BoundMaps()
    layers = [Attention(seed) for seed in (0, 1)]
    stacked = torch.func.stack_module_state(layers)
    for causal in (True, False):
        with torch.set_grad_enabled(grad):
            call = partial(torch.func.functional_call, layers[0], args=(causal,))
            together = torch.vmap(lambda *state, call=call: call(state))(*stacked) if any(stacked) else []
            for out, layer in zip(together, layers, strict=False):
                torch.testing.assert_close(out, layer(causal))
