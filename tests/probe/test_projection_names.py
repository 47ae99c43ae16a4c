"""What names, classes and declared heads tell of a module that is said to be an output projection."""

import planted
import pytest
import torch
from own_models import SMALL, Attention, HomeMade, batch
from torch import nn
from transformers import (
    BertConfig,
    BertLMHeadModel,
    ConvBertConfig,
    ConvBertModel,
    DebertaV2Config,
    DebertaV2Model,
    GPT2Model,
)

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.projections import projection_layers
from hf_attn_ext.probe import ContextSimilarityProbe
from hf_attn_ext.probe.report.findings import gaps
from tests.integration import tiny

MATRICES = {"keep": ("matrices",)}
BERT = "*.attention.output.dense"


def _cross():
    return BertLMHeadModel(BertConfig(**SMALL, is_decoder=True, add_cross_attention=True))


def _conv():
    sizes = {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "intermediate_size": 20,
        "embedding_size": 24,
    }
    return ConvBertModel(ConvBertConfig(vocab_size=60, conv_kernel_size=3, **sizes))


def _deberta():
    return DebertaV2Model(DebertaV2Config(**SMALL))


def _gpt2():
    return GPT2Model(tiny.tiny_config("gpt2"))


class Twice(nn.Module):
    """Two projections of one width in each block, one of them not attention's."""

    def __init__(self):
        super().__init__()
        parts = ("mixer", "other", "encoder_attn")
        self.blocks = nn.ModuleList(nn.ModuleDict({name: Attention(12, 3) for name in parts}) for _ in range(2))


class Declared(HomeMade):
    def __init__(self):
        super().__init__()
        for block in self.blocks:
            block["mixer"].num_heads = 6


THREE = {"num_heads": 3}


@pytest.mark.parametrize(
    ("make", "options", "said"),
    [
        (_conv, {"projections": BERT}, "attention heads and a convolution side by side .ConvBERT."),
        (_conv, {"projections": BERT, "num_heads": 3}, "attention heads and a convolution side by side .ConvBERT."),
        (_cross, {"projections": "bert.encoder.layer.0.*attention.output.dense"}, "crossatt.*is of cross-attention"),
        (_cross, {"projections": "*.crossattention.output.dense", **THREE}, "is of cross-attention"),
        (Twice, {"projections": "*.encoder_attn.back", **THREE}, "is of cross-attention"),
        (Twice, {"projections": ["*.mixer.back", "*.other.back"], **THREE}, "are both in blocks.0; name one"),
        (Twice, {"projections": ["*.0.mixer.back", "*.0.other.back"], **THREE}, "are both in blocks.0; name one"),
        (_gpt2, {"projections": "h.0.*.c_proj", "num_heads": 2}, "inputs of several widths"),
        (_gpt2, {"projections": "*.mlp.c_proj"}, "numbers per token, but 2 heads of 8 give 16"),
        (_gpt2, {"projections": "*.attn.c_attn"}, "c_attn is given the layer's input"),
        (planted.small_bert, {"projections": "*.self.query"}, "query is given the layer's input"),
        (planted.small_bert, {"projections": "*.attention.self"}, "BertSelfAttention. holds 'query', more than a proj"),
        (
            lambda: DebertaV2Model(DebertaV2Config(**SMALL)),
            {"projections": "*.attention.self"},
            "holds 'query_proj', more than a projection",
        ),
        (planted.small_bert, {"projections": "*.attention.output.LayerNorm"}, "has no matrix of weights"),
        (planted.small_bert, {"projections": "*.attention.output.dropout"}, "has no matrix of weights"),
        (planted.small_bert, {"projections": BERT, "num_heads": 4}, "as 4 heads, but the attention in .* declares 2"),
        (Declared, {"projections": "*.back", **THREE}, "as 3 heads, but the attention in blocks.0.mixer declares 6"),
    ],
)
def test_what_is_no_output_projection_of_attention_is_named(make, options, said):
    with pytest.raises(AttnExtError, match=said):
        ContextSimilarityProbe(make(), **options)


