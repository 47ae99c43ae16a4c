"""Training under a mask by a YAML file: it learns, resumes, opens again, and says in one line what is wrong."""

import json

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer, GPT2LMHeadModel

import hf_attn_ext as hax
from benchmarks import ROOT
from benchmarks.studies.train_under_mask import __main__ as train_under_mask
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


@pytest.mark.parametrize("kernel", [None, {"kernel": "flexformer_p", "num_features": 4}])
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

    # The same command with more steps continues from the newest checkpoint.
    assert train_under_mask.main([*config(kernel=kernel), "--set", "training.max_steps=13"]) == 0
    again = json.loads((tmp_path / "out" / "results.json").read_text())
    assert again["steps"] == 13 and abs(again["loss_after"] - result["loss_after"]) < 0.2

    # Once more, it is at its end: loaded, evaluated, and no step is taken.
    assert train_under_mask.main([*config(kernel=kernel), "--set", "training.max_steps=13"]) == 0
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == again


def test_butterfly(config, tmp_path):
    small.save_model(tmp_path / "bert", max_position_embeddings=40)
    mask = {"name": "butterfly"}
    assert train_under_mask.main(config(model="bert", mask=mask)) == 0
    result = json.loads((tmp_path / "out" / "results.json").read_text())
    assert result["loss_after"] < result["loss_before"]
    model = AutoModelForMaskedLM.from_pretrained("out/model", attn_implementation="hasse")
    assert butterfly_score(model, torch.tensor([[2, 5, 6, 7]])).shape == (1, 4)


def logged(out):
    """Losses of the steps, the held-out loss before, and the weights at the end."""
    state = max(out.glob("checkpoints/*/trainer_state.json"), key=lambda path: int(path.parent.name.split("-")[1]))
    losses = [entry["loss"] for entry in json.loads(state.read_text())["log_history"] if "loss" in entry]
    before = json.loads((out / "results.json").read_text())["loss_before"]
    return torch.tensor(losses), before, load_file(out / "model" / "model.safetensors")


@pytest.mark.parametrize(
    ("mask", "smoothing"), [({"name": "butterfly"}, 0), ({"name": "block_two_stream", "block_size": 2}, 0.3)]
)
def test_accumulation_and_batch_sizes_change_nothing(config, tmp_path, mask, smoothing):
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    small.save_model(tmp_path / "bert", max_position_embeddings=40, **still)
    given = config(mask=mask, model="bert" if mask["name"] == "butterfly" else "gpt")
    common = {"max_steps": 2, "logging_steps": 1, "optim": "sgd", "learning_rate": 0.1, "max_grad_norm": 0}
    runs = []
    for size, count in ((8, 1), (2, 4)):
        changed = {"per_device_train_batch_size": size, "gradient_accumulation_steps": count, **common}
        changed |= {"per_device_eval_batch_size": size, "label_smoothing_factor": smoothing}
        sets = [f"training.{name}={value}" for name, value in changed.items()]
        sets += [f"out=out{size}", "data.packing=false"]
        assert train_under_mask.main([*given, *(part for one in sets for part in ("--set", one))]) == 0
        runs.append(logged(tmp_path / f"out{size}"))
    (losses, before, weights), (others, before_too, weights_too) = runs
    torch.testing.assert_close(losses, others, rtol=1e-5, atol=1e-5)
    assert abs(before - before_too) < 1e-5
    torch.testing.assert_close(weights, weights_too, rtol=1e-4, atol=1e-5)
    # The first step's loss is near that of the held-out texts, which is never smoothed.
    assert abs(losses[0].item() - before) < 0.5


def test_the_held_out_loss_is_the_mean_over_all_labels(config, tmp_path):
    sets = ["training.max_steps=1", "training.per_device_eval_batch_size=4", "data.packing=false", "data.max_length=40"]
    given = [*config(), *(part for one in sets for part in ("--set", one))]
    assert train_under_mask.main(given) == 0
    model = AutoModelForCausalLM.from_pretrained("out/model", attn_implementation="hasse").eval()
    tokenizer = AutoTokenizer.from_pretrained("out/model")
    collator, total, count = hax.training.BlockTwoStreamCollator(tokenizer, model), 0.0, 0
    for line in (tmp_path / "texts" / "validation.jsonl").read_text().splitlines():
        batch = collator([{"input_ids": [1, *tokenizer(json.loads(line)["text"])["input_ids"]][:40]}])
        labels = batch["labels"][0]
        chosen = labels >= 0
        log_probs = model(**batch).logits[0].log_softmax(-1)[chosen, labels[chosen]]
        total, count = total - log_probs.sum().item(), count + len(log_probs)
    assert json.loads((tmp_path / "out" / "results.json").read_text())["loss_after"] == pytest.approx(total / count)


def test_a_run_keeps_its_settings(config, tmp_path, capsys):
    assert train_under_mask.main([*config(), "--set", "training.max_steps=2"]) == 0
    kept = (tmp_path / "out" / "settings.json").read_text()
    for change, message in (
        ("mask.block_size=4", "another mask.block_size: 2, not 4"),
        ("training.learning_rate=1.0e-5", "another training.learning_rate: 0.02, not 1e-05"),
        ("training.weight_decay=0.1", "another training.weight_decay: 0.0, not 0.1"),
        ("kernel={kernel: flexformer_p}", "another kernel: None, not {'kernel': 'flexformer_p'}"),
        ("data.max_length=10", "another data.max_length: 12, not 10"),
        ("model=other", "another model: 'gpt', not 'other'"),
        ("training.max_steps=1", "can only be made longer, got 1"),
    ):
        sets = ["--set", "training.max_steps=3", "--set", change]
        assert train_under_mask.main([*config(), *sets]) == 2
        assert message in capsys.readouterr().err
    assert (tmp_path / "out" / "settings.json").read_text() == kept
    (tmp_path / "out" / "settings.json").unlink()
    assert train_under_mask.main(config()) == 2 and "without its settings.json" in capsys.readouterr().err
    (tmp_path / "out" / "settings.json").write_text(kept.replace('"max_steps": 2', '"max_steps": 1'))
    assert train_under_mask.main([*config(), "--set", "training.max_steps=1"]) == 2
    assert "holds a run of 2 steps" in capsys.readouterr().err


