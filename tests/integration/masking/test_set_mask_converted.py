"""Masks in converted models: linear layers run in the mask's order, softmax layers under the mask."""

import warnings

import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, BertModel, GPT2LMHeadModel, LlamaForCausalLM

import hf_attn_ext as hax
from hf_attn_ext.attention import linear_attention, naive_attention
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec, information_flow, masks
from hf_attn_ext.integration.linear import attention_function as registry
from hf_attn_ext.integration.masking.entries import FIELD
from tests.integration import tiny

CLASSES = [BertModel, GPT2LMHeadModel, LlamaForCausalLM]


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="set_mask on")
        yield


@pytest.fixture
def dense_orders(monkeypatch):
    """linear_attention whose orders are computed densely; records the orders that it was given."""
    seen = []

    def attend(q, k, v, feature_map, causal=False, key_padding_mask=None, order=None, scaling=None, dropout_p=0.0):
        seen.append(order)
        if order is None:
            return linear_attention(q, k, v, feature_map, causal, key_padding_mask, scaling=scaling)
        assert not causal and isinstance(order, MaskSpec) and len(order) == q.shape[2]
        return naive_attention(q, k, v, feature_map, False, key_padding_mask, order.dense(), scaling)

    monkeypatch.setattr(registry, "linear_attention", attend)
    return seen


def first(output):
    return tiny.logits_of(output)[0]


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("layers", [None, [1]], ids=["all", "hybrid"])
@torch.no_grad()
def test_the_own_pattern_as_a_mask_changes_nothing(cls, layers):
    model = hax.convert(tiny.tiny_model(cls), tiny.KERNEL, layers=layers)
    for batch in (tiny.inputs(), tiny.inputs(padded=False)):
        expected = first(model(**batch))
        hax.set_mask(model, "bidirectional" if cls is BertModel else "causal")
        real = batch["attention_mask"].bool()
        torch.testing.assert_close(first(model(**batch))[real], expected[real], rtol=1e-4, atol=1e-5)
        hax.set_mask(model, None)
        assert torch.equal(first(model(**batch)), expected)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("layers", [None, [1]], ids=["all", "hybrid"])
@torch.no_grad()
def test_linear_layers_get_the_order_and_softmax_layers_the_mask(cls, layers, dense_orders):
    model = hax.set_mask(hax.convert(tiny.tiny_model(cls).double(), tiny.KERNEL, layers=layers), "butterfly")
    batch = tiny.inputs(length=10)
    output = first(model(**batch))
    assert [order.title for order in dense_orders] == ["butterfly(n=4)"] * (1 if layers else 2)
    spec = masks.butterfly(4)
    if cls is not BertModel:
        # no position hears of one that its mask does not let through, at whatever depth
        flow = information_flow(spec)
        ids = batch["input_ids"].clone()
        ids[0, 3] = 5 if ids[0, 3] != 5 else 6
        changed = (first(model(input_ids=ids, attention_mask=batch["attention_mask"])) - output)[0].abs().amax(-1)
        assert (changed[~flow[:, 3]] == 0).all() and (changed[flow[:, 3]] > 0).all()
    weights = model(**batch, output_attentions=True).attentions
    assert all(((attention[0] != 0) <= spec.dense()).all() for attention in weights)
    if layers:
        softmax = hax.set_mask(tiny.tiny_model(cls).double(), "butterfly")
        expected = softmax(**batch, output_attentions=True, **({} if cls is BertModel else {"use_cache": False}))
        torch.testing.assert_close(weights[0], expected.attentions[0])


@pytest.mark.skipif(not tiny.linear_attention_knows_orders(), reason="linear_attention(order=...) is not there yet")
@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(
    ("name", "options"), [("butterfly", {}), ("block_diffusion", {"b": 2}), ("prefix_lm", {"p": 3})]
)
def test_linear_orders_equal_the_dense_computation(cls, name, options, monkeypatch):
    model = hax.convert(tiny.tiny_model(cls).double(), tiny.KERNEL)
    hax.set_mask(model, name, **options)
    batch = tiny.inputs(length=10)
    found = first(model(**batch))
    found.square().sum().backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()

    def dense(q, k, v, feature_map, causal=False, key_padding_mask=None, order=None, scaling=None, dropout_p=0.0):
        return naive_attention(q, k, v, feature_map, False, key_padding_mask, order.dense(), scaling)

    monkeypatch.setattr(registry, "linear_attention", dense)
    expected = first(model(**batch))
    real = batch["attention_mask"].bool()
    torch.testing.assert_close(found[real], expected[real])
    expected.square().sum().backward()
    for one, other in zip(gradients, [p.grad for p in model.parameters() if p.grad is not None], strict=True):
        torch.testing.assert_close(one, other)


@torch.no_grad()
def test_saved_and_opened_without_a_word(tmp_path, dense_orders):
    model = hax.set_mask(hax.convert(tiny.tiny_model(BertModel), tiny.KERNEL), "block_two_stream", block_size=2)
    model.save_pretrained(tmp_path / "model")
    opened = AutoModel.from_pretrained(tmp_path / "model")
    batch = tiny.inputs(length=8)
    assert torch.equal(first(opened(**batch)), first(model(**batch)))
    assert hax.get_mask(opened) == [("block_two_stream", {"block_size": 2})] * 2


