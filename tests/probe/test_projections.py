"""Heads read at the output projections: the interface's own similarities, and those of models outside it."""

import planted
import pytest
import torch
from own_models import SMALL, HomeMade, batch, own
from torch import nn
from transformers import (
    BertModel,
    DebertaV2Config,
    DebertaV2Model,
    GPT2LMHeadModel,
    GPTNeoConfig,
    GPTNeoModel,
    MPNetConfig,
    MPNetModel,
    T5Config,
    T5Model,
)

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.capture.passes import running_calls
from hf_attn_ext.probe import ContextSimilarityProbe, ProbeConfig
from hf_attn_ext.probe.report.browser import browse
from hf_attn_ext.probe.run import run_statistics
from tests.integration import tiny

MATRICES = {"keep": ("matrices",)}
BERT = "*.attention.output.dense"


@pytest.mark.parametrize(("family", "pattern"), [(BertModel, BERT), (GPT2LMHeadModel, "*.attn.c_proj")])
def test_similarities_are_those_of_the_interface(family, pattern):
    model = family(tiny.tiny_config("bert" if family is BertModel else "gpt2")).double().eval()
    inputs = batch()
    expected = model(**inputs)[0]
    with (
        ContextSimilarityProbe(model, **MATRICES) as inside,
        ContextSimilarityProbe(model, projections=pattern, **MATRICES) as hooked,
    ):
        assert torch.equal(model(**inputs)[0], expected)
    assert [layer.num_heads for layer in hooked.layers] == [layer.num_heads for layer in inside.layers]
    for layer in range(len(inside.layers)):
        assert torch.equal(hooked.matrices(layer), inside.matrices(layer))
    assert torch.equal(hooked.tokens()[1], inside.tokens()[1])
    assert not running_calls() and not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_statistics_are_those_of_the_interface(tokenizer):
    model = planted.small_bert().double()
    texts = planted.make_texts(12)
    tables = []
    for options in {}, {"projections": BERT}:
        with ContextSimilarityProbe(model, tokenizer, sample=1, bootstrap=4, **options) as probe:
            probe.feed(texts, 4)
        tables.append(probe.statistics())
    names = [{(one.name, one.measure) for one in table.statistics} for table in tables]
    gone = {name for name, measure in names[0] - names[1] if measure == "dot"}
    assert gone == {"separator_focus", "special_focus", "region"} and ("noise", "attention") in names[0] - names[1]
    for one in tables[1].statistics:
        assert (one.values == tables[0].get(one.name, one.percent, one.measure).values).all()
    assert tables[1].settings["controls"] == ("cosine",) and any("output projections" in n for n in tables[1].notes)


def test_a_model_of_ones_own_against_its_own_outputs(tokenizer):
    model, inputs = HomeMade().double(), batch()
    with ContextSimilarityProbe(model, projections="*.back", num_heads=3, **MATRICES) as probe:
        model(**inputs)
    for layer, block in enumerate(model.blocks):
        assert torch.allclose(probe.matrices(layer), own(block["mixer"].last), atol=1e-12, rtol=0)
    assert torch.equal(probe.tokens()[1], inputs["attention_mask"].bool())
    with ContextSimilarityProbe(model, tokenizer, projections=["blocks.1.*.back"], num_heads=3, heads=[2]) as probe:
        assert probe.feed(planted.make_texts(3)) == 3
    assert [layer.name for layer in probe.layers] == ["blocks.1.mixer.back"]
    assert probe.statistics().get("distance", 1).values.shape == (1, 1)


def _deberta():
    config = DebertaV2Config(**SMALL, relative_attention=True, pos_att_type=["p2c", "c2p"], max_relative_positions=16)
    return DebertaV2Model(config), "*.attention.output.dense", "attention.self.value_proj", "encoder.layer.{}"


def _mpnet():
    return MPNetModel(MPNetConfig(**SMALL)), "*.attention.attn.o", "attention.attn.v", "encoder.layer.{}"


def _gpt_neo():
    sizes = {
        "vocab_size": SMALL["vocab_size"],
        "hidden_size": 12,
        "num_layers": 2,
        "num_heads": 3,
        "intermediate_size": 20,
    }
    model = GPTNeoModel(GPTNeoConfig(**sizes, attention_types=[[["global"], 2]], max_position_embeddings=32))
    return model, "*.attn.attention.out_proj", "attn.attention.v_proj", "h.{}"


@pytest.mark.parametrize("make", [_deberta, _mpnet, _gpt_neo])
def test_models_of_the_host_outside_the_interface(make):
    """The outputs are the returned weights times the values that are read at the value projection."""
    model, pattern, value, layers = make()
    model, inputs, values = model.double().eval(), batch(), []
    for layer in range(2):
        module = model.get_submodule(layers.format(layer)).get_submodule(value)
        module.register_forward_hook(lambda module, args, result: values.append(result))
    with ContextSimilarityProbe(model, projections=pattern, **MATRICES) as probe:
        weights = model(**inputs, output_attentions=True).attentions
    for layer in range(2):
        outputs = weights[layer] @ values[layer].unflatten(2, (3, -1)).transpose(1, 2)
        assert torch.allclose(probe.matrices(layer), own(outputs), atol=1e-12, rtol=0)
    assert torch.equal(probe.tokens()[1], inputs["attention_mask"].bool())


