"""Captured similarities are those of the weights; the model, its outputs and everyone else's stay as they are."""

import pytest
import reference
import torch
from torch import nn
from transformers import (
    AlbertConfig,
    AlbertModel,
    BartConfig,
    BartModel,
    BertForMultipleChoice,
    BertForSequenceClassification,
    BertModel,
    DistilBertForMaskedLM,
    GPT2LMHeadModel,
    LlamaModel,
    T5Config,
    T5Model,
    XLNetConfig,
    XLNetModel,
)
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

import hf_attn_ext as hax
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.capture import capture as capture_module
from hf_attn_ext.integration.capture.attention_maps import attention_map
from hf_attn_ext.integration.capture.capture import capture
from hf_attn_ext.integration.capture.passes import running_calls
from hf_attn_ext.probe import ContextSimilarityProbe
from tests.integration import tiny

FAMILIES = ["bert", "roberta", "distilbert", "electra", "gpt2", "gpt_neox", "llama", "qwen2", "qwen3", "mistral"]
MATRICES = {"keep": ("matrices",)}


def matrices(outputs):
    found = torch.einsum("bhid,bhjd->bhij", outputs, outputs)
    return found * (1 - torch.eye(found.shape[-1]))


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_similarities_are_those_of_the_weights(family, backend):
    model = tiny.family_model(family).double()
    model.set_attn_implementation(backend)
    batch = tiny.inputs()
    with torch.no_grad():
        plain = model(**batch, output_hidden_states=True)
        with ContextSimilarityProbe(model, **MATRICES) as probe:
            assert torch.equal(model(**batch).last_hidden_state, plain.last_hidden_state)
        assert torch.equal(model(**batch).last_hidden_state, plain.last_hidden_state)
    real = batch["attention_mask"].bool()
    pairs = (real[:, None, :, None] & real[:, None, None, :]).expand(-1, 2, -1, -1)
    for index in range(2):
        expected = matrices(reference.head_outputs(model, plain.hidden_states[index], index, batch["attention_mask"]))
        found = probe.matrices(index)
        assert found.shape == (3, 2, 7, 7) and found.dtype == torch.float64
        # Transformers computes rotary positions, and eager softmax, in float32, whatever the model's dtype
        assert (found - expected)[pairs].abs().max() < 1e-6 * max(1.0, expected[pairs].abs().max())
        assert found.diagonal(dim1=-2, dim2=-1).abs().max() == 0


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_attention_maps_give_the_outputs(family, backend):
    model = tiny.family_model(family).double()
    model.set_attn_implementation(backend)
    batch, calls = tiny.inputs(), []
    with torch.no_grad(), capture(model, calls.append):
        model(**batch)
    plain = model(**batch, output_hidden_states=True)
    for call in calls:
        index = call.layer.index
        _, _, value, _ = reference._FAMILIES[family](model, plain.hidden_states[index], index)
        for row, length in enumerate(batch["attention_mask"].sum(1).tolist()):
            found = attention_map(call, row)
            groups = found.shape[0] // value.shape[1]
            out = found @ value[row].repeat_interleave(groups, 0)
            assert torch.allclose(
                out[:, :length], call.output[row][:, :length], atol=1e-9 if backend == "sdpa" else 1e-5
            )
            assert torch.equal(attention_map(call, row, slice(1, 2)), found[1:2])


def test_the_kernels_own_weights_in_a_converted_layer():
    model = hax.convert(tiny.family_model("bert").double(), tiny.KERNEL, layers=[1])
    calls, batch = [], tiny.inputs()
    with torch.no_grad():
        expected = model(**batch).last_hidden_state
        with capture(model, calls.append), ContextSimilarityProbe(model, **MATRICES) as probe:
            assert torch.equal(model(**batch).last_hidden_state, expected)
    assert [call.layer.index for call in calls] == [0, 1]
    value = model.encoder.layer[1].attention.self.value
    with torch.no_grad():
        hidden = model(**batch, output_hidden_states=True).hidden_states[1]
        heads = value(hidden).unflatten(-1, (2, 8)).transpose(1, 2)
        out = torch.stack([attention_map(calls[1], row) for row in range(3)]) @ heads
    real = batch["attention_mask"].bool()
    assert torch.allclose(out.transpose(1, 2)[real], calls[1].output.transpose(1, 2)[real], atol=1e-9)
    assert torch.allclose(probe.matrices(1), matrices(calls[1].output))
    with torch.no_grad(), hax.softmax_stream(model, lambda call: None), capture(model, calls.append):
        model(**batch)
    assert (attention_map(calls[3], 0) >= 0).all()


