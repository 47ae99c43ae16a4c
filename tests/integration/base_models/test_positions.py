"""Longer than before: learned positions are repeated, short texts come out as they did."""

import pytest
import torch
from transformers import AutoModel, BertModel, DistilBertModel, ElectraModel, GPT2Model, LlamaModel, RobertaModel

import hf_attn_ext as hax
from hf_attn_ext.errors import AttnExtError
from tests.integration import tiny

MODELS = [BertModel, RobertaModel, DistilBertModel, ElectraModel, GPT2Model]


@pytest.mark.parametrize("cls", MODELS)
@pytest.mark.parametrize("converted", [False, True])
def test_short_texts_are_unchanged_and_long_ones_pass(cls, converted, tmp_path):
    model = tiny.tiny_model(cls)
    if converted:
        hax.convert(model, tiny.KERNEL)
    batch = tiny.inputs()
    with torch.no_grad():
        before = model(**batch)[0]
        assert hax.extend_positions(model, 100) is model
        assert torch.equal(model(**batch)[0], before)
        long = tiny.inputs(batch=1, length=100, padded=False)
        out = model(**long)[0]
        assert out.shape[1] == 100 and out.isfinite().all()
        with pytest.raises((IndexError, RuntimeError)):
            model(**tiny.inputs(batch=1, length=101, padded=False))
        model.save_pretrained(tmp_path)
        assert torch.equal(AutoModel.from_pretrained(tmp_path)(**long)[0], out)


def test_positions_repeat_from_the_start():
    """RoBERTa's first two rows are not positions: they stay, once."""
    model = tiny.tiny_model(RobertaModel)
    old = model.embeddings.position_embeddings.weight.detach().clone()
    first, usable = 1, 39  # padding index 0
    hax.extend_positions(model, 90)
    new = model.embeddings.position_embeddings.weight
    assert model.config.max_position_embeddings == len(new) == first + 90
    assert torch.equal(new[: first + usable], old)
    assert torch.equal(new[first + usable : first + 2 * usable], old[first:])
    assert new.requires_grad


@pytest.mark.parametrize(
    ("cls", "length", "message"),
    [
        (LlamaModel, 100, "LlamaModel has no table of learned positions.*rope"),
        (BertModel, 20, "BertModel has 40 positions already, got length 20"),
        (BertModel, 0, "got 0"),
        (BertModel, 99.5, "got 99.5"),
    ],
)
def test_what_cannot_be_extended_is_named(cls, length, message):
    with pytest.raises(AttnExtError, match=message):
        hax.extend_positions(tiny.tiny_model(cls), length)
