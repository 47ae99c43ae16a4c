"""Masks of hf_attn_ext.hasse in models of every family: exact, padded, on every backend, by layer and by head."""

import warnings

import pytest
import torch
from transformers import (
    BertModel,
    DistilBertModel,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    Qwen3ForCausalLM,
)

import hf_attn_ext as hax
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec, masks
from tests.integration import tiny
from tests.integration.masked_models import BACKENDS, DECODERS, ENCODERS, first


@pytest.fixture(autouse=True)
def quiet():
    """Two layers are too few for most masks, which is warned of and tested once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="set_mask on")
        yield


def stock_mask(cls):
    return "causal" if cls in DECODERS else "bidirectional"


def no_cache(cls):
    return {"use_cache": False} if cls in DECODERS else {}


@pytest.mark.parametrize("cls", ENCODERS + DECODERS)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_the_stock_pattern_as_a_mask_gives_the_stock_numbers(cls, implementation, padded):
    stock, masked = tiny.tiny_model(cls), tiny.tiny_model(cls)
    stock.set_attn_implementation(implementation)
    hax.set_mask(masked, stock_mask(cls), backend=implementation)
    batch = tiny.inputs(padded=padded)
    assert torch.equal(first(stock(**batch)), first(masked(**batch)))
    without = {"input_ids": batch["input_ids"]}
    assert torch.equal(first(stock(**without)), first(masked(**without)))
    one = {name: x[-1:] for name, x in batch.items()}
    assert torch.equal(first(stock(**one)), first(masked(**one)))
    fixed = hax.set_mask(masked, masks.make_mask(stock_mask(cls), n=7), backend=implementation)
    assert torch.equal(first(stock(**batch)), first(fixed(**batch)))


@torch.no_grad()
def test_an_upcasting_gpt_2_is_that_gpt_2():
    stock = tiny.tiny_model(GPT2LMHeadModel, reorder_and_upcast_attn=True).to(torch.bfloat16)
    stock.set_attn_implementation("eager")
    expected = stock(**tiny.inputs()).logits
    assert torch.equal(hax.set_mask(stock, "causal", backend="eager")(**tiny.inputs()).logits, expected)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("cls", [GPT2LMHeadModel, Qwen3ForCausalLM])
@torch.no_grad()
def test_left_padding_changes_no_real_token(cls, implementation):
    stock, masked = tiny.tiny_model(cls), hax.set_mask(tiny.tiny_model(cls), "causal", backend=implementation)
    stock.set_attn_implementation(implementation)
    batch = {name: x.flip(-1) for name, x in tiny.inputs().items()}
    real = batch["attention_mask"].bool()
    assert torch.equal(stock(**batch).logits[real], masked(**batch).logits[real])
    assert masked(**batch).logits.isfinite().all()


@pytest.mark.parametrize("cls", [BertModel, DistilBertModel, GPT2LMHeadModel, LlamaForCausalLM])
@torch.no_grad()
def test_any_mask_is_the_host_s_own_4d_mask(cls):
    spec = masks.butterfly(4)
    masked = hax.set_mask(tiny.tiny_model(cls), spec)
    stock = tiny.tiny_model(cls)
    ids = tiny.inputs(length=10, padded=False)["input_ids"]
    allowed = spec.dense()[None, None].expand(3, 1, 10, 10)
    expected = first(stock(input_ids=ids, attention_mask=allowed, **no_cache(cls)))
    assert torch.equal(expected, first(masked(input_ids=ids, attention_mask=torch.ones_like(ids), **no_cache(cls))))


@pytest.mark.parametrize("cls", [BertModel, GPT2LMHeadModel, LlamaForCausalLM])
@pytest.mark.parametrize(("name", "options"), [("butterfly", {}), ("block_diffusion", {"b": 2}), ("causal", {})])
def test_backends_agree_padding_batch_of_one_and_rows_without_a_key_included(cls, name, options):
    batch = tiny.inputs(length=10)
    batch["attention_mask"][1, :4] = 0  # some rows see nothing real
    batch["attention_mask"][2] = 0
    outputs = {}
    for backend in BACKENDS:
        model = hax.set_mask(tiny.tiny_model(cls).double(), name, backend=backend, **options)
        with torch.no_grad():
            whole = first(model(**batch, **no_cache(cls)))
            for row in range(3):
                one = {key: x[row : row + 1] for key, x in batch.items()}
                torch.testing.assert_close(first(model(**one, **no_cache(cls)))[0], whole[row])
            outputs[backend] = whole
            bare = first(model(input_ids=batch["input_ids"], **no_cache(cls)))
            ones = torch.ones_like(batch["input_ids"])
            torch.testing.assert_close(
                bare, first(model(input_ids=batch["input_ids"], attention_mask=ones, **no_cache(cls)))
            )
            boolean = {**batch, "attention_mask": batch["attention_mask"].bool()}
            floats = {**batch, "attention_mask": batch["attention_mask"].float()}
            assert torch.equal(first(model(**boolean, **no_cache(cls))), whole)
            assert torch.equal(first(model(**floats, **no_cache(cls))), whole)
        assert whole.isfinite().all()
        if backend == "flex":
            with pytest.raises(AttnExtError, match=r"no backward on the CPU.*sdpa"):
                model(**batch, **no_cache(cls))
            continue
        first(model(**batch, **no_cache(cls))).square().sum().backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        assert gradients and all(gradient.isfinite().all() for gradient in gradients)
    torch.testing.assert_close(outputs["flex"], outputs["sdpa"])
    # Llama's own eager attention takes its softmax in float32
    bounds = {"rtol": 1e-3, "atol": 1e-5} if cls is LlamaForCausalLM else {}
    torch.testing.assert_close(outputs["eager"], outputs["sdpa"], **bounds)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_that_sees_no_real_key_sees_itself(backend):
    model = hax.set_mask(tiny.tiny_model(BertModel), "causal", backend=backend).double()
    spec = masks.causal(5).dense()
    padding = torch.tensor([[0, 0, 1, 1, 0]])
    by_hand = (spec & padding.bool()[0]) | torch.eye(5, dtype=torch.bool) & (padding[0] == 0)[:, None]
    by_hand[4] = torch.tensor([0, 0, 1, 1, 0]).bool()  # row 4 is padding, but sees real keys
    stock = tiny.tiny_model(BertModel).double()
    ids = tiny.inputs(batch=1, length=5, padded=False)["input_ids"]
    with torch.no_grad():
        expected = stock(input_ids=ids, attention_mask=by_hand[None, None]).last_hidden_state
        found = model(input_ids=ids, attention_mask=padding).last_hidden_state
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mask_with_an_empty_row_is_warned_of_and_the_row_sees_itself(backend):
    matrix = masks.causal(4).dense()
    matrix[2] = False
    model = tiny.tiny_model(BertModel).double()
    with pytest.warns(UserWarning, match="attends to nothing.*see itself"):
        hax.set_mask(model, MaskSpec.from_mask(matrix), backend=backend)
    ids = tiny.inputs(batch=2, length=4, padded=False)["input_ids"]
    mended = matrix.clone()
    mended[2, 2] = True
    with torch.no_grad():
        expected = hax.set_mask(tiny.tiny_model(BertModel).double(), MaskSpec.from_mask(mended))(input_ids=ids)
        torch.testing.assert_close(model(input_ids=ids).last_hidden_state, expected.last_hidden_state)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cls", [DistilBertModel, LlamaForCausalLM])
@torch.no_grad()
def test_a_mask_a_layer_and_a_mask_a_head(cls, backend):
    """Against one head or one layer at a time: what the head sees is all that matters to its output."""
    batch = tiny.inputs(length=8)
    one, two = "causal", ("sliding_window", {"w": 2})
    options = {"backend": backend, "allow_leaks": True}

    def weights(**kinds):
        model = hax.set_mask(tiny.tiny_model(cls).double(), **kinds, **options)
        return model(**batch, output_attentions=True, **no_cache(cls)).attentions

    layers = weights(spec_or_name=one, per_layer={1: two})
    assert torch.equal(layers[0], weights(spec_or_name=one)[0])
    seen = layers[1][0, 0] > 0
    assert torch.equal(seen, masks.sliding_window(8, 2).dense())
    heads = weights(per_head=[one, two])
    assert torch.equal(heads[0][:, 0], weights(spec_or_name=one)[0][:, 0])
    assert torch.equal(heads[0][:, 1], weights(spec_or_name="sliding_window", w=2)[0][:, 1])
    model = hax.set_mask(tiny.tiny_model(cls).double(), per_head={1: [one, two]}, **options)
    stock = tiny.tiny_model(cls).double()
    found = model(**batch, output_hidden_states=True, **no_cache(cls)).hidden_states
    expected = stock(**batch, output_hidden_states=True, **no_cache(cls)).hidden_states
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-5)  # layer 0 keeps its own pattern
    assert (found[2] - expected[2]).abs().max() > 1e-4
    by_weights = model(**batch, output_attentions=True, **no_cache(cls))
    torch.testing.assert_close(first(by_weights), first(model(**batch, **no_cache(cls))), rtol=1e-3, atol=1e-5)
