"""Folders of converted models: whole, strict, and proof against damage."""

import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
)

from hf_attn_ext import integration as hax
from hf_attn_ext.errors import AttnExtError
from tests.integration import tiny


@pytest.fixture
def converted(model):
    return hax.convert(model, tiny.KERNEL, layers=[1], seed=3)


@pytest.fixture
def folder(converted, tmp_path):
    converted.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def sharded(converted, tmp_path):
    converted.save_pretrained(tmp_path / "sharded", max_shard_size="4KB")
    assert len(list((tmp_path / "sharded").glob("model-*-of-*.safetensors"))) > 2
    return tmp_path / "sharded"


def edit_json(file, change):
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def edit_weights(folder, change):
    """Change the tensors and make the manifest agree, so that only the keys are wrong."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "attn_ext_manifest.json").unlink()


def refused(folder, message, auto=AutoModelForMaskedLM, **kwargs):
    with pytest.raises(AttnExtError, match=message) as caught:
        auto.from_pretrained(folder, **kwargs)
    assert "\n" not in str(caught.value)


def test_the_folder_is_whole(folder, converted):
    assert {file.name for file in folder.iterdir()} == {
        "config.json", "model.safetensors", "attn_ext_manifest.json", "modeling_attn_ext.py",
    }  # fmt: skip
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "attn_ext_roberta"
    assert config["architectures"] == ["AttnExtRobertaForMaskedLM"]
    assert config["attn_ext"] == converted.config.attn_ext
    assert config["auto_map"]["AutoModelForMaskedLM"] == "modeling_attn_ext.AttnExtRobertaForMaskedLM"
    assert config["auto_map"]["AutoConfig"] == "modeling_attn_ext.AttnExtRobertaConfig"
    assert not list(folder.parent.glob(".*"))


def test_base_weights_keep_names_and_values(folder):
    stock = tiny.tiny_model(RobertaForMaskedLM).state_dict()
    saved = load_file(folder / "model.safetensors")
    for name, value in saved.items():
        assert ".feature_map." in name or torch.equal(value, stock[name])


@pytest.mark.parametrize("auto", [AutoModel, AutoModelForSequenceClassification, AutoModelForTokenClassification])
def test_another_head_starts_new_on_the_saved_base(folder, converted, auto):
    model, info = auto.from_pretrained(folder, output_loading_info=True)
    assert hax.is_converted(model)
    assert info["unexpected_keys"] and not any(".feature_map." in key for key in info["unexpected_keys"])
    base = model.base_model.state_dict()
    for name, value in converted.base_model.state_dict().items():
        assert torch.equal(value, base[name])


def test_num_labels_and_other_overrides(folder):
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=5, problem_type="regression", hidden_dropout_prob=0.0
    )
    assert model.classifier.out_proj.out_features == 5 and model.config.hidden_dropout_prob == 0.0
    assert AutoConfig.from_pretrained(folder, num_labels=7).num_labels == 7


def test_a_trained_head_comes_back_and_another_size_is_refused(tmp_path):
    model = hax.convert(tiny.tiny_model(RobertaForSequenceClassification, num_labels=3), tiny.KERNEL)
    model.save_pretrained(tmp_path / "model")
    expected = model(**tiny.inputs()).logits
    auto = AutoModelForSequenceClassification
    assert torch.equal(auto.from_pretrained(tmp_path / "model")(**tiny.inputs()).logits, expected)
    refused(tmp_path / "model", "'classifier.out_proj.*ignore_mismatched_sizes=True", auto, num_labels=5)
    new = auto.from_pretrained(tmp_path / "model", num_labels=5, ignore_mismatched_sizes=True)
    assert new(**tiny.inputs()).logits.shape == (3, 5)


def test_missing_and_unexpected_keys_are_errors(folder):
    name = "roberta.encoder.layer.1.attention.self.feature_map."
    edit_weights(folder, lambda t: t.pop(next(key for key in t if key.startswith(name))))
    refused(folder, f"lacks '{name}")
    refused(folder, "lacks '.*encoder.layer.1.attention.self.feature_map.", AutoModel)


@pytest.mark.parametrize("key", ["roberta.encoder.layer.0.attention.self.query.weight", "lm_head.dense.weight"])
def test_a_missing_base_or_head_weight_is_an_error(folder, key):
    edit_weights(folder, lambda t: t.pop(key))
    refused(folder, f"lacks '{key}'")


def test_an_unexpected_key_is_an_error(folder):
    edit_weights(folder, lambda t: t.update({"roberta.something.else": torch.zeros(1)}))
    refused(folder, "unexpected 'roberta.something.else'")
    refused(folder, "unexpected '.*something.else'", AutoModel)


@pytest.mark.parametrize("cut", [10, 1000, -1], ids=["header", "tensors", "last byte"])
@pytest.mark.parametrize("manifest", [True, False])
def test_a_truncated_file_is_an_error(folder, cut, manifest):
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:cut])
    if not manifest:
        (folder / "attn_ext_manifest.json").unlink()
    refused(folder, "truncated")


def test_a_tampered_file_is_an_error(folder):
    file = folder / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(bytes(content))
    refused(folder, "model.safetensors is not the file that was saved.*sha256")


def test_a_broken_manifest_is_an_error(folder):
    (folder / "attn_ext_manifest.json").write_text('{"files": {')
    refused(folder, "attn_ext_manifest.json cannot be read")
    (folder / "attn_ext_manifest.json").write_text('{"files": {"model.safetensors": 3}}')
    refused(folder, "attn_ext_manifest.json cannot be read")


def test_a_missing_weight_file_is_an_error(folder):
    (folder / "model.safetensors").unlink()
    refused(folder, "'model.safetensors', named in attn_ext_manifest.json, is missing")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": "hedgehog"}, "attn_ext.kernel is 'hedgehog'.*saved with 'flexformer_p'|lacks|unexpected"),
        ({"seed": 4}, "attn_ext.seed is 4.*saved with 3"),
        ({"num_features": 5}, "feature_map.*config.json was edited|attn_ext.num_features is 5.*saved with 4"),
        ({"layers": None}, "attn_ext.layers is None.*saved with"),
        ({"kernel": "hegdehog"}, "unknown kernel 'hegdehog'.*'hedgehog'"),
        ({"num_feature": 4}, "config.attn_ext: unknown field 'num_feature'.*'num_features'"),
        ({"seed": "zero"}, "config.attn_ext: field 'seed' must be a whole number, got 'zero'"),
    ],
)
def test_edited_attention_settings_are_an_error(folder, change, message):
    edit_json(folder / "config.json", lambda config: config["attn_ext"].update(change))
    refused(folder, message)


def test_settings_that_are_gone_are_an_error(folder):
    edit_json(folder / "config.json", lambda config: config.pop("attn_ext"))
    refused(folder, "config.attn_ext, which is missing")


def test_another_attention_implementation_is_refused(folder):
    refused(folder, "attn_implementation='sdpa'.*revert", attn_implementation="sdpa")
    refused(folder, "attn_implementation='eager'", attn_implementation="eager")
    assert AutoModelForMaskedLM.from_pretrained(folder, attn_implementation="flexformer")


def test_shards_load_exactly(sharded, converted):
    loaded = AutoModelForMaskedLM.from_pretrained(sharded)
    for name, value in converted.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name])


def test_a_missing_or_swapped_shard_is_an_error(sharded):
    shards = sorted(sharded.glob("model-*-of-*.safetensors"))
    os.rename(shards[1], sharded / "elsewhere")
    refused(sharded, f"'{shards[1].name}'.*is missing")
    shutil.copy(shards[0], shards[1])
    refused(sharded, f"{shards[1].name} is")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("when", ["before", "after"])
def test_other_precisions_reload_exactly(model, tmp_path, dtype, when):
    if when == "before":
        converted = hax.convert(model.to(dtype), tiny.KERNEL)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        assert all(p.dtype == wide for layer in hax.converted_layers(converted) for p in layer.feature_map.parameters())
    else:
        converted = hax.convert(model, tiny.KERNEL).to(dtype)
    assert converted.dtype == dtype
    expected = converted(**tiny.inputs()).logits
    assert torch.isfinite(expected).all()
    converted.save_pretrained(tmp_path / "model")
    for kwargs in ({}, {"dtype": "auto"}, {"dtype": dtype}, {"torch_dtype": dtype}):
        loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "model", **kwargs)
        assert loaded.dtype == dtype
        assert torch.equal(loaded(**tiny.inputs()).logits, expected)


def test_maps_stay_float32_when_half_precision_is_asked_for(folder, converted):
    for dtype in (torch.float16, torch.bfloat16):
        loaded = AutoModelForMaskedLM.from_pretrained(folder, dtype=dtype)
        assert loaded.dtype == dtype
        for layer, source in zip(hax.converted_layers(loaded), hax.converted_layers(converted), strict=True):
            for name, value in layer.feature_map.state_dict().items():
                assert value.dtype == torch.float32 and torch.equal(value, source.feature_map.state_dict()[name])


@pytest.mark.parametrize("device_map", ["auto", "cpu", {"": "cpu"}])
def test_device_map(folder, converted, device_map):
    loaded = AutoModelForMaskedLM.from_pretrained(folder, device_map=device_map)
    assert torch.equal(loaded(**tiny.inputs()).logits, converted(**tiny.inputs()).logits)


def test_a_split_device_map_with_offloading(folder, converted, tmp_path):
    device_map = {"roberta.embeddings": "cpu", "roberta.encoder": "disk", "lm_head": "cpu"}
    loaded = AutoModelForMaskedLM.from_pretrained(folder, device_map=device_map, offload_folder=str(tmp_path / "off"))
    assert torch.equal(loaded(**tiny.inputs()).logits, converted(**tiny.inputs()).logits)


def test_from_config_makes_seeded_maps(folder):
    config = AutoConfig.from_pretrained(folder)
    one, other = AutoModelForMaskedLM.from_config(config), AutoModelForMaskedLM.from_config(config)
    assert hax.is_converted(one)
    maps = [layer.feature_map.state_dict() for m in (one, other) for layer in hax.converted_layers(m)]
    assert all(torch.equal(maps[0][name], maps[1][name]) for name in maps[0])


def test_saving_over_an_older_save_leaves_no_stale_weights(converted, tmp_path):
    target = tmp_path / "model"
    (target / "sub").mkdir(parents=True)
    (target / "tokenizer.json").write_text("{}")
    converted.save_pretrained(target)
    with torch.no_grad():
        converted.lm_head.bias.add_(1.0)
    converted.save_pretrained(target, max_shard_size="4KB")
    assert not (target / "model.safetensors").exists()
    sharded = AutoModelForMaskedLM.from_pretrained(target)(**tiny.inputs()).logits
    assert torch.equal(sharded, converted(**tiny.inputs()).logits)
    converted.save_pretrained(target)
    assert sorted(file.name for file in target.iterdir()) == [
        "attn_ext_manifest.json", "config.json", "model.safetensors", "modeling_attn_ext.py", "sub", "tokenizer.json",
    ]  # fmt: skip
    assert torch.equal(AutoModelForMaskedLM.from_pretrained(target)(**tiny.inputs()).logits, sharded)


def test_a_failed_save_leaves_the_older_one(converted, folder, monkeypatch):
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    monkeypatch.setattr(
        "hf_attn_ext.integration.conversion.saving.write_manifest", lambda *args: (_ for _ in ()).throw(OSError("full"))
    )
    with pytest.raises(OSError, match="full"):
        converted.save_pretrained(folder)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_saving_onto_a_file_is_refused(converted, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(AttnExtError, match="is a file"):
        converted.save_pretrained(tmp_path / "file")


def test_a_variant_and_a_state_dict(converted, tmp_path):
    state = {name: value + 0 for name, value in converted.state_dict().items()}
    converted.save_pretrained(tmp_path / "model", state_dict=state, variant="best")
    assert (tmp_path / "model" / "model.best.safetensors").exists()
    best = converted(**tiny.inputs()).logits
    with torch.no_grad():
        converted.lm_head.bias.add_(1.0)
    converted.save_pretrained(tmp_path / "model", max_shard_size="4KB")
    for variant, expected in (("best", best), (None, converted(**tiny.inputs()).logits)):
        loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "model", variant=variant)
        assert torch.equal(loaded(**tiny.inputs()).logits, expected)
    (tmp_path / "model" / "model.best.safetensors").write_bytes(b"")
    refused(tmp_path / "model", "model.best.safetensors is truncated", variant="best")
    assert AutoModelForMaskedLM.from_pretrained(tmp_path / "model")


def test_subfolder(converted, tmp_path):
    converted.save_pretrained(tmp_path / "outer" / "inner")
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "outer", subfolder="inner")
    assert torch.equal(loaded(**tiny.inputs()).logits, converted(**tiny.inputs()).logits)
    (tmp_path / "outer" / "inner" / "model.safetensors").write_bytes(b"")
    refused(tmp_path / "outer", "truncated", subfolder="inner")


def test_weights_from_an_older_format_are_saved_under_present_names(model, tmp_path):
    tensors = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value.clone()
        for name, value in model.state_dict().items()
        if not name.startswith("lm_head.decoder")
    }
    model.save_pretrained(tmp_path / "old")
    save_file(tensors, tmp_path / "old" / "model.safetensors", metadata={"format": "pt"})
    converted = hax.convert(AutoModelForMaskedLM.from_pretrained(tmp_path / "old"), tiny.KERNEL)
    converted.save_pretrained(tmp_path / "new")
    assert not any("gamma" in name for name in load_file(tmp_path / "new" / "model.safetensors"))
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "new")
    assert torch.equal(loaded(**tiny.inputs()).logits, converted(**tiny.inputs()).logits)


def test_buffers_that_are_not_saved_have_their_values_again(model, tmp_path):
    hax.convert(model, tiny.KERNEL, kernel="flexformer_c")
    model.save_pretrained(tmp_path / "model")
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "model")
    for ours, theirs in zip(hax.converted_layers(model), hax.converted_layers(loaded), strict=True):
        buffers = dict(theirs.feature_map.named_buffers())
        for name, value in ours.feature_map.named_buffers():
            assert torch.equal(value, buffers[name]) and value.dtype == buffers[name].dtype
    assert torch.equal(loaded(**tiny.inputs()).logits, model(**tiny.inputs()).logits)


def test_a_repository_in_the_hub_cache_is_checked_as_a_folder_is(sharded, converted, tmp_path):
    repository = tmp_path / "cache" / "models--me--tiny"
    commit = "0123456789abcdef0123456789abcdef01234567"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    shutil.copytree(sharded, repository / "snapshots" / commit)
    cached = {"cache_dir": str(tmp_path / "cache"), "local_files_only": True}
    loaded = AutoModelForMaskedLM.from_pretrained("me/tiny", **cached)
    assert torch.equal(loaded(**tiny.inputs()).logits, converted(**tiny.inputs()).logits)
    shard = sorted((repository / "snapshots" / commit).glob("model-*-of-*.safetensors"))[1]
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(bytes(content))
    refused("me/tiny", "is not the file that was saved", **cached)
    shard.unlink()
    refused("me/tiny", f"me/tiny: the weight file '{shard.name}'.*is missing", **cached)


def test_push_to_hub_passes_its_keywords_on(converted, tmp_path, monkeypatch):
    pushed = []
    monkeypatch.setattr(type(converted), "push_to_hub", lambda self, *args, **kwargs: pushed.append((args, kwargs)))
    converted.save_pretrained(tmp_path / "tiny", push_to_hub=True, private=True, token="x")
    converted.save_pretrained(tmp_path / "tiny", push_to_hub=True, repo_id="me/other")
    assert pushed == [(("tiny",), {"private": True, "token": "x"}), (("me/other",), {})]
