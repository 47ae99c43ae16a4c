"""Training under a mask by a YAML file: it learns, goes on, opens again, and says in one line what is wrong."""

import json

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

import hf_attn_ext as hax
from examples import train_under_mask
from hf_attn_ext.inference import block_generate, butterfly_score
from hf_attn_ext.integration import is_converted
from tests.training import small, small_gpt


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A file of settings, and a function that writes others into it."""
    monkeypatch.chdir(tmp_path)
    for seed, (name, count) in enumerate((("train", 40), ("validation", 6))):
        small_gpt.save_jsonl(tmp_path / "texts" / f"{name}.jsonl", small_gpt.documents(count, seed))
    small_gpt.save_model(tmp_path / "gpt")
    training = {"max_steps": 12, "per_device_train_batch_size": 8, "learning_rate": 2e-2, "save_steps": 6}
    content = {
        "model": "gpt",
        "mask": {"name": "block_two_stream", "block_size": 2},
        "data": {"path": "texts", "train": "train.jsonl", "validation": "validation.jsonl", "max_length": 12},
        "training": {**training, "use_cpu": True, "disable_tqdm": True, "logging_steps": 100},
        "out": "out",
    }

    def write(**changes):
        (tmp_path / "config.yaml").write_text(yaml.safe_dump({**content, **changes}))
        return ["--config", "config.yaml"]

    return write


@pytest.mark.parametrize("kernel", [None, {"kernel": "flexformer_c", "num_features": 4}])
def test_blocks(config, tmp_path, capsys, kernel):
    assert train_under_mask.main(config(kernel=kernel)) == 0
    result = json.loads((tmp_path / "out" / "results.json").read_text())
    assert result["steps"] == 12 and result["loss_after"] < result["loss_before"] - 0.2
    assert f"{result['loss_after']:.3f} after 12 steps (seed 42)" in capsys.readouterr().out
    model = AutoModelForCausalLM.from_pretrained("out/model", **({} if kernel else {"attn_implementation": "hasse"}))
    assert hax.get_mask(model) == 2 * [("block_two_stream", {"block_size": 2})]
    assert is_converted(model) == bool(kernel)
    tokenizer = AutoTokenizer.from_pretrained("out/model")
    made = block_generate(model, torch.tensor([[1, 2, 5]]), max_new_tokens=4, tokenizer=tokenizer, eos_token_id=None)
    assert made.shape == (1, 7)

    # The same command with more steps goes on from the newest checkpoint.
    assert train_under_mask.main([*config(kernel=kernel), "--set", "training.max_steps=13"]) == 0
    again = json.loads((tmp_path / "out" / "results.json").read_text())
    assert again["steps"] == 13 and abs(again["loss_after"] - result["loss_after"]) < 0.2


def test_butterfly(config, tmp_path):
    small.save_model(tmp_path / "bert", max_position_embeddings=40)
    mask = {"name": "butterfly"}
    assert train_under_mask.main(config(model="bert", mask=mask)) == 0
    result = json.loads((tmp_path / "out" / "results.json").read_text())
    assert result["loss_after"] < result["loss_before"]
    model = AutoModelForMaskedLM.from_pretrained("out/model", attn_implementation="hasse")
    assert butterfly_score(model, torch.tensor([[2, 5, 6, 7]])).shape == (1, 4)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"mask": {"name": "butterlfy"}}, "mask.name must be one of block_two_stream, butterfly, got 'butterlfy'"),
        ({"mask": {"name": "block_two_stream", "size": 2}}, "size"),
        ({"training": {"learning_rat": 1}}, "no field 'learning_rat'. Did you mean 'learning_rate'?"),
        ({"training": {"output_dir": "x"}}, "set out instead"),
        ({"model": "no-such"}, "cannot open 'no-such'"),
        ({"data": {"path": "texts", "train": "no.jsonl", "max_length": 12}}, "no.jsonl"),
        ({"data": {"path": "texts", "train": "train.jsonl", "max_length": 99}}, "has 40 positions"),
        ({"kernel": {"kernel": "flexfromer_c"}}, "flexformer_c"),
        ({"epochs": 3}, "unknown field 'epochs'"),
    ],
)
def test_mistakes(config, tmp_path, capsys, changes, message):
    assert train_under_mask.main(config(**changes)) == 2
    said = capsys.readouterr().err
    assert message in said and said.startswith("error: ") and said.count("\n") == 1, said
    assert not (tmp_path / "out" / "model").exists()


@pytest.mark.parametrize("name", ["blocks_gpt2", "blocks_mgm", "butterfly_minilm"])
def test_the_files_are_read(name):
    path = str(train_under_mask.ROOT / "configs" / "masks" / f"{name}.yaml")
    config = train_under_mask.read_config(path, ["training.use_cpu=true"])
    assert train_under_mask.training_arguments(config, path).max_steps > 0
