"""Linear attention over orders against the dense reference, in float64: outputs and gradients, every kernel."""

from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_attn_ext.attention import attention_weights, linear_attention, make_feature_map, naive_attention
from hf_attn_ext.attention.ops.order import order_attention as partial_order
from hf_attn_ext.attention.ops.order.batched import _running
from hf_attn_ext.attention.ops.order.plan import make_plan
from hf_attn_ext.attention.ops.order.product import order_product
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec, Poset, Task, masks
from hf_attn_ext.hasse.decomposition import chain_decomposition
from tests.attention.kernels import KERNELS, build

from .orders import SPECS, dense, orders
from .test_forms import inputs, random_padding
from .ways import WAYS, results, taking


def assert_equal(ours, theirs, tolerance=1e-8):
    """To ``tolerance``, relative to each tensor's largest entry."""
    for one, other in zip(ours, theirs, strict=True):
        scale = max(1.0, float(other.detach().abs().max()))
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * scale)


def vanishes(q, k, feature_map, mask, padding):
    """Whether some denominator is so near 0 that its row is rounding: weights that should sum to 1 are huge."""
    return bool(attention_weights(q, k, feature_map, key_padding_mask=padding, mask=mask).abs().sum(-1).max() > 1e6)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_random_orders_equal_the_dense_form(kernel):
    drawn, excluded = 0, 0

    @settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        order=orders(),
        way=st.sampled_from(WAYS),
        padded=st.booleans(),
        spread=st.sampled_from([0.5, 1.0, 2.0]),
        seed=st.integers(0, 10**6),
    )
    def compare(order, way, padded, spread, seed):
        nonlocal drawn, excluded
        feature_map, mask = build(kernel, 2, 4), dense(order)
        tensors = inputs(2, 2, len(mask), 4, seed, spread)
        padding = random_padding(2, len(mask), seed) if padded else None
        drawn += 1
        if vanishes(*tensors[:2], feature_map, mask, padding):
            excluded += 1
            return
        with taking(way):
            ours = results(linear_attention, tensors, feature_map, order=order, key_padding_mask=padding)
        assert_equal(ours, results(naive_attention, tensors, feature_map, mask=mask, key_padding_mask=padding))

    compare()
    assert drawn >= 10 and excluded <= drawn // 10


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.name}-{len(spec)}")
def test_masks_equal_the_dense_form(spec, way):
    for kernel in ("flexformer_p", "flexformer_n", "hedgehog"):
        feature_map = build(kernel, 2, 4)
        tensors = inputs(1, 2, len(spec), 4, seed=len(spec))
        padding = random_padding(1, len(spec), 1)
        with taking(way):
            ours = results(linear_attention, tensors, feature_map, order=spec, key_padding_mask=padding)
        assert_equal(ours, results(naive_attention, tensors, feature_map, mask=spec.dense(), key_padding_mask=padding))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_the_causal_and_the_bidirectional_order_are_those_forms(kernel, way):
    feature_map, tensors = build(kernel, 2, 5), inputs(2, 2, 200, 5)
    lengths = torch.tensor([200, 130])
    padding = torch.arange(200) < lengths[:, None]

    def real(*arguments, **options):  # where a padded query stands is nobody's business
        return linear_attention(*arguments, key_padding_mask=padding, **options) * padding[:, None, :, None]

    for spec, causal in ((masks.causal(200), True), (masks.bidirectional(200), False)):
        plain = results(real, tensors, feature_map, causal=causal)
        with taking(way):
            ours = results(real, tensors, feature_map, order=spec)
        assert_equal(ours, plain, 1e-10)


@pytest.mark.parametrize("way", WAYS)
def test_every_row_of_a_batch_may_have_its_own_order(way):
    poset = Poset.from_mask(np.random.default_rng(0).random((100, 100)) < 0.012)
    batch = [masks.butterfly(34), masks.causal(100), poset, masks.butterfly(34), masks.block_two_stream(50, 4)]
    tensors, feature_map = inputs(5, 2, 100, 4), build("flexformer_c", 2, 4)
    padding = random_padding(5, 100, 3)
    mask = torch.stack([dense(order) for order in batch])
    with taking(way):
        ours = results(linear_attention, tensors, feature_map, order=batch, key_padding_mask=padding)
    assert_equal(ours, results(naive_attention, tensors, feature_map, mask=mask, key_padding_mask=padding))
    with torch.no_grad(), taking(way):
        again = linear_attention(*tensors, feature_map, order=tuple(batch), key_padding_mask=padding)
    torch.testing.assert_close(again, ours[0])


