"""The native op against the dense reference in float64, values and all gradients; where it gives way to torch."""

import contextlib
import copy
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_attn_ext.attention import (
    causal_attention,
    linear_attention,
    make_feature_map,
    naive_attention,
    plain_forms,
    two_stream_attention,
)
from hf_attn_ext.attention.feature_maps.flexformer_p import FlexformerP
from hf_attn_ext.attention.native import library
from hf_attn_ext.attention.native.operators import softmax_attention, softmax_attention_backward
from hf_attn_ext.errors import AttnExtError
from tests.attention.kernels import build
from tests.attention.ops.test_causal import outputs_and_gradients
from tests.attention.ops.test_forms import inputs, random_padding


def feature_map_of(heads, head_dim, num_features=5, **options):
    """flexformer_p in float64 with every parameter off its initial value, norms and log-sums counting."""
    feature_map = make_feature_map("flexformer_p", heads, head_dim, num_features, **options).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in feature_map.parameters():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return feature_map


@pytest.mark.parametrize("causal", [False, True])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batch=st.integers(1, 3),
    heads=st.integers(1, 3),
    length=st.integers(1, 100),
    head_dim=st.integers(1, 20),
    value_dim=st.integers(1, 20),
    num_features=st.integers(1, 20),
    affine=st.booleans(),
    padded=st.booleans(),
    scaling=st.sampled_from([None, 0.3]),
    seed=st.integers(0, 10**6),
)
def test_equals_the_dense_form(
    calls, causal, batch, heads, length, head_dim, value_dim, num_features, affine, padded, scaling, seed
):
    feature_map = feature_map_of(heads, head_dim, num_features, affine=affine)
    q, k, _ = inputs(batch, heads, length, head_dim, seed, spread=1.5)
    v = inputs(batch, heads, length, value_dim, seed + 1)[0]
    options = {"causal": causal, "scaling": scaling}
    options["key_padding_mask"] = random_padding(batch, length, seed) if padded else None
    calls.clear()
    fast = outputs_and_gradients(linear_attention, (q, k, v), feature_map, **options)
    assert calls == ["forward", "backward"]
    naive = outputs_and_gradients(naive_attention, (q, k, v), feature_map, **options)
    for one, other in zip(fast, naive, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("length", [31, 32, 33, 200])
def test_padding_before_within_and_after(calls, length):
    feature_map = feature_map_of(2, 5)
    mask = random_padding(4, length, 0)
    mask[0, : length // 2] = False  # queries without any key
    mask[1, length // 2 :] = False
    mask[2] = False
    q, k, v = inputs(4, 2, length, 5)
    k, v = (x.masked_fill(~mask[:, None, :, None], 50.0) for x in (k, v))
    for causal in (False, True):
        fast, naive = (
            outputs_and_gradients(form, (q, k, v), feature_map, causal=causal, key_padding_mask=mask)
            for form in (linear_attention, naive_attention)
        )
        for one, other in zip(fast, naive, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
        assert fast[0][2].eq(0).all()
        for gradient in fast[2:4]:
            assert gradient.masked_select(~mask[:, None, :, None]).eq(0).all()
    assert calls.count("backward") == 2


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(1, 70), min_size=1, max_size=4), padded=st.booleans(), seed=st.integers(0, 10**6))
def test_parts_of_any_length_equal_the_whole(calls, cuts, padded, seed):
    """Values, and gradients that flow through the states; torch's own form continues the kernel's states."""
    feature_map = feature_map_of(2, 4)
    length = sum(cuts)
    mask = random_padding(2, length, seed) if padded else None

    def in_parts(q, k, v, feature_map):
        state, start, parts = None, 0, []
        for i, cut in enumerate(cuts):
            at = slice(start, start + cut)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(library.SWITCH, "0" if i % 3 == 2 else "1")
                part, state = causal_attention(
                    q[:, :, at], k[:, :, at], v[:, :, at], feature_map, state, None if mask is None else mask[:, at]
                )
            parts.append(part)
            start += cut
        assert state.length.tolist() == ([length] * 2 if mask is None else mask.sum(1).tolist())
        return torch.cat(parts, 2)

    tensors = inputs(2, 2, length, 4, seed)
    calls.clear()
    parts = outputs_and_gradients(in_parts, tensors, feature_map)
    assert len(calls) == 2 * sum(i % 3 != 2 for i in range(len(cuts)))
    whole = outputs_and_gradients(naive_attention, tensors, feature_map, causal=True, key_padding_mask=mask)
    for one, other in zip(parts, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_the_state_is_that_of_torchs_own_form(calls, monkeypatch):
    feature_map = feature_map_of(2, 6)
    q, k, v = inputs(2, 2, 75, 6, spread=3.0)
    mask = random_padding(2, 75, 0)
    states = []
    for switch in ("1", "0"):
        monkeypatch.setenv(library.SWITCH, switch)
        states.append(causal_attention(q, k, v, feature_map, None, mask)[1])
    assert calls == ["forward"]
    for name in ("sums", "reference", "length"):
        torch.testing.assert_close(*(getattr(state, name) for state in states), rtol=1e-9, atol=1e-12)


def test_no_query_sees_a_later_key_however_large(calls):
    """Amplitudes thousands apart, in float32: no overflow, and no early key out of range."""
    feature_map = make_feature_map("flexformer_p", 2, 6, 8, key_normaliser=0.0)
    with torch.no_grad():
        feature_map.norm_weight.fill_(1.0)
    q, k, v = (x.float() for x in inputs(1, 2, 130, 6))
    first = linear_attention(q[:, :, :70], k[:, :, :70], v[:, :, :70], feature_map, causal=True)
    k[:, :, 70:] *= 100
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    both = linear_attention(q, k, v, feature_map, causal=True)
    torch.testing.assert_close(both[:, :, :70], first, rtol=1e-5, atol=1e-6)
    exact = copy.deepcopy(feature_map).double()
    dense = naive_attention(q.double(), k.double(), v.double(), exact, causal=True)
    torch.testing.assert_close(both.double(), dense, rtol=1e-3, atol=1e-3)
    assert all(x.isfinite().all() for x in torch.autograd.grad(both.sum(), [q, k, v]))
    assert calls == ["forward", "forward", "backward"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_smaller_dtypes(calls, causal, dtype):
    q, k, v = (x.to(dtype) for x in inputs(1, 2, 500, 16))
    feature_map = feature_map_of(2, 16, 16)
    exact = outputs_and_gradients(naive_attention, [x.double() for x in (q, k, v)], feature_map, causal=causal)
    fast = outputs_and_gradients(linear_attention, (q, k, v), feature_map.float(), causal=causal)
    assert calls == ["forward", "backward"] and fast[0].dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for one, other in zip(fast, exact, strict=True):
        assert (one.double() - other).norm() <= tolerance * other.norm() + 1e-12


@pytest.mark.parametrize("causal", [False, True])
def test_tokens_in_any_layout_and_lengths_that_differ(calls, causal):
    feature_map = feature_map_of(2, 5)
    q, k, v = (x.transpose(1, 2) for x in torch.randn(3, 2, 40, 2, 5, dtype=torch.float64).unbind())
    q, v = q.mT.contiguous().mT, v[:, :1].expand(-1, 2, -1, -1)
    if not causal:
        q = q[:, :, :7]
    fast, naive = (
        outputs_and_gradients(form, (q, k, v), feature_map, causal=causal)
        for form in (linear_attention, naive_attention)
    )
    for one, other in zip(fast, naive, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    assert calls == ["forward", "backward"]


@pytest.mark.parametrize("causal", [False, True])
def test_no_tokens(calls, causal):
    feature_map = feature_map_of(2, 5)
    q, k, v = inputs(2, 2, 4, 5)
    none = slice(0, 0)
    out = linear_attention(q[:, :, none], k[:, :, none], v[:, :, none], feature_map, causal=causal)
    assert out.shape == (2, 2, 0, 5)
    if not causal:
        assert linear_attention(q, k[:, :, none], v[:, :, none], feature_map).eq(0).all()


@pytest.mark.parametrize("causal", [False, True])
def test_no_tokens_in_any_layout(calls, causal):
    feature_map = feature_map_of(2, 5)
    none = [x.mT.contiguous().mT[:, :, :0] for x in inputs(2, 2, 4, 5)]
    assert none[0].stride(3) != 1
    out, *gradients = outputs_and_gradients(linear_attention, none, feature_map, causal=causal)
    assert out.shape == (2, 2, 0, 5) and all(gradient.eq(0).all() for gradient in gradients)
    assert calls == ["forward", "backward"]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch", [0, 31, 32, 33, 70])
def test_weights_of_many_sequences(calls, causal, batch):
    feature_map, tensors = feature_map_of(2, 3), inputs(batch, 2, 4, 3)
    fast, naive = (
        outputs_and_gradients(form, tensors, feature_map, causal=causal) for form in (linear_attention, naive_attention)
    )
    for one, other in zip(fast, naive, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    assert calls == ["forward", "backward"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_too_little_memory_is_an_error(calls):
    """The scratch space of a long causal sequence's gradients; threads without work take none."""
    import resource

    x = torch.randn(1, 1, 2**16, 4, requires_grad=True)
    feature_map, threads = make_feature_map("flexformer_p", 1, 4, 512), torch.get_num_threads()
    out = linear_attention(x[:, :, :32], x[:, :, :32], x[:, :, :32], feature_map, causal=True)
    features = feature_map.softmax_features(torch.float32)
    sums, reference = torch.zeros(1, 1, 1024, 5), torch.zeros(1, 1)
    y, row = x.detach(), torch.ones(1, 1, 2**16)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    try:
        torch.set_num_threads(16)
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, limits[1]))
        out.sum().backward()
        with torch.no_grad(), pytest.raises(MemoryError, match="scratch space"):
            softmax_attention_backward(y, sums, y, y, y, None, *features, sums, reference, y, row, row, True, 1.0)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        torch.set_num_threads(threads)


@pytest.mark.parametrize("causal", [False, True])
def test_threads_change_nothing(calls, causal):
    feature_map = feature_map_of(3, 8)
    tensors = inputs(2, 3, 100, 8)
    threads, results = torch.get_num_threads(), []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            results.append(outputs_and_gradients(linear_attention, tensors, feature_map, causal=causal))
    finally:
        torch.set_num_threads(threads)
    for name, one, other in zip(("out", "q", "k", "v"), *results, strict=False):
        assert torch.equal(one, other), name


@pytest.mark.parametrize("causal", [False, True])
def test_the_operator_is_sound(calls, causal):
    features = feature_map_of(2, 5).softmax_features(torch.float64)
    q, k, v = (x.requires_grad_() for x in inputs(2, 2, 9, 5))
    sums = torch.zeros(2, 2, 10, 6, dtype=torch.float64, requires_grad=causal)
    reference = torch.full((2, 2), -torch.inf, dtype=torch.float64)
    features = [x.detach().requires_grad_() for x in features]
    for real in (None, random_padding(2, 9, 0)):
        arguments = (q, k, v, real, *features, sums, reference, causal, 0.9)
        torch.library.opcheck(softmax_attention, arguments)


@pytest.mark.parametrize("causal", [False, True])
def test_a_traced_graph_holds_the_operator(calls, causal):
    feature_map = feature_map_of(2, 5)
    tensors = inputs(1, 2, 40, 5)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def traced(q, k, v):
        return linear_attention(q, k, v, feature_map, causal=causal)

    results = [
        outputs_and_gradients(lambda q, k, v, _, form=form: form(q, k, v), tensors, feature_map)
        for form in (traced, lambda q, k, v: linear_attention(q, k, v, feature_map, causal=causal))
    ]
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
    assert calls == ["forward", "backward"] * 2


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_gradients_are_refused(calls, causal):
    """Also where another path to the same leaf exists, which would hide that a part is missing."""
    q, k, v = (x.requires_grad_() for x in inputs(1, 2, 9, 5))
    twice = 2 * q
    out = linear_attention(twice, k, v, feature_map_of(2, 5), causal=causal)
    (gradient,) = torch.autograd.grad(out.square().sum(), twice, create_graph=True)
    with pytest.raises(AttnExtError, match="naive_attention or, unless causal, set HF_ATTN_EXT_COMPILED=0"):
        torch.autograd.grad(gradient.square().sum() + q.sum(), q)


@pytest.mark.parametrize("causal", [False, True])
def test_function_transforms_go_to_torchs_own_forms(calls, causal):
    q, k, v = inputs(1, 2, 9, 5)
    feature_map = feature_map_of(2, 5)

    def loss(q):
        return linear_attention(q, k, v, feature_map, causal=causal).sin().sum()

    leaf = q.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    assert calls == ["forward", "backward"]
    torch.testing.assert_close(torch.func.grad(loss)(q), expected)
    if not causal:
        torch.testing.assert_close(torch.func.jvp(loss, (q,), (k,))[1], (expected * k).sum())
    assert len(calls) == 2


class _Scaled(FlexformerP):
    def bind(self, side, dtype):
        bound = super().bind(side, dtype)
        return lambda x: bound(2 * x)


class _Forward(FlexformerP):
    def forward(self, x, side):
        return super().forward(2 * x, side)


class _Named(FlexformerP):
    """Nothing of its own."""


class _Mixed(_Named, _Scaled):
    pass


class _Both(_Scaled):
    def softmax_features(self, dtype):
        features = FlexformerP.softmax_features(self, dtype)
        weights = {name: 2 * getattr(features, name) for name in ("query_weight", "key_weight")}
        return features._replace(**weights, norm_matrix=4 * features.norm_matrix)


def test_a_map_that_overrides_the_compiled_one_is_computed_as_it_says(calls):
    q, k, v = inputs(1, 2, 40, 5)
    for cls, fused in ((FlexformerP, 1), (_Scaled, 0), (_Forward, 0), (_Named, 1), (_Mixed, 0), (_Both, 1)):
        feature_map = cls(2, 5, 6, affine=False).double()
        with torch.no_grad():
            feature_map.norm_weight += 0.1
        for causal in (False, True):
            calls.clear()
            ours = linear_attention(q, k, v, feature_map, causal=causal)
            assert len(calls) == fused
            torch.testing.assert_close(ours, naive_attention(q, k, v, feature_map, causal=causal))
    feature_map.bind = _Scaled(2, 5, 6).double().bind
    calls.clear()
    linear_attention(q, k, v, feature_map)
    assert calls == []


def test_what_the_op_does_not_support_goes_to_torchs_own_forms(calls, monkeypatch):
    q, k, v = inputs(1, 2, 40, 5)
    for causal in (False, True):
        for label in ("flexformer_c", "hedgehog", "uniform", "cosformer"):
            feature_map = build(label, 2, 5)
            torch.testing.assert_close(
                linear_attention(q, k, v, feature_map, causal=causal),
                naive_attention(q, k, v, feature_map, causal=causal),
            )
        feature_map = feature_map_of(2, 5)
        linear_attention(q, k, v, feature_map, causal=causal, dropout_p=0.1)
        hooked = feature_map_of(2, 5)
        hooked.register_forward_hook(lambda *_: None)
        linear_attention(q, k, v, hooked, causal=causal)
        with monkeypatch.context() as patch:
            patch.setenv(library.SWITCH, "0")
            off = linear_attention(q, k, v, feature_map, causal=causal)
        assert calls == []
        torch.testing.assert_close(linear_attention(q, k, v, feature_map, causal=causal), off)
        assert calls == ["forward"]
        calls.clear()


def test_two_streams_share_the_compiled_state(calls):
    """Clean tokens go through the native op, mask tokens read its state in torch."""
    feature_map, runs = feature_map_of(2, 6), []
    tensors = inputs(2, 2, 90, 6, spread=1.5)
    clean, block = torch.ones(2, 5, dtype=torch.bool), torch.ones(2, 4, dtype=torch.bool)
    with torch.no_grad():
        for plain in (False, True):
            with plain_forms() if plain else contextlib.nullcontext():
                state, outputs = None, []
                for start in range(0, 90, 9):
                    part = [x[:, :, start : start + 9] for x in tensors]
                    out, state = two_stream_attention(*part, feature_map, state, clean, block)
                    outputs.append(out)
            runs.append(torch.cat(outputs, 2))
            assert calls == ["forward"] * 10
    torch.testing.assert_close(*runs, rtol=1e-9, atol=1e-9)