def test_epochs_end_too(config, tmp_path):
    sets = ["training.max_steps=-1", "training.num_train_epochs=0.3", "training.save_strategy=epoch"]
    given = [*config(), *(part for one in sets for part in ("--set", one))]
    assert train_under_mask.main(given) == 0
    result = json.loads((tmp_path / "out" / "results.json").read_text())
    assert train_under_mask.main(given) == 0
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == result


def test_no_checkpoints(config, tmp_path):
    training = {"max_steps": 1, "save_strategy": False, "use_cpu": True, "disable_tqdm": True}  # YAML's unquoted no
    assert train_under_mask.main(config(training=training)) == 0
    assert not list(tmp_path.glob("out/checkpoints/*"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask": {"name": "butterlfy"}}, "mask.name must be one of block_two_stream, butterfly, got 'butterlfy'"),
        ({"mask": {"name": "block_two_stream", "size": 2}}, "size"),
        ({"mask": {"name": "block_two_stream", "block_size": 2, "model": 1}}, "unknown field 'mask.model'"),
        ({"mask": {"name": "block_two_stream", "block_size": 2, "n": 9}}, "unknown field 'mask.n'"),
        ({"mask": {"name": "block_two_stream", "block_size": 2, "backend": "flex"}}, "cannot train on the CPU"),
        ({"mask": {"name": "block_two_stream", "block_size": 20}}, "block_size is 20, but a text has 12 tokens"),
        ({"mask": {"name": "butterfly"}}, "butterfly needs a masked language model, 'gpt' (gpt2) is none"),
        ({"model": "bert"}, "block_two_stream needs a causal language model, 'bert' (roberta) is none"),
        ({"model": "bare"}, "'bare' has no tokenizer"),
        ({"model": "no-such", "prepare": "make it"}, "; to make it: make it"),
        ({"out": "config.yaml/x"}, "cannot write into out, 'config.yaml/x': Not a directory"),
        ({"out": ""}, "out must name a folder"),
        ({"data": {"path": "gone", "train": "a.jsonl"}, "prepare": "make it"}, "no folder 'gone'; to make it: make it"),
        ({"data": {"path": "texts", "train": "train.jsonl", "max_length": 1}}, "data.max_length must be at least 2"),
        ({"data": {"path": "texts", "train": "train.jsonl", "task": "regression"}}, "data.task must be language_mod"),
        ({"training": {"learning_rat": 1}}, "unknown field 'training.learning_rat'. Did you mean 'learning_rate'?"),
        ({"training": {"learning_rate": "fast"}}, "'training.learning_rate' must be a number, got 'fast'"),
        ({"training": {"learning_rate": -1.0}}, "training.learning_rate must be a number above 0"),
        ({"training": {"max_steps": "many"}}, "'training.max_steps' must be a whole number, got 'many'"),
        ({"training": {"max_steps": 0}}, "training.max_steps must be at least 1"),
        ({"training": {"seed": "a"}}, "'training.seed' must be a whole number"),
        ({"training": {"seed": -1}}, "training.seed must be from 0"),
        ({"training": {"per_device_train_batch_size": 0}}, "per_device_train_batch_size must be at least 1, got 0"),
        ({"training": {"label_smoothing_factor": 1}}, "label_smoothing_factor must be a number from 0 to below 1"),
        ({"training": {"report_to": "nonsense"}}, "nonsense is not supported"),
        ({"training": {"optim": "nonsense"}}, "nonsense is not a valid"),
        ({"training": {"deepspeed": "x.json"}}, "training: "),
        ({"training": {"push_to_hub": True}}, "training.push_to_hub is not for this command"),
        ({"training": {"resume_from_checkpoint": "x"}}, "training.resume_from_checkpoint is not for this command"),
        ({"training": {"output_dir": "x"}}, "set out instead"),
        ({"model": "no-such"}, "cannot open 'no-such'"),
        ({"data": {"path": "texts", "train": "no.jsonl", "max_length": 12}}, "no.jsonl"),
        (
            {"data": {"path": "texts", "train": "train.jsonl", "max_length": 99}},
            "max_length is 99, but GPT2LMHeadModel has",
        ),
        ({"kernel": {"kernel": "flexfromer_p"}}, "flexformer_p"),
        ({"epochs": 3}, "unknown field 'epochs'"),
    ],
)
def test_mistakes(config, tmp_path, capsys, changes, message):
    if changes.get("model") == "bert":
        small.save_model(tmp_path / "bert", max_position_embeddings=40)
    if changes.get("model") == "bare":
        GPT2LMHeadModel(small_gpt.host_config()).save_pretrained(tmp_path / "bare")
    assert train_under_mask.main(config(**changes)) == 2
    said = capsys.readouterr().err
    assert message in said and said.startswith("error: ") and said.count("\n") == 1, said
    assert not (tmp_path / "out" / "model").exists()


@pytest.mark.parametrize("name", ["blocks_gpt2", "blocks_mgm", "butterfly_minilm"])
def test_the_files_are_read(name):
    path = str(ROOT / "configs" / "masks" / f"{name}.yaml")
    config = train_under_mask.read_config(path, ["training.use_cpu=true"])
    assert train_under_mask.training_arguments(config, path)[0].max_steps > 0