def test_masks_that_a_linear_layer_cannot_honour():
    model = hax.convert(tiny.tiny_model(BertModel), tiny.KERNEL, layers=[1])
    with pytest.raises(AttnExtError, match=r"layer 1 is linear, .*'sliding_window' .* not dense: w2 is reached by w0"):
        hax.set_mask(model, "sliding_window", w=2)
    with pytest.raises(AttnExtError, match=r"butterfly.*not dense.*densify"):
        hax.set_mask(model, "butterfly", window=2)
    with pytest.raises(AttnExtError, match="layer 1 is linear, and linear attention has one mask for all heads"):
        hax.set_mask(model, per_head={1: ["causal", "bidirectional"]}, allow_leaks=True)
    hax.set_mask(model, per_layer={0: ("sliding_window", {"w": 2})}, allow_leaks=True)
    stock = hax.set_mask(tiny.tiny_model(BertModel), "sliding_window", w=2)
    with pytest.raises(AttnExtError, match=r"layer 0 is linear.*not dense"):
        hax.convert(stock, tiny.KERNEL)
    assert not hax.is_converted(stock)


@torch.no_grad()
def test_convert_and_revert_keep_the_mask(dense_orders):
    model, batch = hax.set_mask(tiny.tiny_model(BertModel), "butterfly"), tiny.inputs(length=10)
    expected = first(model(**batch))
    hax.convert(model, tiny.KERNEL)
    assert hax.get_mask(model) == [("butterfly", {})] * 2
    hax.revert(model)
    assert model.config._attn_implementation == "hasse" and torch.equal(first(model(**batch)), expected)
    later = hax.revert(hax.set_mask(hax.convert(tiny.tiny_model(BertModel), tiny.KERNEL), "butterfly"))
    assert torch.equal(first(later(**batch)), expected)


def test_maps_attached_on_first_use_are_not_left_behind():
    model = tiny.tiny_model(BertModel)
    model.set_attn_implementation("flexformer")
    with pytest.raises(AttnExtError, match=r"without being converted; call hf_attn_ext.convert"):
        hax.set_mask(model, "causal")


@torch.no_grad()
def test_generation_causal_with_the_state_and_nothing_else(tmp_path):
    model, batch = hax.convert(tiny.tiny_model(GPT2LMHeadModel), tiny.KERNEL), tiny.inputs(padded=False)
    asked = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    expected = model.generate(**batch, **asked)
    hax.set_mask(model, "causal")
    assert torch.equal(model.generate(**batch, **asked), expected)
    hax.set_mask(model, "prefix_lm", p=3)
    with pytest.raises(AttnExtError, match=r"state cannot follow.*use_cache=False"):
        model.generate(**batch, **asked)
    model.save_pretrained(tmp_path)
    assert FIELD in AutoModelForCausalLM.from_pretrained(tmp_path).config.to_dict()


def test_the_softmax_stream_is_refused_under_a_mask():
    model = hax.set_mask(hax.convert(tiny.tiny_model(BertModel), tiny.KERNEL), "butterfly")
    with hax.softmax_stream(model, lambda call: None), pytest.raises(AttnExtError, match=r"softmax stream.*set_mask"):
        model(**tiny.inputs(length=10))


@pytest.mark.parametrize("cls", [GPT2LMHeadModel, LlamaForCausalLM])
@pytest.mark.parametrize("layers", [None, [1]], ids=["all", "hybrid"])
@pytest.mark.parametrize("length", [1, 2])
@torch.no_grad()
def test_generation_from_the_shortest_prompts(cls, layers, length):
    model = hax.convert(tiny.tiny_model(cls), tiny.KERNEL, layers=layers)
    batch = tiny.inputs(length=length, padded=False)
    asked = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    expected = model.generate(**batch, **asked)
    hax.set_mask(model, "causal")
    assert torch.equal(model.generate(**batch, **asked), expected)
    hax.set_mask(model, "bidirectional", allow_leaks=True)
    with pytest.raises(AttnExtError, match="use_cache=False"):
        model.generate(**batch, **asked)
    cache = model(**batch, use_cache=True).past_key_values if length == 1 else None
    if cache is not None:  # one position is causal; the second shows that the mask is not
        with pytest.raises(AttnExtError, match="can follow only a causal mask"):
            model(input_ids=batch["input_ids"], past_key_values=cache, use_cache=True)


@pytest.mark.parametrize("w", [2, 12, 100, 191, 192, 400, 1000])
def test_a_window_of_any_width_is_refused_when_it_is_set(w):
    model = hax.convert(tiny.tiny_model(LlamaForCausalLM), tiny.KERNEL)
    with pytest.raises(AttnExtError, match=rf"'sliding_window' \(w={w}\) is not dense"):
        hax.set_mask(model, "sliding_window", w=w)
    with pytest.raises(AttnExtError, match="is not dense"):
        hax.convert(hax.set_mask(tiny.tiny_model(LlamaForCausalLM), "sliding_window", w=w), tiny.KERNEL)


@pytest.mark.parametrize("rows", ["no diagonal", "one row without itself", "an empty row"])
def test_a_mask_whose_rows_do_not_see_themselves_is_refused_when_it_is_set(rows):
    matrix = torch.ones(6, 6).tril(-1 if rows == "no diagonal" else 0).bool()
    if rows != "no diagonal":
        matrix[3, 3 if rows.startswith("one") else slice(None)] = False
    spec = MaskSpec.from_mask(matrix)
    with pytest.raises(AttnExtError, match=r"layer 0 is linear, .* not dense: .* does not see itself"):
        hax.set_mask(hax.convert(tiny.tiny_model(BertModel), tiny.KERNEL, layers=[0]), spec)
    with pytest.raises(AttnExtError, match=r"layer 0 is linear, .* not dense: .* does not see itself"):
        hax.convert(hax.set_mask(tiny.tiny_model(BertModel), spec), tiny.KERNEL)
    # what is accepted runs
    mended = matrix | torch.eye(6, dtype=torch.bool)
    model = hax.set_mask(hax.convert(tiny.tiny_model(BertModel), tiny.KERNEL), MaskSpec.from_mask(mended).densify())
    assert first(model(**tiny.inputs(length=6))).isfinite().all()