def test_other_models_and_the_interface_are_left_alone():
    model, other = tiny.family_model("bert"), tiny.family_model("bert")
    before = AttentionInterface.get_interface
    hooks = [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    keys = set(model.__dict__), set(model.encoder.layer[0].attention.self.__dict__)
    with ContextSimilarityProbe(model, **MATRICES) as probe:
        assert AttentionInterface.get_interface is not before
        other(**tiny.inputs())
        with pytest.raises(AttnExtError, match="no forward pass"):
            probe.matrices(0)
        assert model.config._attn_implementation == "sdpa"
    assert AttentionInterface.get_interface is before
    assert hooks == [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()]
    assert keys == (set(model.__dict__), set(model.encoder.layer[0].attention.self.__dict__))
    assert not capture_module._CAPTURED_LAYERS and not capture_module._OPEN_CAPTURES
    model(**tiny.inputs())
    with pytest.raises(AttnExtError, match="no forward pass"):
        probe.matrices(0)


@pytest.mark.parametrize("cls", [BertForSequenceClassification, DistilBertForMaskedLM, GPT2LMHeadModel])
def test_heads_bodies_and_modules_around_them(cls):
    class Around(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.inner = model

        def forward(self, ids):
            return self.inner(ids)

    model = tiny.tiny_model(cls)
    ids = tiny.inputs(padded=False)["input_ids"]
    with torch.no_grad():
        for run in (model, model.base_model, Around(model)):
            with ContextSimilarityProbe(run, **MATRICES) as one, ContextSimilarityProbe(model, **MATRICES) as two:
                run(ids)
            assert one.matrices(0).shape == (3, 2, 7, 7) and torch.equal(one.matrices(1), two.matrices(1))
            assert torch.equal(one.tokens()[0], ids) and one.tokens()[1].all()


def test_multiple_choice_counts_each_choice():
    model = tiny.tiny_model(BertForMultipleChoice)
    with ContextSimilarityProbe(model, **MATRICES) as probe:
        model(**tiny.inputs(model))
    assert probe.matrices(0).shape == (6, 2, 7, 7) and probe.tokens()[0].shape == (6, 7)


def test_chosen_layers_and_heads_in_order():
    model = tiny.family_model("bert", num_hidden_layers=3)
    with (
        ContextSimilarityProbe(model, **MATRICES) as everything,
        ContextSimilarityProbe(model, layers=[2, 0], heads=1, **MATRICES) as some,
        ContextSimilarityProbe(model, layers="*.layer.1.*", **MATRICES) as named,
    ):
        model(**tiny.inputs())
    assert torch.equal(some.matrices(2), everything.matrices(2)[:, 1:])
    assert torch.equal(named.matrices(1), everything.matrices(1))
    with pytest.raises(AttnExtError, match="no layer 1; it has 0, 2"):
        some.matrices(1)


def test_a_backend_of_ones_own():
    seen = []

    def backend(module, query, key, value, attention_mask, scaling=None, **kwargs):
        seen.append(attention_mask)
        scores = (query @ key.mT * scaling).masked_fill(~attention_mask[:, None, None].bool(), -1e30)
        return (scores.softmax(-1) @ value).transpose(1, 2), None

    AttentionInterface.register("mine", backend)
    AttentionMaskInterface.register("mine", lambda *args, attention_mask=None, **kwargs: attention_mask)
    try:
        model, calls, batch = tiny.family_model("bert").double(), [], tiny.inputs()
        with torch.no_grad(), capture(model, calls.append):
            model(**batch)
            model.set_attn_implementation("mine")
            model(**batch)
        assert len(seen) == 2 and torch.allclose(calls[0].output, calls[2].output)
        assert torch.allclose(attention_map(calls[1], 1), attention_map(calls[3], 1))
    finally:
        del AttentionInterface._global_mapping["mine"], AttentionMaskInterface._global_mapping["mine"]


def test_a_sliding_window_is_in_the_map():
    model, calls = tiny.family_model("mistral", sliding_window=3), []
    with torch.no_grad(), capture(model, calls.append):
        model(**tiny.inputs())
    far = torch.ones(7, 7).tril(-3).bool()
    assert attention_map(calls[0], 0)[:, far].max() == 0 and attention_map(calls[0], 0)[:, 6, 4].min() > 0


def test_a_model_that_is_compiled_inside_the_block():
    model, batch = tiny.family_model("bert"), tiny.inputs()
    with torch.no_grad():
        expected = model(**batch).last_hidden_state
        with ContextSimilarityProbe(model, **MATRICES) as probe:
            compiled = torch.compile(model, backend="eager")
            assert torch.equal(compiled(**batch).last_hidden_state, expected)
        assert torch.equal(compiled(**batch).last_hidden_state, expected)
    assert probe.matrices(1).shape == (3, 2, 7, 7)
    assert not running_calls()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_inference_mode(dtype):
    model = tiny.family_model("llama").to(dtype)
    with torch.inference_mode(), ContextSimilarityProbe(model, **MATRICES) as probe:
        model(**tiny.inputs())
    assert probe.matrices(0).dtype == torch.float32 and probe.matrices(0).isfinite().all()


def test_shared_layers_are_refused():
    torch.manual_seed(0)
    sizes = {
        "embedding_size": 8,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    model = AlbertModel(AlbertConfig(vocab_size=40, **sizes)).eval()
    with ContextSimilarityProbe(model, **MATRICES), pytest.raises(AttnExtError, match="ran more than once"):
        model(**tiny.inputs())


def test_the_encoder_of_an_encoder_decoder():
    torch.manual_seed(0)
    sizes = {
        "d_model": 16,
        "encoder_layers": 2,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
    }
    model = BartModel(BartConfig(vocab_size=40, encoder_ffn_dim=8, decoder_ffn_dim=8, **sizes)).eval()
    for part in (model, model.decoder):
        with pytest.raises(AttnExtError, match="get_encoder"):
            ContextSimilarityProbe(part, **MATRICES)
    with ContextSimilarityProbe(model.get_encoder(), **MATRICES) as probe:
        model(**tiny.inputs(padded=False))
    assert probe.matrices(1).shape == (3, 2, 7, 7)


def test_grouped_heads_give_one_matrix_a_query_head():
    model = tiny.tiny_model(LlamaModel, num_attention_heads=4, num_key_value_heads=2, head_dim=4)
    with ContextSimilarityProbe(model, **MATRICES) as probe:
        model(**tiny.inputs())
    assert probe.matrices(0).shape == (3, 4, 7, 7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: XLNetModel(XLNetConfig(vocab_size=20, d_model=8, n_layer=1, n_head=2, d_inner=8)),
            "XLNetModel .xlnet. does not use .* interface.*supported: bert",
        ),
        (
            lambda: T5Model(T5Config(vocab_size=20, d_model=8, d_kv=4, num_layers=1, d_ff=8)),
            "T5Model is an enc",
        ),
        (lambda: nn.Linear(2, 2), "Linear holds no transformers model"),
        (lambda: "a name", "got str"),
        (lambda: nn.ModuleList([tiny.family_model("bert"), tiny.family_model("bert")]), "holds 2 models"),
        (lambda: torch.compile(tiny.family_model("bert")), "compiled"),
    ],
)
def test_models_that_cannot_be_captured_are_named(make, message):
    with pytest.raises(AttnExtError, match=message) as caught:
        ContextSimilarityProbe(make())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": [2]}, "no layer matches 2; there are layers 0 to 1, encoder.layer.0.attention.self to"),
        ({"layers": "encoder.layer.0.attention.sel"}, "Did you mean 'encoder.layer.0.attention.self'"),
        ({"layers": []}, "layers is empty"),
        ({"heads": [2]}, "no head 2; there are heads 0 to 1"),
        ({"heads": [True]}, "no head True"),
        ({"keep": "matrixes"}, "Did you mean 'matrices'"),
        ({"controls": ["cosinus"]}, "Did you mean 'cosine'"),
        ({"percents": (0,)}, "percents"),
        ({"sample": 2}, "sample"),
        ({"bootstrap": 1}, "bootstrap"),
    ],
)
def test_wrong_options_are_one_line(options, message):
    with pytest.raises(AttnExtError, match=message) as caught:
        ContextSimilarityProbe(tiny.tiny_model(BertModel), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_padding_of_a_mask_with_four_axes_is_what_no_query_may_see(family):
    model, batch = tiny.family_model(family), tiny.inputs()
    real = batch["attention_mask"].bool()
    seen = real[:, None, None, :].expand(-1, 1, 7, -1)
    causal = torch.ones(7, 7, dtype=torch.bool).tril()
    hidden = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    masks = [batch["attention_mask"], seen, hidden, hidden.clamp(min=-1e4), seen & causal, causal[None, None]]
    for mask in masks:
        with ContextSimilarityProbe(model, **MATRICES) as probe:
            model(batch["input_ids"], attention_mask=mask)
        expected = torch.ones_like(real) if len(mask) == 1 else real
        assert not real.all() and torch.equal(probe.tokens()[1], expected)
