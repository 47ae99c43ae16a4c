"""Weights mapped from a file start at odd addresses, and the CPU's matrix routines then give other last bits."""

import torch
from transformers import AutoModelForMaskedLM, RobertaForMaskedLM

from hf_attn_ext import integration as hax
from tests.integration import tiny


def test_reloaded_weights_lie_as_torch_allocates_them(tmp_path):
    model = hax.convert(tiny.tiny_model(RobertaForMaskedLM).double(), tiny.KERNEL)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert all(p.data_ptr() % 64 == 0 for p in loaded.parameters())
    assert torch.equal(loaded(**tiny.inputs()).logits, model(**tiny.inputs()).logits)
    assert loaded.lm_head.decoder.weight is loaded.roberta.embeddings.word_embeddings.weight
