"""Masks of hf_attn_ext.hasse in models: by name, generated with, saved and opened, removed, refused."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import peft
import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertModel,
    AutoModel,
    AutoModelForCausalLM,
    BertForMaskedLM,
    BertModel,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    MistralForCausalLM,
    RobertaModel,
    XLNetConfig,
    XLNetModel,
)

import hf_attn_ext as hax
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec, masks
from hf_attn_ext.integration.masking.entries import FIELD
from hf_attn_ext.integration.masking.recipe import Recipe
from tests.integration import tiny
from tests.integration.masked_models import BACKENDS, DECODERS, first


@pytest.fixture(autouse=True)
def quiet():
    """Two layers are too few for most masks, which is warned of and tested once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="set_mask on")
        yield


def test_by_name_the_mask_has_the_length_of_the_call():
    model = hax.set_mask(tiny.tiny_model(BertForMaskedLM), "butterfly")
    for n in (2, 5, 9):
        output = model(**tiny.inputs(length=3 * n - 2, padded=False), output_attentions=True).attentions[0]
        assert torch.equal(output[0, 0] > 0, masks.butterfly(n).dense())
    with pytest.raises(
        AttnExtError, match=r"no n gives the mask 'butterfly' 8 positions \(n=3 gives 7, n=4 gives 10\)"
    ):
        model(**tiny.inputs(length=8))
    hax.set_mask(model, "block_two_stream", block_size=3)
    assert model(**tiny.inputs(length=12)).logits.shape[1] == 12
    with pytest.raises(AttnExtError, match=r"no n gives.*7 positions"):
        model(**tiny.inputs(length=7))
    hax.set_mask(model, "block_two_stream", block_size=3, starts="every")
    weights = model(**tiny.inputs(length=18, padded=False), output_attentions=True).attentions[0]
    assert torch.equal(weights[0, 0] > 0, masks.block_two_stream(6, 3, starts="every").dense())
    hax.set_mask(model, "sliding_window", w=6)
    assert model(**tiny.inputs(length=4, padded=False)).logits.isfinite().all()


@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_every_length_of_every_mask_is_found(n):
    cases = [
        ("causal", {}), ("bidirectional", {}), ("butterfly", {}), ("block_diffusion", {"b": 1}),
        ("block_two_stream", {"block_size": 1}), ("prefix_lm", {"p": 1}), ("masked_autoencoder", {"visible": [0]}),
        ("block_two_stream", {"block_size": min(n, 3), "starts": "every"}),
    ]  # fmt: skip
    for name, options in cases:
        spec = masks.make_mask(name, n=n, **options)
        found = Recipe.by_name(name, options).of_length(len(spec))
        assert torch.equal(found.dense(), spec.dense())


def test_nested_masks_are_nested():
    for name, options in (("causal", {}), ("prefix_lm", {"p": 3}), ("sliding_window", {"w": 4})):
        recipe = Recipe.by_name(name, options)
        for before in range(3, 9):
            for after in range(before + 1, 12):
                recipe.check_growth(before, after)
                expected = recipe.dense(after, "cpu")[before:]
                assert torch.equal(recipe.rows(before, after, "cpu"), expected)


@pytest.mark.parametrize("cls", DECODERS)
@pytest.mark.parametrize(("name", "options"), [("causal", {}), ("sliding_window", {"w": 3}), ("prefix_lm", {"p": 4})])
def test_generation_with_the_cache_is_generation_without(cls, name, options):
    model = hax.set_mask(tiny.tiny_model(cls), name, **options)
    batch = {key: x.flip(-1) for key, x in tiny.inputs().items()}
    asked = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    for more in ({}, {"num_beams": 3}):
        cached = model.generate(**batch, **asked, **more)
        assert torch.equal(cached, model.generate(**batch, **asked, **more, use_cache=False))
    if name == "causal":
        assert torch.equal(cached, tiny.tiny_model(cls).generate(**batch, **asked, **more))


def test_generation_with_a_cache_of_fixed_size():
    model = hax.set_mask(tiny.tiny_model(LlamaForCausalLM), "sliding_window", w=3)
    asked = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    dynamic = model.generate(**tiny.inputs(padded=False), **asked)
    static = model.generate(**tiny.inputs(padded=False), **asked, cache_implementation="static", disable_compile=True)
    assert torch.equal(static, dynamic)


