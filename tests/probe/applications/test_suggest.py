"""Which layers should keep softmax: one known to be hard is found, the errors are real, the model is left."""

import itertools
import json
import math
import re

import planted
import pytest
import torch

import hf_attn_ext as hax
from hf_attn_ext.attention.losses import attention_losses
from hf_attn_ext.probe import suggest_layers
from hf_attn_ext.probe.applications.neighbours import neighbour_attention

TEXTS = planted.make_texts(9, sentences=2)


@torch.no_grad()
def hard_bert(hard, layers=4, seed=0):
    """Sharp attention in layer ``hard``, nearly uniform attention, which every kernel can follow, in the others."""
    model = planted.small_bert(seed=seed, num_hidden_layers=layers)
    for number, layer in enumerate(model.encoder.layer):
        attention = layer.attention.self
        for linear in (attention.query, attention.key):
            linear.weight.mul_(6.0 if number == hard else 0.02)
    return model


@pytest.mark.parametrize("hard", [0, 2])
def test_a_layer_planted_as_hard_is_kept(tokenizer, hard):
    found = suggest_layers(hard_bert(hard), tokenizer, TEXTS, keep=1, num_features=4, criterion="error")
    assert found.keep == found.order == [hard] and hard not in found.convert and len(found.convert) == 3
    assert found.errors[1] < 0.8 * found.errors[0]
    assert f"layer {hard}: keeping it takes the error from" in found.reasons[hard]
    other = found.convert[0]
    assert f"layer {other}: keeping it alone would take the error" in found.reasons[other]


@torch.no_grad()
def near_bert(layer):
    """Layer ``layer`` looks at where tokens stand, and all others at everything."""
    model = hard_bert(None)
    angle = torch.arange(64) / 2
    model.embeddings.position_embeddings.weight[:, :2] = 4 * torch.stack([angle.cos(), angle.sin()], 1)
    attention = model.encoder.layer[layer].attention.self
    turn = torch.tensor([[math.cos(0.5), math.sin(0.5)], [-math.sin(0.5), math.cos(0.5)]])  # one position back
    for linear, rows in ((attention.query, turn), (attention.key, torch.eye(2))):
        linear.weight.zero_()
        for head in (0, 8):
            linear.weight[head : head + 2, :2] = 8.0 * rows
    return model


@pytest.mark.parametrize("layer", [0, 3])
def test_a_layer_planted_to_look_at_neighbours_is_kept(tokenizer, layer):
    found = suggest_layers(near_bert(layer), tokenizer, TEXTS, keep=1, criterion="neighbours")
    assert found.keep == [layer] and found.scores[layer] > 0.04
    assert all(abs(found.scores[other]) < 0.01 for other in found.convert)
    assert "rank 1 of 4: keeps softmax" in found.reasons[layer] and not found.errors


@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_neighbour_attention_equals_the_naive_twin(tokenizer, causal):
    texts = planted.make_texts(3, sentences=1) + planted.make_texts(2, sentences=2)
    model = planted.small_bert(is_decoder=causal).double()
    batch = dict(tokenizer(texts, padding=True, return_tensors="pt"))
    batch = {name: batch[name] for name in ("input_ids", "attention_mask")}
    found = neighbour_attention(model, [{name: x[:2] for name, x in batch.items()}, batch], nearest=3)
    model.set_attn_implementation("eager")
    sums, queries = [[0.0, 0.0], [0.0, 0.0]], 0
    for text in [*texts[:2], *texts]:
        maps = model(**tokenizer(text, return_tensors="pt"), output_attentions=True).attentions
        length = maps[0].shape[-1]
        queries += length
        for i in range(length):
            seen = range(i + 1) if causal else range(length)
            near = [j for j in seen if 0 < abs(i - j) <= 3]
            for layer, head in itertools.product(range(2), range(2)):
                sums[layer][head] += float(maps[layer][0, head, i, near].sum()) - len(near) / len(seen)
    for layer in range(2):
        assert found[layer] == pytest.approx([total / queries for total in sums[layer]], abs=1e-9)