def test_a_broken_pass_leaves_no_trace_and_nested_probes_count_alike(tokenizer):
    model, texts = HomeMade(), planted.make_texts(4)
    where = {"projections": "*.back", "num_heads": 3}
    with ContextSimilarityProbe(model, tokenizer, **where) as outer:
        outer.feed(texts[:2])
        with ContextSimilarityProbe(model, tokenizer, **where) as inner:
            inner.feed(texts[2:])
            block, model.blocks[1]["mixer"].back.forward = model.blocks[1]["mixer"].back.forward, None
            with pytest.raises(TypeError):
                model(**batch())
            model.blocks[1]["mixer"].back.forward = block
    assert outer.statistics().counts["texts"] == 4 and inner.statistics().counts["texts"] == 2
    model(**batch())
    assert outer.statistics().counts["texts"] == 4
    assert not running_calls() and not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


class Unnamed(nn.Module):
    """Calls its model's inside with other names."""

    def __init__(self):
        super().__init__()
        self.inside = HomeMade()

    def forward(self, tokens):
        return self.inside(tokens)


class Torchs(nn.Module):
    """torch's own attention, which uses its projection's weights without calling it."""

    def __init__(self):
        super().__init__()
        self.words, self.attention = nn.Embedding(len(planted.VOCABULARY), 12), nn.MultiheadAttention(12, 3)

    def forward(self, input_ids):
        x = self.words(input_ids)
        return self.attention(x, x, x)[0]


class Turned(HomeMade):
    """Tokens first."""

    def forward(self, input_ids):
        return self.blocks[0]["mixer"](self.words(input_ids.T), torch.ones(1, dtype=torch.bool))


@pytest.mark.parametrize(
    ("make", "options", "said"),
    [
        (HomeMade, {"projections": "*.dense"}, r"no module matches '\*.dense'"),
        (HomeMade, {"projections": "*.bakc", "num_heads": 3}, "no module matches"),
        (HomeMade, {"projections": "*.back"}, "configuration of HomeMade does not say how many heads.*give num_heads"),
        (HomeMade, {"projections": "*.back", "num_heads": 5}, "12 numbers per token, which 5 heads do not divide"),
        (HomeMade, {"projections": "*.back", "num_heads": 0}, "num_heads must be a whole number of at least 1"),
        (HomeMade, {"projections": 3, "num_heads": 3}, "projections must be patterns"),
        (HomeMade, {"projections": "*mixer*", "num_heads": 3}, "'blocks.0.mixer' and 'blocks.0.mixer.qkv' inside"),
        (planted.small_bert, {"num_heads": 2}, "num_heads .2. is of projections, and there are none"),
        (planted.small_bert, {"projections": "*output.dense"}, "matches 4 modules.*the model has 2 layers"),
        (planted.small_bert, {"projections": "*.0.output.dense"}, "24 numbers per token, but 2 heads of 8 give 16"),
        (planted.small_bert, {"projections": "*.1.*output.dense", "num_heads": 2}, "inputs of several widths"),
        (lambda: T5Model(T5Config(vocab_size=9, d_model=12, num_layers=1)), {"projections": "*.o"}, "encoder-decoder"),
        (HomeMade, {}, "holds no transformers model.*name the output projections: projections="),
    ],
)
def test_what_is_no_projection_is_named(make, options, said):
    with pytest.raises(AttnExtError, match=said):
        ContextSimilarityProbe(make(), **options)


@pytest.mark.parametrize(
    ("make", "options", "arguments", "said"),
    [
        (Unnamed, {"projections": "*.back", "num_heads": 3}, "tokens", "the pass names no input_ids"),
        (Torchs, {"projections": "*.out_proj", "num_heads": 3}, "input_ids", "attention.out_proj was not called"),
        (Turned, {"projections": "*.0.*.back", "num_heads": 3}, "input_ids", r"shape \(9, 3, 12\), not .* \(3, 9, "),
    ],
)
def test_calls_that_cannot_be_read_are_named(make, options, arguments, said):
    model = make()
    with ContextSimilarityProbe(model, planted.word_tokenizer(), **options) as probe:
        with pytest.raises(AttnExtError, match=said):
            model(**{arguments: batch()["input_ids"]})
        if "attention_mask" not in model.forward.__code__.co_varnames:
            with pytest.raises(AttnExtError, match=f"{make.__name__}.forward has no "):
                probe.feed(planted.make_texts(2))
    assert not running_calls()
    with pytest.raises(AttnExtError, match="no forward pass"):
        probe.statistics()


def test_a_run_with_projections(tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(planted.make_texts(6)) + "\n")
    config = ProbeConfig("own", [str(tmp_path / "texts.txt")], str(tmp_path / "out"), bootstrap=4, browse=1)
    config.projections, config.num_heads, config.percents = ["*.back"], 3, [5]
    assert "--projections '*.back' --num-heads 3" in config.command()
    model, tokenizer = HomeMade(), planted.word_tokenizer()
    table = run_statistics(model, tokenizer, config).statistics
    assert table.get("noise", 5).values.shape == (2, 3) and any("output projections" in note for note in table.notes)
    shown = browse(model, tokenizer, planted.make_texts(1), projections=["*.back"], num_heads=3)
    assert shown[0].scales.shape == (2, 3)