@pytest.mark.parametrize(
    ("mask", "options", "words"),
    [
        ("bidirectional", {}, r"'bidirectional' is not safe with a cache: position 0 .* sees the later 7"),
        ("prefix_lm", {"p": 9}, "p must be a whole number from 0 to 7"),
        ("butterfly", {}, "'butterfly' is not safe with a cache"),
        (masks.causal(9), {}, r"'causal' \(n=9\) is for 9 positions, but the call has 7"),
        (masks.causal(7), {}, "cannot grow with a cache, which holds 7 and gets 1 more; pass use_cache=False"),
    ],
)
def test_generation_that_cannot_be_right_is_refused(mask, options, words):
    model = hax.set_mask(tiny.tiny_model(GPT2LMHeadModel), mask, **options)
    with pytest.raises(AttnExtError, match=words) as error:
        model.generate(**tiny.inputs(padded=False), max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert "\n" not in str(error.value)


@torch.no_grad()
def test_save_and_open(tmp_path):
    matrix = torch.rand(7, 7, generator=torch.Generator().manual_seed(0)) > 0.5
    matrix |= torch.eye(7, dtype=torch.bool)
    own = MaskSpec.from_mask(matrix, labels={0: 6}, inputs=[("mask", i) for i in range(7)])
    for mask in ("causal", own, masks.document([3, 4])):
        model = tiny.tiny_model(GPT2LMHeadModel)
        hax.set_mask(model, mask, per_layer={1: ("sliding_window", {"w": 2})}, allow_leaks=True)
        model.save_pretrained(tmp_path / "model")
        opened = AutoModelForCausalLM.from_pretrained(tmp_path / "model", attn_implementation="hasse")
        batch = tiny.inputs()
        assert torch.equal(opened(**batch).logits, model(**batch).logits)
        assert getattr(opened.config, FIELD) == getattr(model.config, FIELD)
    found = hax.get_mask(hax.set_mask(opened, own))[0]
    assert torch.equal(found.dense(), matrix) and found.inputs == own.inputs and found.labels == {0: 6}
    assert hax.get_mask(hax.set_mask(opened, "sliding_window", w=3)) == [("sliding_window", {"w": 3})] * 2
    assert isinstance(hax.get_mask(hax.set_mask(opened, masks.document([3, 4])))[0], MaskSpec)


def test_without_a_mask_there_is_no_silent_full_one(tmp_path):
    model = tiny.tiny_model(BertModel)
    model.set_attn_implementation("hasse")
    with pytest.raises(AttnExtError, match=r"no mask is set.*set_mask"):
        model(**tiny.inputs())
    hax.set_mask(model, "causal")
    model(**tiny.inputs())
    with pytest.raises(AttnExtError, match=r"\(3, 1, 7, 7\).*padding mask"):
        model(input_ids=tiny.inputs()["input_ids"], attention_mask=torch.ones(3, 1, 7, 7, dtype=torch.bool))
    setattr(model.config, FIELD, {"backend": "sdpa", "masks": [], "layers": [3]})
    with pytest.raises(AttnExtError, match=r"attn_ext_mask is broken.*anew"):
        model(**tiny.inputs())


@pytest.mark.parametrize("before", ["sdpa", "eager"])
@torch.no_grad()
def test_removing_brings_the_stock_model_back(before):
    model, batch = tiny.tiny_model(BertModel), tiny.inputs()
    model.set_attn_implementation(before)
    expected = model(**batch).last_hidden_state
    hax.set_mask(model, "causal")
    hax.set_mask(model, "sliding_window", w=2)
    assert not torch.equal(model(**batch).last_hidden_state, expected)
    assert hax.set_mask(model, None) is model
    assert model.config._attn_implementation == before and not hasattr(model.config, FIELD)
    assert torch.equal(model(**batch).last_hidden_state, expected)


def test_a_configuration_shared_with_another_model_is_left_alone():
    config = tiny.tiny_config("bert")
    one, two = BertModel(config), BertModel(config)
    hax.set_mask(one, "causal")
    assert not hasattr(two.config, FIELD) and two.config._attn_implementation == "sdpa"


def test_depth_is_a_warning_and_a_leak_an_error():
    model = tiny.tiny_model(BertModel)
    with pytest.warns(UserWarning, match="after 4 layers .* the model has 2 layers"):
        hax.set_mask(model, masks.sliding_window(9, 3))
    with pytest.warns(UserWarning, match=r"the model has 2 layers \(looked at with 24 positions\)"):
        hax.set_mask(model, "sliding_window", w=3)
    leaking = MaskSpec.from_mask([[1, 1], [1, 1]], labels={0: 1})
    with pytest.raises(AttnExtError, match=r"target leak.*allow_leaks=True"):
        hax.set_mask(model, leaking)
    assert hax.get_mask(model) == [("sliding_window", {"w": 3})] * 2
    with pytest.warns(UserWarning, match="target leak"):
        hax.set_mask(model, leaking, allow_leaks=True)
    # each alone is clean; together a prediction reaches its token in two steps
    with pytest.raises(AttnExtError, match="all layers and heads together"):
        hax.set_mask(model, "butterfly", per_layer={0: "bidirectional"})


def test_positions_must_suffice():
    model = tiny.tiny_model(RobertaModel)  # 40 rows, of which 39 hold positions
    hax.set_mask(model, masks.butterfly(39))
    with pytest.raises(AttnExtError, match=r"needs 40 positions, but RobertaModel has 39.*extend_positions"):
        hax.set_mask(model, masks.butterfly(40))
    hax.set_mask(tiny.tiny_model(LlamaForCausalLM), masks.butterfly(60))


def test_packed_texts_are_not_taken_for_one():
    model = hax.set_mask(tiny.tiny_model(GPT2LMHeadModel), "causal")
    ids, positions = tiny.inputs(padded=False)["input_ids"], torch.tensor([[0, 1, 2, 0, 1, 2, 3]]).expand(3, -1)
    with pytest.raises(AttnExtError, match=r"position_ids start again.*'document'"):
        model(input_ids=ids, position_ids=positions, use_cache=False)
    stock = tiny.tiny_model(GPT2LMHeadModel)
    expected = stock(input_ids=ids, position_ids=positions, use_cache=False).logits
    hax.set_mask(model, masks.document([3, 4]))
    assert torch.equal(model(input_ids=ids, position_ids=positions, use_cache=False).logits, expected)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m: hax.set_mask(m, "causl"), "unknown mask 'causl'. Did you mean 'causal'"),
        (lambda m: hax.set_mask(m, "sliding_window", width=2), "no option 'width'"),
        (lambda m: hax.set_mask(m, "sliding_window"), "needs the option 'w'"),
        (lambda m: hax.set_mask(m, "sliding_window", w="x"), "w must be a whole number"),
        (lambda m: hax.set_mask(m, "causal", backend="flash"), "backend must be one of sdpa, eager, flex, got 'flash'"),
        (lambda m: hax.set_mask(m, masks.causal(4), w=2), "options .* go with the name"),
        (lambda m: hax.set_mask(m, torch.ones(4, 4)), "MaskSpec.from_mask"),
        (lambda m: hax.set_mask(m, per_layer={2: "causal"}), "layer 2 is out of range, must be 0 to 1"),
        (lambda m: hax.set_mask(m, per_layer=["causal"]), "a list of 2"),
        (lambda m: hax.set_mask(m, per_layer=[None, None]), "no layer has a mask"),
        (lambda m: hax.set_mask(m, per_head=["causal"]), "1 masks for layer 0, which has 2 heads"),
        (lambda m: hax.set_mask(m, per_head=["causal", None]), "no mask for head 1"),
        (lambda m: hax.set_mask(m, masks.causal(4), per_layer={0: masks.causal(5)}), "no length in common"),
        (lambda m: hax.set_mask("bert", "causal"), "needs a transformers model, got str"),
        (lambda m: hax.set_mask(XLNetModel(XLNetConfig(d_model=8, n_layer=1, n_head=2, d_inner=8)), "causal"),
         r"XLNetModel .*does not use the attention interface.*supported: bert, roberta"),
        (lambda m: hax.set_mask(tiny.tiny_model(MistralForCausalLM, sliding_window=4), "causal"), "sliding window"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(call, words):
    model = tiny.tiny_model(BertModel)
    with pytest.raises(AttnExtError, match=words) as error:
        call(model)
    assert "\n" not in str(error.value)
    assert not hasattr(model.config, FIELD) and model.config._attn_implementation == "sdpa"


def test_a_mask_too_large_for_the_configuration_is_refused():
    matrix = torch.rand(900, 900, generator=torch.Generator().manual_seed(0)) > 0.5
    with pytest.raises(AttnExtError, match=r"characters in config.json.*register_mask"):
        hax.set_mask(tiny.tiny_model(LlamaForCausalLM), MaskSpec.from_mask(matrix | torch.eye(900, dtype=torch.bool)))


def test_a_model_outside_the_table_is_warned_of():
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16, "num_hidden_layers": 3}
    model = AlbertModel(AlbertConfig(vocab_size=40, **sizes)).eval()  # one module, three layers
    with pytest.warns(UserWarning, match="AlbertModel is untested with masks"):
        hax.set_mask(model, "butterfly")
    weights = model(**tiny.inputs(length=10, padded=False), output_attentions=True).attentions
    assert all(torch.equal(one[0, 0] > 0, masks.butterfly(4).dense()) for one in weights)
    with pytest.warns(UserWarning, match="the model has 3 layers"):
        hax.set_mask(model, "sliding_window", w=3)