def naive_transfer(model, batches, steps):
    """Attention transfer by autograd, layer after layer."""
    layers = hax.converted_layers(model)
    parameters = [parameter for layer in layers for parameter in layer.feature_map.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=0.02, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(steps):
        losses = []

        def add(call, losses=losses):
            with torch.enable_grad():
                terms = attention_losses(call.query, call.key, call.value, call.feature_map, call.scaling)
                errors = terms.squared_error.sum((0, 2)) / terms.squared_norm.sum((0, 2))
                losses.append(terms.cross_entropy.sum() / terms.cross_entropy[:, 0].numel() + errors.sum())

        with torch.no_grad(), hax.softmax_stream(model, add):
            model(**batches[step % len(batches)])
        optimizer.param_groups[0]["lr"] = 0.02 * (1 - step / steps)
        optimizer.zero_grad()
        sum(losses).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()


@pytest.mark.parametrize("steps", [0, 8])
def test_errors_are_those_of_real_hybrids(tokenizer, steps):
    model = planted.small_bert(num_hidden_layers=3).double()
    options = {"num_features": 4, "seed": 3, "batch_size": 1, "criterion": "error", "steps": steps}
    found = suggest_layers(model, tokenizer, TEXTS, keep=2, **options)
    seen, unseen = ([tokenizer(text, return_tensors="pt") for text in TEXTS[start::2]] for start in (0, 1))
    with torch.no_grad():
        expected = [model(**batch).last_hidden_state for batch in unseen]
    trained = hax.convert(planted.small_bert(num_hidden_layers=3).double(), num_features=4, seed=3)
    hax.calibrate(trained, seen)
    naive_transfer(trained, seen, steps)
    maps = {layer.layer_idx: layer.feature_map.state_dict() for layer in hax.converted_layers(trained)}

    @torch.no_grad()
    def error(kept):
        hybrid = planted.small_bert(num_hidden_layers=3).double()
        hax.convert(hybrid, num_features=4, seed=3, layers=[layer for layer in range(3) if layer not in kept])
        for layer in hax.converted_layers(hybrid):
            layer.feature_map.load_state_dict(maps[layer.layer_idx])
        found = [hybrid(**batch).last_hidden_state for batch in unseen]
        above = sum((one - two).square().sum() for one, two in zip(found, expected, strict=True))
        return float(above / sum(one.square().sum() for one in expected))

    first = min(range(3), key=lambda layer: error([layer]))
    second = min(set(range(3)) - {first}, key=lambda layer: error([first, layer]))
    assert found.order == [first, second] and found.settings["maps"] == ("trained" if steps else "initialised")
    assert found.errors == pytest.approx([error([]), error([first]), error([first, second])], rel=1e-9)
    for kept, errors in zip(([], [first]), found.choices, strict=True):
        assert errors == pytest.approx({layer: error([*kept, layer]) for layer in set(range(3)) - set(kept)}, rel=1e-9)
    assert found.scores[first] == found.errors[0] - found.errors[1] and found.counts["texts"] == 9


@pytest.mark.parametrize("criterion", ["neighbours", "error"])
def test_the_model_stays_and_the_suggestion_converts_it(tokenizer, criterion):
    model = hard_bert(1).train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = suggest_layers(model, tokenizer, TEXTS, keep=2, num_features=4, criterion=criterion)
    assert model.training and type(model).__name__ == "BertModel" and not hax.is_converted(model)
    assert before.keys() == model.state_dict().keys()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    again = suggest_layers(model, tokenizer, TEXTS, keep=1, num_features=4, criterion=criterion)
    assert again.order == found.order[:1] and again.errors == found.errors[:2] and again.scores == found.scores
    hax.convert(model, layers=found.convert)
    assert [layer.layer_idx for layer in hax.converted_layers(model)] == found.convert


def test_a_few_steps_lower_the_errors_and_leave_the_model(tokenizer):
    model, options = planted.small_bert(), {"num_features": 4, "keep": 1}
    without, some = (suggest_layers(model, tokenizer, TEXTS, steps=steps, **options) for steps in (0, 10))
    assert some.errors[0] < 0.9 * without.errors[0] and some.settings["maps"] == "trained"
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    with torch.inference_mode():
        inside = suggest_layers(model, tokenizer, TEXTS, steps=10, **options)
    assert inside.errors == some.errors
    for easy, kernel in ((model, {"kernel": "uniform"}), (hard_bert(1), {})):  # nothing to train, and nothing to gain
        found, without = (suggest_layers(easy, tokenizer, TEXTS, steps=n, **options, **kernel) for n in (10, 0))
        assert found.errors == without.errors and found.settings["maps"] == "initialised"


def test_tables_and_files(tokenizer, tmp_path):
    found = suggest_layers(hard_bert(1), tokenizer, TEXTS, keep=2, num_features=4, criterion="error")
    rows = found.rows()
    assert [row["layer"] for row in rows] == [0, 1, 2, 3] and sum(row["kept"] for row in rows) == 2
    assert rows[1]["place"] == 1 and rows[1]["score"] == found.scores[1]
    stored = json.loads(found.to_json(tmp_path / "layers.json"))
    assert stored == json.loads((tmp_path / "layers.json").read_text()) and stored["keep"] == found.keep
    assert stored["settings"]["kernel"]["kernel"] == "flexformer_p"


def test_a_decoder(tokenizer):
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 3, "n_head": 2, "n_positions": 64, "vocab_size": len(planted.VOCABULARY)}
    for criterion in ("neighbours", "error"):
        options = {"num_features": 4, "criterion": criterion}
        found = suggest_layers(GPT2Model(GPT2Config(**sizes)), tokenizer, TEXTS, keep=1, **options)
        assert len(found.keep) == 1 and len(found.convert) == 2


def test_errors(tokenizer):
    model = planted.small_bert()

    def refused(message, keep=1, texts=TEXTS[:2], base=model, tok=tokenizer, **options):
        with pytest.raises(hax.AttnExtError, match=re.escape(message)):
            suggest_layers(base, tok, texts, keep, num_features=4, **options)

    refused("keep must be between 1 and 1 for a model with 2 layers", keep=2)
    refused("keep must be a whole number of at least 1, got 0", keep=0)
    refused("one text is too few", texts=TEXTS[:1])
    refused("there are no texts", texts=[])
    refused("Did you mean 'hedgehog'?", kernel="hegdehog")
    refused("needs the model's tokenizer", tok=None)
    refused("steps must be a whole number of at least 0, got -1", steps=-1)
    refused("batch_size must be", batch_size=0)
    refused("is converted already", base=hax.convert(planted.small_bert()))
    first_use = planted.small_bert()
    first_use.set_attn_implementation("flexformer")
    refused("opened with attn_implementation='flexformer'", base=first_use)
    with pytest.warns(UserWarning, match="untrained"), torch.no_grad():
        first_use(torch.ones(1, 3, dtype=torch.long))
    first_use.set_attn_implementation("sdpa")
    refused("opened with attn_implementation='flexformer'", base=first_use)
    broken = planted.small_bert()
    with torch.no_grad():
        broken.encoder.layer[0].attention.self.value.weight[0, 0] = torch.nan
    for kernel in ("flexformer_p", "elu"):
        refused("last hidden states are all zero or not finite", base=broken, kernel=kernel)
    message = "criterion must be one of error, neighbours, got 'neighbors'. Did you mean 'neighbours'?"
    refused(message, criterion="neighbors")