@pytest.mark.parametrize("pattern", [BERT, "*.attention.output"])
def test_what_wraps_a_projection_is_one(pattern):
    model, inputs = planted.small_bert().double(), batch()
    with (
        ContextSimilarityProbe(model, **MATRICES) as inside,
        ContextSimilarityProbe(model, projections=pattern, **MATRICES) as hooked,
    ):
        model(**inputs)
    assert torch.equal(hooked.matrices(1), inside.matrices(1))
    model = HomeMade()
    for block in model.blocks:
        block["mixer"].back = nn.Sequential(block["mixer"].back, nn.Dropout(0.1))
    assert len(projection_layers(model, "*.back", 3)) == 2


class Named(nn.Module):
    """Linear layers at any paths."""

    def __init__(self, *paths):
        super().__init__()
        for path in paths:
            here = self
            *parents, last = path.split(".")
            for part in parents:
                if part not in here._modules:
                    here.add_module(part, nn.Module())
                here = here.get_submodule(part)
            here.add_module(last, nn.Linear(12, 12))


@pytest.mark.parametrize(
    ("paths", "pattern", "expected"),
    [
        (["layer.0.a.o", "layer.1.a.o", "layer.2.a.o", "layer.3.a.o"], "layer.[23].a.o", [2, 3]),
        (["layer.0.a.o", "layer.1.a.o", "layer.2.a.o"], "layer.1.a.o", [1]),
        (["layer.10.a.o", "layer.9.a.o"], "*.o", [9, 10]),
        (["h.4.attn.to_out.0", "h.7.attn.to_out.0"], "*.to_out.0", [4, 7]),
        (["out.0", "out.1"], "out.?", [0, 1]),
        (["group.0.layer.0.o", "group.0.layer.1.o", "group.0.layer.2.o"], "*.[12].o", [1, 2]),
        (["group.0.layer.0.o", "group.0.layer.1.o"], "*.1.o", [1]),
        (["stage.0.b.0.o", "stage.0.b.1.o", "stage.1.b.0.o"], "*.o", None),
        (["stage.0.b.0.o", "stage.0.b.1.o", "stage.1.b.0.o"], "stage.0.b.1.o", None),
        (["low.5.o", "high.6.o"], "*.o", None),
        (["first.o", "second.o"], "*.o", None),
    ],
)
def test_layers_have_the_numbers_of_their_blocks(paths, pattern, expected):
    layers = projection_layers(Named(*paths), pattern, 3)
    assert [layer.index for layer in layers] == (expected or list(range(len(layers))))
    assert all(layer.counted == (expected is None) for layer in layers)


def test_numbers_of_blocks_in_layers_notes_and_findings(tokenizer):
    model = DebertaV2Model(DebertaV2Config(**{**SMALL, "num_hidden_layers": 4})).eval()
    pattern = "encoder.layer.[23].attention.output.dense"
    with ContextSimilarityProbe(model, tokenizer, projections=pattern, bootstrap=4) as probe:
        probe.feed(planted.make_texts(4))
    table = probe.statistics()
    assert tuple(table.settings["layers"]) == tuple(table.get("distance", 1).layers) == (2, 3)
    assert any("Only layers 2, 3 were looked at" in note for note in gaps(table))
    assert ContextSimilarityProbe(model, tokenizer, 3, projections=pattern).layers[0].name.startswith("encoder.layer.3")
    with pytest.raises(AttnExtError, match="no layer matches 0; there are layers 2 to 3"):
        ContextSimilarityProbe(model, tokenizer, 0, projections=pattern)
    model = Named("first.o", "second.o")
    model.words = nn.Embedding(len(planted.VOCABULARY), 12)
    model.forward = lambda input_ids, attention_mask: model.second.o(model.first.o(model.words(input_ids)))
    with ContextSimilarityProbe(model, tokenizer, projections="*.o", num_heads=3, bootstrap=4) as probe:
        model(**batch())
    assert any("layers are numbered as they match" in note for note in probe.statistics().notes)
    whole = planted.small_bert()
    for layers, said in (None, False), ([0], True), ([1], True):
        with ContextSimilarityProbe(whole, tokenizer, layers, bootstrap=4) as probe:
            whole(**batch())
        assert any("were looked at" in note for note in probe.statistics().notes) == said