def test_flex_says_what_it_has_not():
    model = hax.set_mask(tiny.tiny_model(BertModel, attention_probs_dropout_prob=0.1), "causal", backend="flex")
    with pytest.raises(AttnExtError, match="no attention dropout"), torch.no_grad():
        model.train()(**tiny.inputs())


@pytest.mark.filterwarnings("ignore")
def test_compiled_numbers_are_the_same_also_when_mask_or_length_change():
    model = hax.set_mask(tiny.tiny_model(BertModel), "butterfly")
    compiled = torch.compile(model, backend="aot_eager")
    for name, length in (("butterfly", 10), ("butterfly", 13), ("causal", 13)):
        hax.set_mask(model, name)
        batch = tiny.inputs(length=length)
        torch.testing.assert_close(first(compiled(**batch)), first(model(**batch)))
    first(compiled(**batch)).sum().backward()


READER = """
import sys
import torch
from transformers import AutoModel
import hf_attn_ext as hax
model = AutoModel.from_pretrained(sys.argv[1], attn_implementation="hasse")
saved = torch.load(sys.argv[1] + "/saved.pt")
assert torch.equal(model(**saved["batch"]).last_hidden_state, saved["output"])
print(hax.get_mask(model)[0])
"""


@torch.no_grad()
def test_another_process_finds_the_mask(tmp_path):
    model, batch = tiny.tiny_model(RobertaModel), tiny.inputs(length=10)
    tiny_folder = tmp_path / "model"
    hax.set_mask(model, "butterfly", per_layer={1: ("block_diffusion", {"b": 5})}, allow_leaks=True)
    model.save_pretrained(tiny_folder)
    reread = AutoModel.from_pretrained(tiny_folder, attn_implementation="hasse")  # as aligned in memory as there
    torch.save({"batch": batch, "output": reread(**batch).last_hidden_state}, tiny_folder / "saved.pt")
    torch.testing.assert_close(reread(**batch).last_hidden_state, model(**batch).last_hidden_state)
    found = subprocess.run(
        [sys.executable, "-c", READER, str(tiny_folder)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "HF_HUB_OFFLINE": "1"},
    )
    assert found.stdout.strip() == "('butterfly', {})", found.stderr


