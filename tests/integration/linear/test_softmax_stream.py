"""The softmax stream, and data-aware initialisation from it."""

import pytest
import torch
from transformers import BertModel, DistilBertModel, ElectraModel, RobertaModel, XLMRobertaModel

from hf_attn_ext import integration as hax
from hf_attn_ext.attention import linear_attention
from hf_attn_ext.errors import AttnExtError
from tests.integration import tiny


@pytest.mark.parametrize("cls", [BertModel, RobertaModel, XLMRobertaModel, DistilBertModel, ElectraModel])
def test_the_stream_is_the_softmax_model(cls):
    stock = tiny.tiny_model(cls)
    batch, calls = tiny.inputs(), []
    expected = stock(**batch).last_hidden_state
    model = hax.convert(stock, tiny.KERNEL)
    linear = model(**batch).last_hidden_state
    with hax.softmax_stream(model, calls.append):
        found = model(**batch).last_hidden_state
    real = batch["attention_mask"].bool()
    assert torch.allclose(found[real], expected[real], atol=1e-6)
    assert torch.equal(model(**batch).last_hidden_state, linear)
    assert [call.layer_idx for call in calls] == [0, 1]
    assert [call.name for call in calls] == [layer.name for layer in hax.converted_layers(model)]
    for call in calls:
        assert call.query.shape == call.key.shape == call.value.shape == call.output.shape == (3, 2, 7, 8)
        assert torch.equal(call.key_padding_mask, real) and call.scaling == pytest.approx(8**-0.5)
        scores = (call.query @ call.key.mT * call.scaling).masked_fill(~real[:, None, None], -torch.inf)
        assert torch.allclose(scores.softmax(-1) @ call.value, call.output, atol=1e-6)


def test_no_attention_dropout_in_the_stream():
    model = hax.convert(
        tiny.tiny_model(BertModel, attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.0), tiny.KERNEL
    )
    with hax.softmax_stream(model, lambda call: None):
        expected = model(**tiny.inputs()).last_hidden_state
        assert torch.equal(model.train()(**tiny.inputs()).last_hidden_state, expected)


def test_losses_may_run_their_backward_inside_the_call(model):
    hax.convert(model, tiny.KERNEL)
    trainable = hax.freeze_all_but_feature_maps(model)

    def on_layer(call):
        with torch.enable_grad():
            q, k, v = (x.detach() for x in (call.query, call.key, call.value))
            found = linear_attention(q, k, v, call.feature_map, key_padding_mask=call.key_padding_mask)
            (found - call.output).square().sum().backward()

    with torch.no_grad(), hax.softmax_stream(model, on_layer):
        model(**tiny.inputs())
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in trainable)


def test_only_converted_layers_are_in_the_stream(model):
    hax.convert(model, tiny.KERNEL, layers=[1])
    calls = []
    with hax.softmax_stream(model, calls.append):
        model(**tiny.inputs())
    assert [call.layer_idx for call in calls] == [1]


def test_the_stream_ends_with_the_block_and_does_not_nest(model):
    with pytest.raises(AttnExtError, match="convert"), hax.softmax_stream(model, print):
        pass
    hax.convert(model, tiny.KERNEL)
    expected = model(**tiny.inputs()).logits
    with pytest.raises(RuntimeError, match="mine"), hax.softmax_stream(model, print):
        raise RuntimeError("mine")
    assert torch.equal(model(**tiny.inputs()).logits, expected)
    with hax.softmax_stream(model, lambda call: None):
        with pytest.raises(AttnExtError, match="already"), hax.softmax_stream(model, print):
            pass
        assert not torch.equal(model(**tiny.inputs()).logits, expected)


def test_calibrate_sees_real_tokens_only_and_changes_the_maps(model):
    hax.convert(model, tiny.KERNEL)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batches = [tiny.inputs(seed=seed) for seed in range(3)]
    model.train()
    statistics = hax.calibrate(model, [{**batch, "labels": batch["input_ids"], "text": ["a"]} for batch in batches])
    assert model.training
    assert [each.count for each in statistics.values()] == [3 * (7 + 6 + 5)] * 2
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed and all(".feature_map." in name for name in changed)

    keys = []
    with hax.softmax_stream(model.eval(), lambda call: keys.append(call.key)):
        for batch in batches:
            model(**batch)
    real = torch.cat([batch["attention_mask"] for batch in batches]).bool()
    first = torch.cat(keys[0::2]).transpose(1, 2)[real].double()
    assert torch.allclose(statistics[hax.converted_layers(model)[0].name].key_mean, first.mean(0), atol=1e-6)


def test_calibrate_takes_one_batch_and_names_what_is_none(model):
    hax.convert(model, tiny.KERNEL)
    batch = tiny.inputs()
    one, listed = hax.calibrate(model, batch), hax.calibrate(model, [batch])
    assert all(one[name].key_mean.equal(listed[name].key_mean) for name in listed)
    for wrong, kind in ((["a text"], "str"), ([batch["input_ids"]], "Tensor")):
        with pytest.raises(AttnExtError, match=f"dictionaries.*got {kind};"):
            hax.calibrate(model, wrong)


def test_calibrate_without_data_is_an_error(model):
    hax.convert(model, tiny.KERNEL)
    with pytest.raises(AttnExtError):
        hax.calibrate(model, [])
