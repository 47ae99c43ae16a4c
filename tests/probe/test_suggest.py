"""Which layers should keep softmax: one known to be hard is found, the errors are real, the model is left."""

import itertools
import json
import re

import planted
import pytest
import torch

import hf_attn_ext as hax
from hf_attn_ext.probe import suggest_layers

TEXTS = planted.make_texts(9, sentences=2)


@torch.no_grad()
def hard_bert(hard, layers=4, seed=0):
    """Sharp attention in layer ``hard``, nearly uniform attention, which every kernel can follow, in the others."""
    model = planted.small_bert(seed=seed, num_hidden_layers=layers)
    for number, layer in enumerate(model.encoder.layer):
        its = layer.attention.self
        for linear in (its.query, its.key):
            linear.weight.mul_(6.0 if number == hard else 0.02)
    return model


@pytest.mark.parametrize("hard", [0, 2])
def test_a_layer_planted_as_hard_is_kept(tokenizer, hard):
    found = suggest_layers(hard_bert(hard), tokenizer, TEXTS, keep=1, num_features=4)
    assert found.keep == found.order == [hard] and hard not in found.convert and len(found.convert) == 3
    assert found.errors[1] < 0.8 * found.errors[0]
    assert f"layer {hard}: keeping it takes the error from" in found.reason(hard)
    other = found.convert[0]
    assert f"layer {other}: keeping it alone would take the error" in found.reason(other)


@torch.no_grad()
def test_errors_are_those_of_real_hybrids(tokenizer):
    model = planted.small_bert(num_hidden_layers=3).double()
    found = suggest_layers(model, tokenizer, TEXTS, keep=2, num_features=4, seed=3, batch_size=1)
    seen, unseen = ([tokenizer(text, return_tensors="pt") for text in TEXTS[start::2]] for start in (0, 1))
    expected = [model(**batch).last_hidden_state for batch in unseen]

    def error(kept):
        hybrid = planted.small_bert(num_hidden_layers=3).double()
        hax.convert(hybrid, num_features=4, seed=3, layers=[layer for layer in range(3) if layer not in kept])
        hax.calibrate(hybrid, seen)
        found = [hybrid(**batch).last_hidden_state for batch in unseen]
        above = sum((one - two).square().sum() for one, two in zip(found, expected, strict=True))
        return float(above / sum(one.square().sum() for one in expected))

    first = min(range(3), key=lambda layer: error([layer]))
    second = min(set(range(3)) - {first}, key=lambda layer: error([first, layer]))
    assert found.order == [first, second]
    assert found.errors == pytest.approx([error([]), error([first]), error([first, second])], rel=1e-9)
    for kept, errors in zip(([], [first]), found.choices, strict=True):
        assert errors == pytest.approx({layer: error([*kept, layer]) for layer in set(range(3)) - set(kept)}, rel=1e-9)
    assert found.counts["initialising_texts"] == 5 and found.counts["measuring_texts"] == 4


def test_the_model_stays_and_the_suggestion_converts_it(tokenizer):
    model = hard_bert(1).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = suggest_layers(model, tokenizer, TEXTS, keep=2, num_features=4)
    assert model.training and type(model).__name__ == "BertModel" and not hax.is_converted(model)
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    again = suggest_layers(model, tokenizer, TEXTS, keep=1, num_features=4)
    assert again.order == found.order[:1] and again.errors == found.errors[:2]
    hax.convert(model, layers=found.convert)
    assert [layer.layer_idx for layer in hax.converted_layers(model)] == found.convert


def test_tables_and_files(tokenizer, tmp_path):
    found = suggest_layers(hard_bert(1), tokenizer, TEXTS, keep=2, num_features=4)
    rows = found.rows()
    assert [row["layer"] for row in rows] == [0, 1, 2, 3] and sum(row["kept"] for row in rows) == 2
    assert rows[1]["place"] == 1 and rows[1]["error_if_alone_kept"] == found.errors[1]
    stored = json.loads(found.to_json(tmp_path / "layers.json"))
    assert stored == json.loads((tmp_path / "layers.json").read_text()) and stored["keep"] == found.keep
    assert stored["settings"]["kernel"]["kernel"] == "flexformer_c"


def test_a_decoder(tokenizer):
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    sizes = dict(n_embd=16, n_layer=3, n_head=2, n_positions=64, vocab_size=len(planted.VOCABULARY))
    found = suggest_layers(GPT2Model(GPT2Config(**sizes)), tokenizer, TEXTS, keep=1, num_features=4)
    assert len(found.keep) == 1 and all(0 <= error < 1 for error in itertools.chain(*map(dict.values, found.choices)))


def test_errors(tokenizer):
    model = planted.small_bert()

    def refused(message, keep=1, texts=TEXTS[:2], its=model, tok=tokenizer, **options):
        with pytest.raises(hax.AttnExtError, match=re.escape(message)):
            suggest_layers(its, tok, texts, keep, num_features=4, **options)

    refused("keep must lie between 1 and 1, for a model of 2 layers", keep=2)
    refused("keep must be a whole number of at least 1, got 0", keep=0)
    refused("one text is too few", texts=TEXTS[:1])
    refused("there are no texts", texts=[])
    refused("Did you mean 'hedgehog'?", kernel="hegdehog")
    refused("needs the model's tokenizer", tok=None)
    refused("batch_size must be", batch_size=0)
    refused("is converted already", its=hax.convert(planted.small_bert()))
    with pytest.raises(hax.AttnExtError, match="no layer 7 was measured"):
        suggest_layers(model, tokenizer, TEXTS, 1, num_features=4).reason(7)
