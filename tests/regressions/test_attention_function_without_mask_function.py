"""An attention function registered without a mask function of its name gets no mask at all, silently."""

import torch
from transformers import RobertaModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_attn_ext import integration as hax
from hf_attn_ext.integration.linear import attention_function as registry
from tests.integration import tiny


def test_both_are_registered_under_one_name():
    assert ALL_ATTENTION_FUNCTIONS["flexformer"] is registry.flexformer_attention
    assert ALL_MASK_ATTENTION_FUNCTIONS["flexformer"] is registry.padding_mask
    assert ALL_ATTENTION_FUNCTIONS["hasse"] is registry.hasse_attention
    assert ALL_MASK_ATTENTION_FUNCTIONS["hasse"] is registry.hasse_mask


def test_the_mask_reaches_every_layer():
    model = hax.convert(tiny.tiny_model(RobertaModel), tiny.KERNEL)
    masks = []
    with hax.softmax_stream(model, lambda call: masks.append(call.key_padding_mask)):
        model(**tiny.inputs())
    assert len(masks) == 2
    assert all(torch.equal(mask, tiny.inputs()["attention_mask"].bool()) for mask in masks)
