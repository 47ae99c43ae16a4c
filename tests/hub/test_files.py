"""Which files a push would send: an allow-list, checked against the manifest."""

import hashlib
import json

import pytest

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hub.files import files_to_upload
from tests.hub.folders import converted_folder, write_manifest

EXPECTED = {
    "README.md",
    "attn_ext_manifest.json",
    "config.json",
    "model.safetensors",
    "modeling_attn_ext.py",
    "tokenizer.json",
    "tokenizer_config.json",
}


def test_only_the_model_its_tokenizer_its_card_and_its_code_are_listed(tmp_path):
    folder = converted_folder(tmp_path / "model")
    files = files_to_upload(folder)
    assert {file.path for file in files} == EXPECTED
    assert [file.path for file in files] == sorted(file.path for file in files)
    for file in files:
        content = (folder / file.path).read_bytes()
        assert (file.size, file.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_shards_and_their_index_are_listed(tmp_path):
    names = {file.path for file in files_to_upload(converted_folder(tmp_path / "model", shards=3))}
    shards = {f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)}
    assert names == EXPECTED - {"model.safetensors"} | shards | {"model.safetensors.index.json"}


def _message(folder) -> str:
    with pytest.raises(AttnExtError) as caught:
        files_to_upload(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_tampered_weight_file_is_named(tmp_path):
    folder = converted_folder(tmp_path / "model")
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert "model.safetensors is not the file that was saved" in _message(folder)


def test_a_truncated_weight_file_is_named(tmp_path):
    folder = converted_folder(tmp_path / "model")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    assert "model.safetensors is not the file that was saved" in _message(folder)


def test_a_missing_shard_is_named(tmp_path):
    folder = converted_folder(tmp_path / "model", shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors" in _message(folder)


def test_a_weight_file_that_the_manifest_names_but_that_is_gone(tmp_path):
    folder = converted_folder(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    assert "holds no weights" in _message(folder)


def test_a_stock_models_folder_is_refused(tmp_path):
    folder = converted_folder(tmp_path / "model")
    (folder / "config.json").write_text(json.dumps({"model_type": "roberta"}))
    assert "base model (model type 'roberta')" in _message(folder)


def test_missing_folder_and_broken_config_are_named(tmp_path):
    assert "no-such-folder" in _message(tmp_path / "no-such-folder")
    (tmp_path / "empty").mkdir()
    assert "config.json is missing" in _message(tmp_path / "empty")
    folder = converted_folder(tmp_path / "model")
    (folder / "config.json").write_text('{"model_type": ')
    assert "not valid JSON" in _message(folder)
    folder = converted_folder(tmp_path / "second")
    (folder / "attn_ext_manifest.json").unlink()
    assert "attn_ext_manifest.json is missing" in _message(folder)
    write_manifest(folder)
    assert files_to_upload(folder)
