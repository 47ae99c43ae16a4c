"""convert and revert: what changes, what stays, what is refused."""

import copy
import pickle
import warnings

import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertModel,
    AutoModelForMaskedLM,
    BertModel,
    CLIPConfig,
    CLIPModel,
    RobertaForMaskedLM,
    RobertaModel,
    XLNetConfig,
    XLNetModel,
)

from hf_attn_ext import integration as hax
from hf_attn_ext.attention import FeatureMap
from hf_attn_ext.config import AttnExtConfig
from hf_attn_ext.errors import AttnExtError
from tests.integration import tiny


@pytest.mark.parametrize(
    ("model_type", "cls"), tiny.head_class_pairs(), ids=lambda value: getattr(value, "__name__", value)
)
def test_every_head_converts_and_reverts_exactly(model_type, cls):
    stock = tiny.tiny_model(cls)
    batch = tiny.inputs(stock)
    names = set(stock.state_dict())
    before = tiny.logits_of(stock(**batch))

    converted = hax.convert(stock, tiny.KERNEL)
    assert converted is stock and hax.is_converted(stock)
    assert type(stock).__name__ == f"AttnExt{cls.__name__}"
    assert stock.config.model_type == f"attn_ext_{model_type}"
    assert type(stock.base_model).__name__.startswith("AttnExt")
    assert stock.base_model.config is stock.config
    assert names < set(stock.state_dict())
    assert all(".feature_map." in name for name in set(stock.state_dict()) - names)
    assert [layer.layer_idx for layer in hax.converted_layers(stock)] == [0, 1]
    changed = tiny.logits_of(stock(**batch))
    assert all(torch.isfinite(x).all() for x in changed)
    assert not torch.equal(changed[0], before[0])

    hax.revert(stock)
    assert type(stock) is cls and stock.config.model_type == model_type
    assert set(stock.state_dict()) == names
    assert stock.config._attn_implementation == "sdpa"
    assert not hasattr(stock.config, "attn_ext")
    for x, y in zip(before, tiny.logits_of(stock(**batch)), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_revert_restores_the_attention_implementation(implementation):
    model = tiny.tiny_model(RobertaModel)
    model.set_attn_implementation(implementation)
    hax.revert(hax.convert(model, tiny.KERNEL))
    assert model.config._attn_implementation == implementation


@pytest.mark.parametrize("cls", [pair[1] for pair in tiny.head_class_pairs() if pair[1].__name__.endswith("MaskedLM")])
def test_models_read_from_a_folder_change_their_type_too(cls, tmp_path):
    tiny.tiny_model(cls).save_pretrained(tmp_path / "stock")
    stock = cls.from_pretrained(tmp_path / "stock")
    model_type, before = stock.config.model_type, stock(**tiny.inputs()).logits
    name = stock.name_or_path
    hax.convert(stock, tiny.KERNEL)
    assert stock.config.model_type == f"attn_ext_{model_type}" and stock.name_or_path == ""
    stock.save_pretrained(tmp_path / "converted")
    assert stock.name_or_path == str(tmp_path / "converted")
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "converted")
    assert again.config.model_type == f"attn_ext_{model_type}" and again.loss_type == stock.loss_type == "ForMaskedLM"
    for model in (stock, again):
        hax.revert(model)
        assert model is again or model.name_or_path == name
        assert type(model) is cls and model.config.model_type == model_type
        assert model.config._attn_implementation == "sdpa"
        assert torch.equal(model(**tiny.inputs()).logits, before)
        model.save_pretrained(tmp_path / "reverted")
        assert type(AutoModelForMaskedLM.from_pretrained(tmp_path / "reverted")) is cls


def test_a_shared_configuration_is_left_to_the_other_model():
    config = tiny.tiny_config("roberta")
    one, other = RobertaModel(config).eval(), RobertaModel(config).eval()
    before = other(**tiny.inputs()).last_hidden_state
    hax.convert(one, tiny.KERNEL)
    assert other.config.model_type == "roberta"
    assert torch.equal(other(**tiny.inputs()).last_hidden_state, before)


def test_maps_follow_seed_and_layer_not_the_global_generator(model):
    torch.manual_seed(1)
    first = hax.convert(copy.deepcopy(model), tiny.KERNEL)
    torch.manual_seed(2)
    second = hax.convert(copy.deepcopy(model), tiny.KERNEL)
    other = hax.convert(copy.deepcopy(model), tiny.KERNEL, seed=1)
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name])
    maps = [dict(layer.feature_map.named_parameters()) for m in (first, other) for layer in hax.converted_layers(m)]
    name = next(key for key, value in maps[0].items() if value.std() > 0 and not torch.equal(value, maps[1][key]))
    assert len({float(each[name].detach().flatten()[0]) for each in maps}) == 4


def test_configuration_forms_agree(model):
    forms = [
        hax.convert(copy.deepcopy(model), AttnExtConfig(kernel="hedgehog", num_features=4)),
        hax.convert(copy.deepcopy(model), {"kernel": "hedgehog", "num_features": 4}),
        hax.convert(copy.deepcopy(model), kernel="hedgehog", num_features=4),
        hax.convert(copy.deepcopy(model), {"kernel": "performer", "num_features": 4}, kernel="hedgehog"),
    ]
    assert len({str(each.config.attn_ext) for each in forms}) == 1


def test_hybrid_keeps_softmax_where_not_chosen(model):
    hax.convert(model, tiny.KERNEL, layers=[1])
    assert [layer.layer_idx for layer in hax.converted_layers(model)] == [1]
    assert model.roberta.encoder.layer[0].attention.self.keeps_softmax
    hax.revert(model)
    assert not hasattr(model.roberta.encoder.layer[0].attention.self, "keeps_softmax")


