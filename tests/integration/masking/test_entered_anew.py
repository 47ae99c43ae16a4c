"""A mask's name given to another function, as when a notebook's cell runs again: nothing of the old mask is left."""

import warnings

import pytest
import torch
from transformers import BertModel, LlamaForCausalLM

import hf_attn_ext as hax
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec, masks
from hf_attn_ext.hasse.registry import _MASKS
from hf_attn_ext.integration.masking.recipe import Recipe
from tests.integration import tiny

FORMS = {
    "causal": lambda q, kv: kv <= q,
    "full": lambda q, kv: (kv >= 0) & (q >= 0),
    "own": lambda q, kv: kv == q,
    "anti": lambda q, kv: kv >= q,
}


def enter(kind, twice=1):
    """Register the mask "mine" by a function of one and the same name."""

    @masks.register_mask("mine", example={"n": 4})
    def mine(n):
        return MaskSpec.of_text(n * twice, name="mine", form=FORMS[kind], labels={})


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    _MASKS.pop("mine", None)


@pytest.mark.parametrize("backend", ["sdpa", "eager", "flex"])
@torch.no_grad()
def test_stock_models_attend_by_the_new_mask(backend):
    batch, found = tiny.inputs(padded=False), {}
    model = tiny.tiny_model(BertModel).double()
    for kind in (*FORMS, *FORMS):
        enter(kind)
        if kind != "own":  # a model that has the name already needs no word
            hax.set_mask(model, "mine", backend=backend)
        found.setdefault(kind, []).append(model(**batch).last_hidden_state)
        weights = model(**batch, output_attentions=True).attentions[0][0, 0]
        at = torch.arange(7)
        assert torch.equal(weights > 0, FORMS[kind](at[:, None], at[None]).expand(7, 7))
    for one, again in found.values():
        assert torch.equal(one, again)
    assert not torch.equal(found["causal"][0], found["full"][0])


@torch.no_grad()
def test_linear_layers_and_caches_follow():
    batch = tiny.inputs(padded=False)
    model, expected = hax.convert(tiny.tiny_model(BertModel).double(), tiny.KERNEL), {}
    for kind in (*FORMS, *FORMS):
        enter(kind)
        output = hax.set_mask(model, "mine")(**batch).last_hidden_state
        torch.testing.assert_close(output, expected.setdefault(kind, output), rtol=0, atol=0)
    assert not torch.equal(expected["causal"], expected["anti"])
    masks.register_mask("mine", example={"n": 4})(_window)  # not dense
    with pytest.raises(AttnExtError, match="not dense"):
        hax.set_mask(model, "mine")
    enter("causal")
    decoder = hax.set_mask(tiny.tiny_model(LlamaForCausalLM), "mine")
    asked = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0}
    decoder.generate(**batch, **asked)
    enter("full")
    with pytest.raises(AttnExtError, match="not safe with a cache"):
        decoder.generate(**batch, **asked)


def test_lengths_and_kinds_follow():
    for kind, twice, length in (("causal", 1, 6), ("full", 2, 6), ("own", 3, 6)):
        enter(kind, twice)
        recipe = Recipe.by_name("mine", {})
        assert recipe.of_length(length).options == {"n": length // twice}
        assert recipe.kind(length) == {"own": "other"}.get(kind, kind)


def _window(n):
    return MaskSpec.of_text(n, name="mine", form=lambda q, kv: (kv <= q) & (kv > q - 2), labels={})


_window.__qualname__ = "enter.<locals>.mine"
