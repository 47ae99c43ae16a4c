"""A trained head was re-initialised on load elsewhere; loading it silently new is an error here."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification

from hf_attn_ext import integration as hax
from hf_attn_ext.errors import AttnExtError
from tests.integration import tiny


def test_the_head_is_the_saved_one_or_an_error(tmp_path):
    model = hax.convert(tiny.tiny_model(BertForSequenceClassification), tiny.KERNEL)
    torch.nn.init.normal_(model.classifier.weight)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(loaded.classifier.weight, model.classifier.weight)

    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop("classifier.weight")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "attn_ext_manifest.json").unlink()
    with pytest.raises(AttnExtError, match=r"lacks 'classifier.weight'"):
        AutoModelForSequenceClassification.from_pretrained(tmp_path)