def test_a_lost_map_is_an_error_not_softmax(model):
    hax.convert(model, tiny.KERNEL)
    del model.roberta.encoder.layer[1].attention.self.feature_map
    with pytest.raises(AttnExtError, match="has no feature map"):
        model(**tiny.inputs())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": "flexfromer_p"}, "unknown kernel 'flexfromer_p'.*Did you mean 'flexformer_p'"),
        ({"num_features": 0}, "num_features must be .* got 0"),
        ({"num_features": "8"}, "'num_features' must be a whole number, got '8'"),
        ({"layers": [0, 2]}, "layer 2 is out of range: RobertaForMaskedLM has 2 attention layers, 0 to 1"),
        ({"kernal": "hedgehog"}, "unknown field 'kernal'.*Did you mean 'kernel'"),
        ({"kernel_options": {"rhoo": 1.0}}, "no option 'rhoo'"),
    ],
)
def test_bad_settings_are_refused_and_nothing_changes(model, change, message):
    names, before = set(model.state_dict()), model(**tiny.inputs()).logits
    with pytest.raises(AttnExtError, match=message) as caught:
        hax.convert(model, **change)
    assert "\n" not in str(caught.value)
    assert type(model) is RobertaForMaskedLM and set(model.state_dict()) == names
    assert model.config.model_type == "roberta"
    assert torch.equal(model(**tiny.inputs()).logits, before)


def test_converting_twice_is_refused(model):
    hax.convert(model, tiny.KERNEL)
    with pytest.raises(AttnExtError, match=r"converted already .*'flexformer_p'.*revert"):
        hax.convert(model, kernel="hedgehog")


def test_reverting_a_stock_model_is_refused(model):
    with pytest.raises(AttnExtError, match="not converted"):
        hax.revert(model)


def test_what_is_no_transformers_model_is_refused():
    with pytest.raises(AttnExtError, match=r"needs a transformers model.*got Linear"):
        hax.convert(torch.nn.Linear(2, 2))
    with pytest.raises(AttnExtError, match=r"must be an AttnExtConfig or a dictionary.*'hedgehog'"):
        hax.convert(tiny.tiny_model(BertModel), "hedgehog")


def test_a_model_without_the_attention_interface_is_refused_by_name():
    model = XLNetModel(XLNetConfig(vocab_size=40, d_model=16, n_layer=1, n_head=2, d_inner=16))
    with pytest.raises(AttnExtError, match=r"XLNetModel .*'xlnet'.*attention interface.*supported: bert, roberta"):
        hax.convert(model)


def test_a_model_made_of_several_is_refused():
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = CLIPConfig(
        text_config={**size, "vocab_size": 40}, vision_config={**size, "image_size": 8, "patch_size": 4}
    )
    with pytest.raises(AttnExtError, match="made of several models"):
        hax.convert(CLIPModel(config))


def test_weights_that_are_not_in_memory_are_refused():
    with torch.device("meta"):
        model = RobertaModel(tiny.tiny_config("roberta"))
    with pytest.raises(AttnExtError, match="not in memory"):
        hax.convert(model)


def test_another_model_with_the_interface_converts_with_a_warning():
    sizes = {"embedding_size": 12, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = AlbertModel(AlbertConfig(vocab_size=40, intermediate_size=24, max_position_embeddings=40, **sizes)).eval()
    before = model(**tiny.inputs()).last_hidden_state
    with pytest.warns(UserWarning, match="AlbertModel is untested"):
        hax.convert(model, tiny.KERNEL)
    # Albert runs one layer several times: one map, shared as the rest of the layer is.
    assert len(hax.converted_layers(model)) == 1
    assert not torch.equal(model(**tiny.inputs()).last_hidden_state, before)
    clone = pickle.loads(pickle.dumps(model))
    assert torch.equal(clone(**tiny.inputs()).last_hidden_state, model(**tiny.inputs()).last_hidden_state)
    hax.revert(model)
    assert torch.equal(model(**tiny.inputs()).last_hidden_state, before)


def test_supported_families_convert_without_a_warning(model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hax.convert(model, tiny.KERNEL)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_and_pickles_are_whole(model, clone):
    hax.convert(model, tiny.KERNEL)
    twin = clone(model)
    assert type(twin) is type(model) and twin.config is not model.config
    assert torch.equal(twin(**tiny.inputs()).logits, model(**tiny.inputs()).logits)
    twin.roberta.encoder.layer[0].attention.self.feature_map.requires_grad_(False)
    assert all(p.requires_grad for p in model.roberta.encoder.layer[0].attention.self.feature_map.parameters())
    hax.revert(twin)
    assert hax.is_converted(model)


def test_freeze_all_but_feature_maps(model):
    with pytest.raises(AttnExtError, match="convert"):
        hax.freeze_all_but_feature_maps(model)
    hax.convert(model, tiny.KERNEL)
    trainable = hax.freeze_all_but_feature_maps(model)
    maps = [module for module in model.modules() if isinstance(module, FeatureMap)]
    assert {id(p) for p in trainable} == {id(p) for each in maps for p in each.parameters()}
    assert {id(p) for p in model.parameters() if p.requires_grad} == {id(p) for p in trainable}
    hax.revert(model)
    assert hax.freeze_all_but_feature_maps(hax.convert(model, kernel="performer", num_features=4)) == []


def test_the_attention_choice_cannot_be_switched_away(model):
    hax.convert(model, tiny.KERNEL)
    for attempt in (
        lambda: model.set_attn_implementation("sdpa"),
        lambda: setattr(model.config, "_attn_implementation", "eager"),
    ):
        with pytest.raises(AttnExtError, match=r"converted.*revert"):
            attempt()
    model.set_attn_implementation("flexformer")
    assert model.config._attn_implementation == "flexformer"
