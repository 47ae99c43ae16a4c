"""The stored form of masks: read once, shared by copies, read again after an edit, and the form of older folders."""

import copy
import json

import pytest
import torch
from transformers import BertModel, LlamaForCausalLM

import hf_attn_ext as hax
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec, masks
from hf_attn_ext.integration.masking.entries import FIELD
from hf_attn_ext.integration.masking.recipe import Recipe
from hf_attn_ext.integration.masking.settings import MaskSettings
from tests.integration import tiny

# As written by versions that kept a mask as JSON text.
OLD = {
    "backend": "eager",
    "layers": [0, [1, 0]],
    "masks": [
        {"name": "sliding_window", "options": {"w": 3}},
        {
            "bits": "eNqb2QAAAbQBGg==", "inputs": [["token", 0], ["token", 1], ["token", 2]],
            "labels": [[0, 1]], "position_ids": [0, 1, 2], "positions": 3, "roles": ["token"] * 3, "title": "mine",
            "tokens": 3,
        },
    ],
}  # fmt: skip


def test_the_object_of_set_mask_is_the_object_of_the_call():
    spec = MaskSpec.from_mask(torch.ones(4, 4, dtype=torch.bool).tril(1), name="mine")
    model = hax.set_mask(tiny.tiny_model(BertModel), spec, allow_leaks=True)
    settings = MaskSettings.of(model.config)
    assert settings.layers[0].example() is spec
    assert MaskSettings.of(copy.deepcopy(model.config)) is settings
    assert MaskSettings.of(type(model.config).from_dict(json.loads(model.config.to_json_string()))) is settings


def test_an_edited_configuration_is_read_again():
    model = hax.set_mask(tiny.tiny_model(LlamaForCausalLM), "sliding_window", w=3)
    before = MaskSettings.of(model.config)
    entry = getattr(model.config, FIELD)
    entry["masks"][0]["options"]["w"] = 2
    assert hax.get_mask(model) == [("sliding_window", {"w": 2})] * 2
    entry["masks"][0]["options"]["w"] = 3
    assert MaskSettings.of(model.config).layers == before.layers
    hax.get_mask(model)[0][1]["w"] = 7  # what is returned is a copy
    assert hax.get_mask(model) == [("sliding_window", {"w": 3})] * 2
    entry["layers"] = [0, 5]
    with pytest.raises(AttnExtError, match=r"attn_ext_mask is broken.*IndexError.*set it anew"):
        hax.get_mask(model)
    entry["masks"][0] = {"name": "sliding_window", "options": {"w": object()}}
    with pytest.raises(AttnExtError, match="attn_ext_mask is broken"):
        hax.get_mask(model)


def test_the_form_of_older_folders_opens():
    config = tiny.tiny_config("bert", **{FIELD: copy.deepcopy(OLD)})
    settings = MaskSettings.of(config)
    window = Recipe.by_name("sliding_window", {"w": 3})
    assert settings.backend == "eager" and settings.layers == (window, (Recipe.of_spec(_mine()), window))
    settings.store(config)
    assert getattr(config, FIELD) == OLD


def test_recipes_are_equal_where_their_masks_are():
    one, other = Recipe.of_spec(_mine()), Recipe.of_spec(_mine())
    assert one == other and hash(one) == hash(other) and one != Recipe.by_name("causal", {})
    assert Recipe.of_spec(masks.causal(4)) == Recipe.by_name("causal", {"n": 4}) != Recipe.by_name("causal", {})
    Recipe.by_name("sliding_window", {"w": 1})
    with pytest.raises(AttnExtError, match="whole number"):
        Recipe.by_name("sliding_window", {"w": True})  # equal to 1, but not valid


def _mine():
    matrix = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 1]], dtype=torch.bool)
    return MaskSpec.from_mask(matrix, name="mine", labels={0: 1})