@pytest.mark.parametrize("way", WAYS)
def test_amplitudes_that_lie_far_apart_are_exact(way):
    """Keys along a chain whose exponents grow by thousands: every prefix has its own scale, in any order of them."""
    generator = torch.Generator().manual_seed(0)
    for spec in (masks.butterfly(300), masks.block_two_stream(400, 8)):
        feature_map = build("flexformer_s", 1, 4).float()
        q, k, v = torch.randn(3, 1, 1, len(spec), 4, generator=generator).unbind()
        for exponents in (torch.arange(len(spec)) % 300 / 3.0, 100 * torch.rand(len(spec), generator=generator)):
            keys = k / k.norm(dim=-1, keepdim=True) * exponents[:, None]
            with taking(way):
                ours = results(linear_attention, (q, keys, v), feature_map, order=spec)
            exact = results(
                naive_attention, (q.double(), keys.double(), v.double()), feature_map.double(), mask=spec.dense()
            )
            feature_map.float()
            assert all(x.isfinite().all() for x in ours)
            assert_equal([x.double() for x in ours], exact, 1e-4)


def test_far_amplitudes_are_noticed():
    with mock.patch.object(partial_order, "order_product", side_effect=AssertionError("one scale for all")):
        feature_map = build("flexformer_s", 1, 4)
        q, k, v = inputs(1, 1, 70, 4)
        linear_attention(q, k * torch.arange(70)[:, None], v, feature_map, order=masks.causal(70))
        with pytest.raises(AssertionError, match="one scale"):
            linear_attention(q, k, v, feature_map, order=masks.causal(70))


@settings(max_examples=20, deadline=None)
@given(tiles=st.integers(1, 600), seed=st.integers(0, 10**6), low=st.sampled_from([0.0, 5.0, 400.0]))
def test_running_sums_on_scales_of_their_own(tiles, seed, low):
    generator = torch.Generator().manual_seed(seed)
    sums = torch.randn(1, 1, tiles, 2, generator=generator, dtype=torch.float64)
    largest = low * torch.randn(1, 1, tiles, generator=generator, dtype=torch.float64)
    largest[..., torch.rand(tiles, generator=generator) < 0.2] = -torch.inf  # a tile of padding
    sums[largest.isinf()] = 0.0
    expected, total, scale = [], torch.zeros(2, dtype=torch.float64), -torch.inf
    for part, top in zip(sums[0, 0], largest[0, 0].tolist(), strict=True):
        new = max(scale, top)
        if new > -torch.inf:
            total = total * np.exp(scale - new) + part * np.exp(top - new)
        scale = new
        expected.append(total)
    torch.testing.assert_close(_running(sums, largest)[0, 0], torch.stack(expected))


