"""A mask in the configuration that the model does not attend by is no mask: whatever relies on one says so."""

import warnings

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, BertForMaskedLM, GPT2LMHeadModel

import hf_attn_ext as hax
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.inference import block_generate, butterfly_score
from hf_attn_ext.training import BlockTwoStreamCollator, ButterflyCollator
from tests.integration import tiny

WORDS = "does not use the mask in its configuration; call model.set_attn_implementation"


class Tokens:
    pad_token_id, mask_token_id = 0, 39


CASES = [
    ("butterfly", {}, lambda m: butterfly_score(m, torch.tensor([[5, 6, 7]]))),
    ("butterfly", {}, lambda m: ButterflyCollator(Tokens, m)),
    ("block_two_stream", {"block_size": 2}, lambda m: BlockTwoStreamCollator(Tokens, m)),
    ("block_two_stream", {"block_size": 2}, lambda m: block_generate(m, torch.tensor([[5, 6]]), mask_token_id=39)),
]


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="set_mask on")
        yield


def opened(model, folder):
    model.save_pretrained(folder)
    return (AutoModelForCausalLM if isinstance(model, GPT2LMHeadModel) else AutoModelForMaskedLM).from_pretrained(
        folder
    )


def other_attention(model, folder):
    model.set_attn_implementation("eager")
    return model


@pytest.mark.parametrize(("name", "options", "use"), CASES)
@pytest.mark.parametrize("lose", [opened, other_attention])
@pytest.mark.parametrize("cls", [GPT2LMHeadModel, BertForMaskedLM])
def test_what_needs_the_mask_refuses_one_that_is_not_in_use(cls, lose, name, options, use, tmp_path):
    model = lose(hax.set_mask(tiny.tiny_model(cls), name, **options), tmp_path)
    with pytest.raises(AttnExtError, match=WORDS) as error:
        use(model)
    assert "\n" not in str(error.value)
    with pytest.warns(UserWarning, match=WORDS):
        assert hax.get_mask(model) == [(name, options)] * 2
    model.set_attn_implementation("hasse")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hax.get_mask(model) == [(name, options)] * 2
        use(model)


@pytest.mark.parametrize(("name", "options", "use"), CASES)
def test_a_converted_model_attends_by_its_mask_when_opened_without_a_word(name, options, use, tmp_path):
    model = hax.set_mask(hax.convert(tiny.tiny_model(BertForMaskedLM), tiny.KERNEL), name, **options)
    found = opened(model, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        use(found)


@pytest.mark.parametrize("given", ["x", None, torch.nn.Linear(2, 2)])
def test_the_mask_of_what_is_no_model(given):
    with pytest.raises(AttnExtError, match="model must be a Transformers model, got"):
        hax.get_mask(given)


@pytest.mark.parametrize("before", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "steps",
    [
        "mask convert unmask revert",
        "mask convert revert unmask",
        "convert mask revert unmask",
        "convert mask unmask revert",
        "mask unmask convert revert",
    ],
)
@torch.no_grad()
def test_masks_and_conversions_come_off_in_any_order(steps, before):
    model, batch = tiny.tiny_model(BertForMaskedLM), tiny.inputs()
    model.set_attn_implementation(before)
    expected = model(**batch).logits
    do = {
        "mask": lambda: hax.set_mask(model, "causal"),
        "unmask": lambda: hax.set_mask(model, None),
        "convert": lambda: hax.convert(model, tiny.KERNEL),
        "revert": lambda: hax.revert(model),
    }
    for step in steps.split():
        do[step]()
        assert model(**batch).logits.isfinite().all()
    assert model.config._attn_implementation == before and hax.get_mask(model) is None
    assert torch.equal(model(**batch).logits, expected)
    assert not [name for name in vars(model) if name.startswith("_attn_ext_before")]


@torch.no_grad()
def test_maps_of_first_use_come_off_and_the_mask_stays(tmp_path):
    hax.set_mask(tiny.tiny_model(BertForMaskedLM), "causal").save_pretrained(tmp_path)
    model = AutoModelForMaskedLM.from_pretrained(tmp_path, attn_implementation="flexformer")
    batch = tiny.inputs()
    model(**batch)
    expected = AutoModelForMaskedLM.from_pretrained(tmp_path, attn_implementation="hasse")(**batch).logits
    torch.testing.assert_close(hax.revert(model)(**batch).logits, expected)
