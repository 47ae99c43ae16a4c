"""Attention maps and what queries see, computed from captured calls, are those that the model itself reports."""

import dataclasses
import warnings

import pytest
import torch
from transformers import BertForMaskedLM, DistilBertForMaskedLM, GPT2LMHeadModel, LlamaForCausalLM

import hf_attn_ext as hax
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec
from hf_attn_ext.integration.capture.attention_maps import attention_map, visible_keys
from hf_attn_ext.integration.capture.capture import capture
from hf_attn_ext.integration.masking.call import given_mask
from tests.integration import tiny

FAMILIES = [BertForMaskedLM, DistilBertForMaskedLM, GPT2LMHeadModel, LlamaForCausalLM]
KERNEL = {"kernel": "flexformer_p", "num_features": 4}


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="set_mask on")
        yield


def drawn_mask(dense=False):
    mask = torch.rand(7, 7, generator=torch.Generator().manual_seed(3)) > 0.6
    spec = MaskSpec.from_mask(mask | torch.eye(7, dtype=torch.bool))
    return spec.densify() if dense else spec


SETTINGS = {
    "causal": lambda m: hax.set_mask(m, "causal"),
    "everything": lambda m: hax.set_mask(m, "bidirectional"),
    "eager": lambda m: hax.set_mask(m, drawn_mask(), backend="eager"),
    "flex": lambda m: hax.set_mask(m, "sliding_window", w=3, backend="flex"),
    "heads": lambda m: hax.set_mask(m, "causal", per_head={1: ["bidirectional", drawn_mask()]}, allow_leaks=True),
    "one layer": lambda m: hax.set_mask(m, per_layer={0: ("sliding_window", {"w": 2})}, allow_leaks=True),
    "linear, causal": lambda m: hax.set_mask(hax.convert(m, **KERNEL), "causal"),
    "linear, everything": lambda m: hax.set_mask(hax.convert(m, **KERNEL), "bidirectional"),
    "linear, an order": lambda m: hax.set_mask(hax.convert(m, **KERNEL), drawn_mask(dense=True)),
    "linear, signed": lambda m: hax.set_mask(hax.convert(m, kernel="flexformer_s", num_features=4), "causal"),
    "linear and softmax": lambda m: hax.set_mask(hax.convert(m, layers=[1], **KERNEL), "causal"),
    "linear, one layer": lambda m: hax.set_mask(hax.convert(m, **KERNEL), per_layer={1: "causal"}, allow_leaks=True),
}


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("cls", FAMILIES)
@torch.no_grad()
def test_maps_under_masks_are_the_models_own(cls, setting, padded):
    model, calls, batch = tiny.tiny_model(cls), [], tiny.inputs(padded=padded)
    SETTINGS[setting](model)
    if cls in (GPT2LMHeadModel, LlamaForCausalLM):
        batch["use_cache"] = False
    with capture(model, calls.append):
        model(**batch)
    calls = calls[:2]
    expected = model(**batch, output_attentions=True).attentions
    for call, weights in zip(calls, expected, strict=True):
        for row, real in enumerate(batch["attention_mask"].bool()):
            found = attention_map(call, row)
            assert torch.allclose(found[:, real], weights[row][:, real], atol=1e-5), (call.layer.index, row)
            assert torch.equal(attention_map(call, row, [1]), found[1:])
            seen = visible_keys(call, row).expand(2, -1, -1)[:, real]
            assert (
                not weights[row][:, real][~seen].any() and (seen == (weights[row][:, real] != 0)).float().mean() > 0.9
            )


@pytest.mark.parametrize("linear", [False, True])
@torch.no_grad()
def test_maps_under_a_mask_given_for_inference(linear):
    model, calls, ids = tiny.tiny_model(BertForMaskedLM), [], tiny.inputs(padded=False)["input_ids"]
    hax.set_mask(hax.convert(model, **KERNEL) if linear else model, "causal")
    mask = torch.ones(3, 7, 7, dtype=torch.bool).tril()
    mask[1] = torch.eye(7, dtype=torch.bool)
    with given_mask(model.config, mask, torch.arange(7).expand(3, 7)):
        with capture(model, calls.append):
            model(ids)
        expected = model(ids, output_attentions=True).attentions
    for call, weights in zip(calls, expected, strict=True):
        for row in range(3):
            assert torch.allclose(attention_map(call, row), weights[row], atol=1e-5)
            assert torch.equal(visible_keys(call, row)[0], mask[row])


def test_a_mask_of_a_form_that_cannot_be_read_is_one_line():
    model, calls = tiny.tiny_model(LlamaForCausalLM), []
    with torch.no_grad(), capture(model, calls.append):
        model(**tiny.inputs(), use_cache=False)
    for mask in (object(), torch.ones(7)):
        for read in (attention_map, visible_keys):
            with pytest.raises(AttnExtError, match=r"which the probe cannot read.*sample=0") as caught:
                read(dataclasses.replace(calls[0], attention_mask=mask), 0)
            assert "\n" not in str(caught.value)
