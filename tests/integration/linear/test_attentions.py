"""output_attentions is answered with what the layer really applied, never with an empty tuple."""

import pytest
import torch
from transformers import AutoModel, BertModel, DistilBertModel, ElectraModel, RobertaModel, XLMRobertaModel

from hf_attn_ext import integration as hax
from hf_attn_ext.attention import attention_weights
from tests.integration import tiny

BASES = [BertModel, RobertaModel, XLMRobertaModel, DistilBertModel, ElectraModel]


def listen(model):
    """Collect queries, keys, values and outputs of every attention call of a converted model."""
    calls = []
    with hax.softmax_stream(model, calls.append):
        model(**tiny.inputs())
    return calls


@pytest.mark.parametrize("cls", BASES)
@pytest.mark.parametrize("kernel", ["flexformer_p", "flexformer_n", "hedgehog"])
def test_weights_are_those_that_were_applied(cls, kernel):
    model = hax.convert(tiny.tiny_model(cls), kernel=kernel, num_features=4)
    plain = model(**tiny.inputs()).last_hidden_state
    output = model(**tiny.inputs(), output_attentions=True)
    assert torch.equal(output.last_hidden_state, plain)
    assert len(output.attentions) == 2 and output.attentions[0].shape == (3, 2, 7, 7)
    call = listen(model)[0]
    expected = attention_weights(
        call.query, call.key, call.feature_map, key_padding_mask=call.key_padding_mask, scaling=call.scaling
    )
    assert torch.allclose(output.attentions[0], expected, atol=1e-6)
    assert output.attentions[0][1, :, :, 6:].abs().max() == 0


def test_hybrid_returns_softmax_weights_for_softmax_layers():
    stock = tiny.tiny_model(BertModel)
    stock.set_attn_implementation("eager")
    expected = stock(**tiny.inputs(), output_attentions=True).attentions
    hybrid = hax.convert(stock, tiny.KERNEL, layers=[1])
    found = hybrid(**tiny.inputs(), output_attentions=True).attentions
    assert len(found) == 2
    assert torch.allclose(found[0], expected[0], atol=1e-6)
    assert not torch.allclose(found[1], expected[1], atol=1e-3)


def test_the_configuration_may_ask(tmp_path):
    model = hax.convert(tiny.tiny_model(RobertaModel), tiny.KERNEL)
    model.config.output_attentions = True
    assert len(model(**tiny.inputs()).attentions) == 2
    model.save_pretrained(tmp_path / "model")
    assert len(AutoModel.from_pretrained(tmp_path / "model", output_attentions=True)(**tiny.inputs()).attentions) == 2


def test_hidden_states_are_recorded_after_the_swap():
    model = hax.convert(tiny.tiny_model(RobertaModel), tiny.KERNEL)
    assert len(model(**tiny.inputs(), output_hidden_states=True).hidden_states) == 3
    hax.revert(model)
    assert len(model(**tiny.inputs(), output_hidden_states=True).hidden_states) == 3


def test_weights_inside_the_softmax_stream_are_softmax():
    stock = tiny.tiny_model(BertModel)
    stock.set_attn_implementation("eager")
    expected = stock(**tiny.inputs(), output_attentions=True).attentions
    model = hax.convert(stock, tiny.KERNEL)
    with hax.softmax_stream(model, lambda call: None):
        found = model(**tiny.inputs(), output_attentions=True).attentions
    for x, y in zip(found, expected, strict=True):
        assert torch.allclose(x, y, atol=1e-6)
