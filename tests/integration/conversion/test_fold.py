"""Folding: the same outputs without the affine maps, and no way back."""

import pytest
import torch
from transformers import (
    AutoModel,
    BertModel,
    DistilBertModel,
    ElectraModel,
    EsmConfig,
    EsmModel,
    GPT2LMHeadModel,
    LlamaModel,
    RobertaModel,
    XLMRobertaModel,
)

import hf_attn_ext as hax
from hf_attn_ext.errors import AttnExtError
from tests.integration import tiny

ENCODERS = [BertModel, RobertaModel, XLMRobertaModel, DistilBertModel, ElectraModel]


def converted(cls, kernel="flexformer_p", layers=None, **changes):
    """A float64 model whose maps are not what they began as."""
    model = tiny.tiny_model(cls, **changes).double()
    hax.convert(model, kernel=kernel, num_features=4, layers=layers)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer in hax.converted_layers(model):
            for parameter in layer.feature_map.parameters():
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def esm(kind):
    """Projections by the names of BERT's, but queries are scaled, and turned where rotary, before the map."""
    config = EsmConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        pad_token_id=1,
        mask_token_id=2,
        position_embedding_type=kind,
    )
    return hax.convert(EsmModel(config, add_pooling_layer=False), kernel="flexformer_p", num_features=4)


def other_projection():
    class Noisy(torch.nn.Linear):
        pass

    model = converted(BertModel)
    model.encoder.layer[0].attention.self.key.__class__ = Noisy
    return model


@pytest.mark.parametrize("kernel", ["flexformer_p", "flexformer_sq"])
@pytest.mark.parametrize("cls", [*ENCODERS, GPT2LMHeadModel])
@torch.no_grad()
def test_the_outputs_stay_and_the_maps_are_gone(cls, kernel, tmp_path):
    model, batch = converted(cls, kernel), tiny.inputs()
    before = model(**batch)[0]
    size = model.num_parameters()
    assert hax.fold(model) is model
    after = model(**batch)[0]
    assert torch.allclose(after, before, rtol=1e-9, atol=1e-11) and not after.equal(before)
    assert model.num_parameters() == size - sum(4 * (8 + 64) for _ in hax.converted_layers(model))
    assert not any("query_map" in name or "key_map" in name for name in model.state_dict())
    model.save_pretrained(tmp_path)
    auto = type(model) if cls is GPT2LMHeadModel else AutoModel
    again = auto.from_pretrained(tmp_path, dtype=torch.float64)
    assert again(**batch)[0].equal(after)
    for one in (model, again):
        with pytest.raises(AttnExtError, match="is folded: its query and key projections"):
            hax.revert(one)
        with pytest.raises(AttnExtError, match="is folded already"):
            hax.fold(one)


@torch.no_grad()
def test_scores_of_another_scale():
    """GPT-2's layer-wise factor stands between projection and map."""
    model = converted(GPT2LMHeadModel, scale_attn_by_inverse_layer_idx=True)
    batch = tiny.inputs()
    before = model(**batch)[0]
    assert torch.allclose(hax.fold(model)(**batch)[0], before, rtol=1e-9, atol=1e-11)


@torch.no_grad()
def test_layers_that_keep_softmax_are_not_touched():
    model, batch = converted(BertModel, layers=[1]), tiny.inputs()
    kept = model.encoder.layer[0].attention.self.query.weight.clone()
    before = model(**batch)[0]
    hax.fold(model)
    assert model.encoder.layer[0].attention.self.query.weight.equal(kept)
    assert torch.allclose(model(**batch)[0], before, rtol=1e-9, atol=1e-11)


def test_a_folded_model_trains():
    model = hax.fold(converted(BertModel))
    model(**tiny.inputs())[0].sum().backward()
    assert all(p.grad is not None for layer in hax.converted_layers(model) for p in layer.feature_map.parameters())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: tiny.tiny_model(BertModel), "needs a converted model that is not wrapped.*BertModel"),
        (lambda: converted(LlamaModel), "LlamaModel of model type 'llama' cannot be folded.*rotary"),
        (lambda: esm("rotary"), "EsmModel of model type 'esm' cannot be folded.*rotary.*scaled; fold knows bert"),
        (lambda: esm("absolute"), "EsmModel of model type 'esm' cannot be folded"),
        (lambda: other_projection(), "layer.0.attention.self.key .* cannot be folded: it must be a plain Linear"),
        (lambda: converted(BertModel, "hedgehog"), "kernel 'hedgehog' of .* has no affine maps"),
        (lambda: 5, "got int"),
    ],
)
def test_what_cannot_be_folded_is_named_and_unchanged(build, message):
    model = build()
    before = {k: v.clone() for k, v in model.state_dict().items()} if isinstance(model, torch.nn.Module) else {}
    with pytest.raises(AttnExtError, match=message):
        hax.fold(model)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