def test_the_product_has_the_gradients_of_its_definition():
    order = Poset.from_mask(np.tril(np.random.default_rng(1).random((90, 90)) < 0.05))
    mask = dense(order)
    q, k, v = (torch.randn(2, 2, 90, 3, dtype=torch.float64, requires_grad=True) for _ in range(3))
    ours = order_product([q], [k], [v], make_plan(chain_decomposition(order)))[0]
    theirs = (q @ k.mT * mask) @ v
    torch.testing.assert_close(ours, theirs)
    for one, other in zip(*(torch.autograd.grad(x.sin().sum(), [q, k, v]) for x in (ours, theirs)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kernel", ["flexformer_p", "flexformer_s", "hedgehog"])
def test_nothing_reaches_a_prediction_from_where_its_token_stands(kernel, way):
    """Gradients are 0, not small: F_k, B_k and the other predictions do not exist for P_k."""
    n = 90
    spec = masks.butterfly(n)
    tensors = [x.requires_grad_() for x in inputs(1, 2, len(spec), 4)]
    with taking(way):
        out = linear_attention(*tensors, build(kernel, 2, 4), order=spec)
    for token in (0, 1, 40, 63, 64, 65, n - 1):
        row = 2 * n - 2 + token
        gradients = torch.autograd.grad(out[:, :, row].sum(), tensors, retain_graph=True, allow_unused=True)
        for gradient in gradients[1:]:
            if gradient is not None:
                assert gradient[:, :, ~spec.dense()[row]].eq(0).all()
        assert gradients[2][:, :, spec.dense()[row]].ne(0).all()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_padding_is_exact(kernel, way):
    """Whatever padded tokens hold, nobody sees it, and gets no gradient from it."""
    spec, feature_map = masks.block_two_stream(70, 8), build(kernel, 2, 4)
    padding = random_padding(2, len(spec), 5)
    garbage = ~padding[:, None, :, None]
    outs = []
    for value in (50.0, -3.0):
        tensors = [x.masked_fill(garbage, value).requires_grad_() for x in inputs(2, 2, len(spec), 4)]
        with taking(way):
            out = linear_attention(*tensors, feature_map, order=spec, key_padding_mask=padding)
        outs.append(out.masked_fill(garbage, 0.0))
        gradients = torch.autograd.grad(outs[-1].square().sum(), tensors, allow_unused=True, materialize_grads=True)
        assert all(gradient.masked_select(garbage).eq(0).all() for gradient in gradients)
    torch.testing.assert_close(*outs, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("way", WAYS)
def test_a_query_without_real_keys_gives_zero_and_no_gradient(way):
    spec = masks.butterfly(40)
    padding = torch.zeros(2, len(spec), dtype=torch.bool)
    padding[1, 20:30] = True  # F_0 to F_19 see nothing then
    for kernel in KERNELS:
        feature_map = build(kernel, 2, 4).float()
        tensors = [x.float() for x in inputs(2, 2, len(spec), 4)]
        with taking(way):
            out, *gradients = results(linear_attention, tensors, feature_map, order=spec, key_padding_mask=padding)
        assert out[0].eq(0).all() and out[1, :, :20].eq(0).all() and out[1, :, 25].ne(0).any()
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert gradients[2][:, :, ~padding[1]].eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    spec = masks.butterfly(1000)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (2 * torch.randn(3, 1, 2, len(spec), 8, generator=generator)).to(dtype).unbind()
    feature_map = build("flexformer_p", 2, 8).float()
    out = linear_attention(q, k, v, feature_map, order=spec)
    exact = linear_attention(q.float(), k.float(), v.float(), feature_map, order=spec)
    assert out.dtype == dtype and out.isfinite().all()
    torch.testing.assert_close(out.float(), exact, rtol=1e-2, atol=1e-2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear_attention(q.float(), k.float(), v.float(), feature_map, order=spec).sub(exact).abs().max() < 1e-5


def test_scaling_is_that_of_the_other_forms():
    q, k, v = inputs(1, 2, 150, 4)
    outs = [
        linear_attention(q, k, v, build("flexformer_p", 2, 4), scaling=0.3, **options)
        for options in ({"causal": True}, {"order": masks.causal(150)})
    ]
    torch.testing.assert_close(*outs)


def test_dropout_drops_whole_tokens_on_the_value_side():
    q, k, _ = inputs(1, 1, 148, 4)
    v, spec = torch.eye(148, dtype=torch.float64)[None, None], masks.butterfly(50)
    feature_map = build("hedgehog", 1, 4)
    whole = linear_attention(q, k, v, feature_map, order=spec)
    torch.manual_seed(0)
    ratio = linear_attention(q, k, v, feature_map, order=spec, dropout_p=0.25) / whole
    for token, seen in enumerate(spec.dense().T):
        found = ratio[0, 0, seen, token]
        assert found.eq(0).all() or found.sub(1 / 0.75).abs().max() < 1e-6


def test_maps_that_use_positions_get_those_of_the_mask():
    """P_k stands between F_(k-1) and B_(k+1), wherever it lies in memory."""
    spec, feature_map = masks.butterfly(12), build("cosformer", 2, 4)
    q, k, v = inputs(1, 2, len(spec), 4)
    ids = spec.position_ids[None]
    query, key = (feature_map(x, side, ids).values for x, side in ((q, "query"), (k, "key")))
    scores = (query @ key.mT).masked_fill(~spec.dense(), 0.0)
    expected = scores / scores.sum(-1, keepdim=True) @ v
    torch.testing.assert_close(linear_attention(q, k, v, feature_map, order=spec), expected)
    poset = Poset.from_mask(spec.dense())
    expected = naive_attention(q, k, v, feature_map, mask=spec.dense())
    torch.testing.assert_close(linear_attention(q, k, v, feature_map, order=poset), expected)
    both = linear_attention(*(x.expand(2, -1, -1, -1) for x in (q, k, v)), feature_map, order=[poset, spec])
    torch.testing.assert_close(both[:1], expected)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_an_order_first_used_in_inference_mode_trains_afterwards(kernel, way):
    scattered = Poset.from_mask(np.random.default_rng(7).random((60, 60)) < 0.03)
    with torch.inference_mode():
        made_there = masks.document([20, 40])
    for order in (masks.butterfly(20), masks.document([50, 10]), scattered, made_there):
        tensors, feature_map = inputs(1, 2, len(dense(order)), 4), build(kernel, 2, 4)
        with taking(way):
            with torch.inference_mode():
                first = linear_attention(*tensors, feature_map, order=order)
            out, *_ = results(linear_attention, tensors, feature_map, order=order)
        torch.testing.assert_close(out, first)


def test_compiled_code_breaks_its_graph_and_goes_on():
    feature_map, spec = make_feature_map("flexformer_p", 2, 4, 8), masks.butterfly(24)
    q, k, v = torch.randn(3, 1, 2, len(spec), 4).unbind()
    compiled = torch.compile(lambda *x: 2 * linear_attention(*x, feature_map, order=spec), backend="eager")
    torch.testing.assert_close(compiled(q, k, v), 2 * linear_attention(q, k, v, feature_map, order=spec))


@pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS if kernel != "cosformer"])
def test_nothing_waits_for_the_device_or_stays_off_it(kernel):
    """On the device without data, a value that is read back is an error, and so is a tensor left on the CPU."""
    spec, other = masks.butterfly(90), masks.causal(268)
    feature_map = build(kernel, 2, 4).float().to("meta")
    tensors = [torch.empty(2, 2, len(spec), 4, device="meta", dtype=torch.bfloat16) for _ in range(3)]
    padding = torch.ones(2, len(spec), device="meta", dtype=torch.bool)
    rest = {"key_padding_mask": padding, "scaling": None, "dropout_p": 0.1}
    for order in (spec, [spec, other]):  # the entry's autocast knows no such device
        out, *gradients = results(partial_order.order_attention, tensors, feature_map, order=order, **rest)
        assert all(x.device.type == "meta" for x in (out, *gradients)) and out.dtype == torch.bfloat16


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.name}-{len(spec)}")
def test_a_gpu_gives_the_same(spec):
    feature_map = build("flexformer_s", 2, 4)
    tensors = inputs(2, 2, len(spec), 4)
    ours = results(linear_attention, tensors, feature_map, order=spec)
    theirs = results(linear_attention, [x.cuda() for x in tensors], feature_map.cuda(), order=spec)
    assert_equal([x.cpu() for x in theirs], ours)


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (object(), ["order must be a hasse.Poset or MaskSpec, got object"]),
        (torch.ones(6, 6), ["got Tensor", "Poset.from_mask(mask)"]),
        (Task("abcdef", {}, np.tri(6)), ["got Task; give its poset"]),
        (masks.causal(5), ["order has 5 positions, but query and key have 6"]),
        ([masks.causal(6)], ["order holds 1 orders for 2 batch rows"]),
        ([], ["order holds 0 orders"]),
        ([masks.causal(6), masks.causal(7)], ["order[1] has 7 positions"]),
        ([masks.causal(6), None], ["order[1] must be", "NoneType"]),
        (
            masks.sliding_window(6, 2),
            ["sliding_window(n=6, w=2) is not dense", "position 2 (w2)", "position 0 (w0)", "densify()", "softmax"],
        ),
        (MaskSpec.from_mask(1 - np.eye(6, dtype=int)), ["position 0 (w0) does not attend to itself"]),
        (MaskSpec.from_mask(np.zeros((6, 6))), ["does not attend to itself", "densify()"]),
    ],
)
def test_mistakes_get_one_line(order, said):
    q, k, v = inputs(2, 2, 6, 4)
    with pytest.raises(AttnExtError) as caught:
        linear_attention(q, k, v, build("hedgehog", 2, 4), order=order)
    assert "\n" not in str(caught.value)
    for part in said:
        assert part in str(caught.value)


def test_an_order_has_its_direction_and_its_queries():
    q, k, v = inputs(1, 2, 6, 4)
    feature_map = build("hedgehog", 2, 4)
    with pytest.raises(AttnExtError, match="not both"):
        linear_attention(q, k, v, feature_map, causal=True, order=masks.causal(6))
    with pytest.raises(AttnExtError, match="as many queries as keys, got 4 and 6"):
        linear_attention(q[:, :, :4], k, v, feature_map, order=masks.causal(6))


def test_a_sparse_mask_densified_is_computed():
    spec = masks.butterfly(30, window=3)
    q, k, v = inputs(1, 2, len(spec), 4)
    feature_map = build("hedgehog", 2, 4)
    ours = linear_attention(q, k, v, feature_map, order=spec.densify())
    torch.testing.assert_close(ours, linear_attention(q, k, v, feature_map, order=masks.butterfly(30)))
