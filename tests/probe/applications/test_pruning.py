"""Pruning scores: a planted noise head and a planted constant head come first, the power is the naive one, errors."""

import json
import re

import numpy as np
import planted
import pytest
import torch

import hf_attn_ext as hax
from hf_attn_ext.probe import ContextSimilarityProbe, PruningScores, pruning_scores


@torch.no_grad()
def noisy_bert():
    """Head 0 compares token ids; head 1 has one output for all tokens; head 2 has a random output per position.

    Heads 0 and 2 have much the same power; only head 0's pairs have a reason.
    """
    model = planted.planted_bert()
    draw = torch.Generator().manual_seed(0)
    codes = torch.randn(64, 80, generator=draw)
    model.embeddings.position_embeddings.weight[:, 160:] = 1.0 * codes / codes.norm(dim=1, keepdim=True)
    model.encoder.layer[0].attention.output.dense.weight.copy_(torch.eye(240))
    attention = model.encoder.layer[0].attention.self
    rows = slice(160, 240)
    own = torch.eye(240)[rows]
    for linear in (attention.query, attention.key, attention.value):
        linear.weight[rows] = own
        linear.bias[rows] = 0.0
    return model


def test_a_planted_noise_head_scores_below_one_of_the_same_power(tokenizer):
    found = pruning_scores(noisy_bert(), tokenizer, planted.sentence_texts(30))
    assert isinstance(found, PruningScores) and found.score.shape == (1, 3)
    signal, power = found.signal[0], found.power[0]
    assert signal[0] > signal[2] + 0.2 and 0.5 < power[2] / power[0] < 2
    assert found.lowest(2) == [(0, 1), (0, 2)]  # the constant head, then the noise, and the head with a reason last
    assert power[1] < 0.1 * power[0] and found.magnitude[0, 1] > power[1]


@torch.no_grad()
def test_power_and_signal_are_the_naive_ones(tokenizer):
    texts = planted.make_texts(5) + planted.make_texts(2, sentences=2, seed=4)
    model = planted.small_bert().double()
    found = pruning_scores(model, tokenizer, texts, batch_size=3)
    outputs = [[], []]
    for text in texts:
        hidden = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True, output_attentions=False)
        for layer, states in enumerate(hidden.hidden_states[:2]):
            attention = model.encoder.layer[layer].attention.self
            query, key, value = (
                part(states)[0].view(-1, 2, 8).transpose(0, 1)
                for part in (attention.query, attention.key, attention.value)
            )
            outputs[layer].append((query @ key.mT * 8**-0.5).softmax(-1) @ value)
    for layer in range(2):
        every = torch.cat(outputs[layer], 1)
        mean = every.mean(1, keepdim=True)
        assert np.allclose(found.mean_outputs[layer], mean[:, 0], atol=1e-9)
        weight = model.encoder.layer[layer].attention.output.dense.weight
        for head in range(2):
            added = every[head] @ weight[:, 8 * head : 8 * head + 8].T
            assert found.magnitude[layer, head] == pytest.approx(float(added.square().sum(1).mean()))
            assert found.power[layer, head] == pytest.approx(float((added - added.mean(0)).square().sum(1).mean()))
    with ContextSimilarityProbe(model, tokenizer, percents=[5]) as probe:
        probe.feed(texts)
    assert np.allclose(found.signal, probe.statistics().get("signal").values)
    with ContextSimilarityProbe(model, tokenizer, percents=[5]) as probe:
        probe.feed(texts, boundaries=[","])
    segments = pruning_scores(model, tokenizer, texts, boundaries=[","])
    assert np.allclose(segments.signal, probe.statistics().get("signal").values)
    assert not np.allclose(segments.signal, found.signal) and np.allclose(segments.power, found.power)
    assert np.array_equal(found.score, found.signal * found.power)


@torch.no_grad()
def test_projections_of_other_families(tokenizer):
    from transformers import DistilBertConfig, DistilBertModel, GPT2Config, GPT2Model, LlamaConfig, LlamaModel

    size = len(planted.VOCABULARY)
    gpt = GPT2Model(GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=64, vocab_size=size)).eval()
    llama = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "vocab_size": size,
    }
    bert = DistilBertConfig(dim=16, n_layers=1, n_heads=2, hidden_dim=8, vocab_size=size, max_position_embeddings=64)
    for model, name in (
        (gpt, "h.0.attn.c_proj"),
        (LlamaModel(LlamaConfig(**llama, num_key_value_heads=1)).eval(), "layers.0.self_attn.o_proj"),
        (DistilBertModel(bert).eval(), "transformer.layer.0.attention.out_lin"),
    ):
        seen = []
        projection = model.get_submodule(name)
        handle = projection.register_forward_pre_hook(lambda module, inputs, seen=seen: seen.append(inputs[0][0]))
        found = pruning_scores(model, tokenizer, planted.make_texts(1))
        handle.remove()
        for head in range(2):
            alone = torch.zeros_like(seen[0])
            alone[:, 8 * head : 8 * head + 8] = seen[0][:, 8 * head : 8 * head + 8]
            added = projection(alone) - projection(torch.zeros_like(alone))
            assert found.magnitude[0, head] == pytest.approx(float(added.square().sum(1).mean()), rel=1e-4), name


def test_tables_files_and_errors(tokenizer, tmp_path):
    model, texts = planted.small_bert(), planted.make_texts(4)
    found = pruning_scores(model, tokenizer, texts)
    rows = found.rows()
    assert [row["score"] for row in rows] == sorted(found.score.ravel()) and len(rows) == 4
    assert [(row["layer"], row["head"]) for row in rows] == found.lowest(4)
    assert all(row["noise"] + row["signal"] == pytest.approx(1) for row in rows)
    stored = json.loads(found.to_json(tmp_path / "scores.json"))
    assert stored == json.loads((tmp_path / "scores.json").read_text()) and np.allclose(stored["score"], found.score)

    def refused(message, call):
        with pytest.raises(hax.AttnExtError, match=re.escape(message)):
            call()

    refused("count must be a whole number of at most 4, got 5", lambda: found.lowest(5))
    refused("count must be a whole number of at least 1", lambda: found.lowest(0))
    refused("needs the model's tokenizer", lambda: pruning_scores(model, None, texts))
    refused("there are no texts", lambda: pruning_scores(model, tokenizer, []))
    refused("above 0 and up to 50", lambda: pruning_scores(model, tokenizer, texts, percent=0))
    model.encoder.layer[0].attention.output.dense = torch.nn.Identity()
    refused("the output projection of encoder.layer.0", lambda: pruning_scores(model, tokenizer, texts))
    refused("expected a model", lambda: pruning_scores("bert", tokenizer, texts))
