"""A softmax checkpoint with attn_implementation="flexformer": maps on first use, said aloud, never lost in silence."""

import copy
import pickle
import warnings

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, DistilBertModel, RobertaForMaskedLM, RobertaModel

from hf_attn_ext import integration as hax
from hf_attn_ext.errors import AttnExtError
from tests.integration import tiny


@pytest.fixture
def folder(tmp_path):
    tiny.tiny_model(RobertaForMaskedLM).save_pretrained(tmp_path / "stock")
    return tmp_path / "stock"


def opened(folder):
    return AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="flexformer")


def used(folder):
    model = opened(folder)
    with pytest.warns(UserWarning, match="untrained"):
        model(**tiny.inputs())
    return model


def test_maps_come_on_first_use_with_one_warning(folder):
    model = opened(folder)
    assert hax.converted_layers(model) == []
    with pytest.warns(UserWarning, match="attn_implementation") as caught:
        first = model(**tiny.inputs()).logits
    assert [str(w.message).startswith("attn_implementation='flexformer'") for w in caught] == [True]
    assert "optimizer" in str(caught[0].message) and "convert(model)" in str(caught[0].message)
    assert [layer.layer_idx for layer in hax.converted_layers(model)] == [0, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(model(**tiny.inputs()).logits, first)
    softmax = AutoModelForMaskedLM.from_pretrained(folder)(**tiny.inputs()).logits
    assert not torch.allclose(first, softmax, atol=1e-3)
    real = tiny.inputs()["attention_mask"].bool()
    alone = model(input_ids=tiny.inputs()["input_ids"][2:, :5]).logits
    assert torch.allclose(alone[0], first[2][real[2]], atol=1e-4)


def test_maps_are_those_that_convert_makes(folder):
    lazily = used(folder)(**tiny.inputs()).logits
    assert torch.equal(lazily, used(folder)(**tiny.inputs()).logits)
    assert torch.equal(lazily, hax.convert(AutoModelForMaskedLM.from_pretrained(folder))(**tiny.inputs()).logits)


@pytest.mark.parametrize("read", ["save_pretrained", "state_dict"])
def test_the_state_of_such_a_model_is_refused(folder, tmp_path, read):
    model = used(folder)
    with pytest.raises(AttnExtError, match=r"attached on first use.*convert.*revert"):
        model.save_pretrained(tmp_path / "out") if read == "save_pretrained" else model.state_dict()
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_convert_adopts_the_maps_and_then_they_save(folder, tmp_path):
    model = used(folder)
    with torch.no_grad():
        for parameter in hax.converted_layers(model)[0].feature_map.parameters():
            parameter.add_(0.1)
    expected = model(**tiny.inputs()).logits
    hax.convert(model)
    assert torch.equal(model(**tiny.inputs()).logits, expected)
    model.save_pretrained(tmp_path / "out")
    assert torch.equal(AutoModelForMaskedLM.from_pretrained(tmp_path / "out")(**tiny.inputs()).logits, expected)
    hax.revert(model)
    assert model.config._attn_implementation == "sdpa"


def test_convert_with_other_settings_is_refused(folder):
    with pytest.raises(AttnExtError, match=r"holds 'flexformer_p' feature maps.*revert"):
        hax.convert(used(folder), kernel="hedgehog")


def test_revert_drops_the_maps(folder):
    model = hax.revert(used(folder))
    assert torch.equal(
        model(**tiny.inputs()).logits, AutoModelForMaskedLM.from_pretrained(folder)(**tiny.inputs()).logits
    )
    model.state_dict()


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_keep_maps_and_refusal(folder, clone):
    model = used(folder)
    twin = clone(model)
    assert torch.equal(twin(**tiny.inputs()).logits, model(**tiny.inputs()).logits)
    with pytest.raises(AttnExtError, match="first use"):
        twin.state_dict()


def test_a_family_without_layer_numbers(tmp_path):
    tiny.tiny_model(DistilBertModel).save_pretrained(tmp_path / "stock")
    model = AutoModel.from_pretrained(tmp_path / "stock", attn_implementation="flexformer")
    with pytest.warns(UserWarning, match="untrained"):
        lazily = model(**tiny.inputs()).last_hidden_state
    converted = hax.convert(AutoModel.from_pretrained(tmp_path / "stock"))
    assert torch.equal(converted(**tiny.inputs()).last_hidden_state, lazily)


def test_weights_and_from_config():
    model = AutoModel.from_config(tiny.tiny_config("roberta"), attn_implementation="flexformer")
    assert type(model) is RobertaModel and model.training
    with pytest.warns(UserWarning, match="untrained"):
        output = model.eval()(**tiny.inputs(), output_attentions=True)
    assert len(output.attentions) == 2


def test_maps_first_met_in_inference_mode_are_trainable_later(folder):
    model = opened(folder)
    with torch.inference_mode(), pytest.warns(UserWarning, match="untrained"):
        model(**tiny.inputs())
    hax.convert(model)
    model(**tiny.inputs(), labels=tiny.inputs()["input_ids"]).loss.backward()
    gradients = [p.grad for layer in hax.converted_layers(model) for p in layer.feature_map.parameters()]
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in gradients)