def test_masks_first_met_in_inference_mode_serve_training_later():
    model, batch = tiny.tiny_model(BertModel), tiny.inputs(length=11)
    hax.set_mask(model, masks.document([5, 6]))
    with torch.inference_mode():
        model(**batch)
    model(**batch).last_hidden_state.sum().backward()


def test_lora_trains_under_the_mask():
    model = tiny.tiny_model(GPT2LMHeadModel)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["c_attn"], r=2, fan_in_fan_out=True))
    hax.set_mask(adapted, "butterfly")
    batch = tiny.inputs(length=10)
    expected = hax.set_mask(tiny.tiny_model(GPT2LMHeadModel), "butterfly")(**batch, use_cache=False).logits
    output = adapted(**batch, use_cache=False, labels=batch["input_ids"])
    torch.testing.assert_close(output.logits, expected)
    output.loss.backward()
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in adapted.parameters())
    assert hax.get_mask(adapted) == [("butterfly", {})] * 2


def test_checkpointing_and_half_precision():
    model = hax.set_mask(tiny.tiny_model(GPT2LMHeadModel), "butterfly").train()
    batch = tiny.inputs(length=10)
    torch.manual_seed(0)
    model(**batch, use_cache=False, labels=batch["input_ids"]).loss.backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model.gradient_checkpointing_enable()
    torch.manual_seed(0)
    model(**batch, use_cache=False, labels=batch["input_ids"]).loss.backward()
    for found, wanted in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(found.grad, wanted)
    for backend in BACKENDS:
        half = hax.set_mask(tiny.tiny_model(BertModel).to(torch.bfloat16), "butterfly", backend=backend)
        with torch.no_grad():
            assert half(**batch).last_hidden_state.isfinite().all()
