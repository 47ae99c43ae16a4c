"""Whole small runs of language models: what they measure and leave behind, and the mistakes they refuse."""

import json
import math

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Model, LlamaConfig, LlamaForCausalLM

from hf_attn_ext import AttnExtError
from hf_attn_ext.training import distill, results_table
from hf_attn_ext.training.stages.losses import language_loss
from tests.training import small, small_gpt
from tests.training.test_resume import assert_same, two_runs

SHORT = {"steps": 2, "batch_size": 8, "evaluate_every": 1}


def short(root, name="run", **sections):
    return small_gpt.settings(root, name, **{"teacher": SHORT, "stage1": SHORT, "stage2": SHORT, **sections})


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return small_gpt.prepare(tmp_path_factory.mktemp("language"))


def test_a_run_from_a_random_gpt_to_a_converted_one(tmp_path):
    small_gpt.prepare(tmp_path)
    longer = {"steps": 100, "batch_size": 16, "evaluate_every": 50}
    values = small_gpt.settings(
        tmp_path,
        control=True,
        teacher={**longer, "lr": 1e-2},
        stage1={**longer, "lr": 2e-2},
        stage2={**longer, "steps": 40, "distillation": 0.5, "feature_map_lr": 1e-3},
    )
    result = distill(values)
    results, scores = result.results, result.results["scores"]
    assert results["task"] == "language_modeling" and results["metric"] == "perplexity"
    assert list(scores) == ["teacher", "control", "converted", "stage1", "stage2"]
    for row in scores.values():
        assert row["perplexity"] == pytest.approx(math.exp(row["loss"]))
    assert scores["teacher"]["perplexity"] < 3.0 and scores["stage2"]["perplexity"] < 3.0  # of 24 words, at random
    assert scores["stage1"]["loss"] < scores["converted"]["loss"]
    assert results["transfer"]["stage1"]["kl"] < 0.4 * results["transfer"]["converted"]["kl"]
    assert set(results["standard_errors"]["stage2"]) == {"perplexity", "loss", "bits_per_token"}
    assert results["gap_metric"] == "loss" and results["gap_is_clear"]
    assert results["gap"] == pytest.approx(scores["control"]["loss"] - scores["teacher"]["loss"])
    closed = (scores["control"]["loss"] - scores["stage2"]["loss"]) / results["gap"]
    assert results["gap_closed"] == pytest.approx(closed) and closed > 0.7
    assert "share_of_teacher" not in results

    model = AutoModelForCausalLM.from_pretrained(result.model_folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(result.model_folder)
    documents = [small_gpt.END + " " + row["text"] for row in small_gpt.documents(20, seed=2)]
    stream = [token for ids in tokenizer(documents)["input_ids"] for token in ids]
    assert results["data"]["tokens"]["test"] == len(stream) - 1
    total = 0.0
    for start in range(0, len(stream) - 1, 23):
        ids = torch.tensor([stream[start : start + 24]])
        with torch.no_grad():
            total += float(language_loss(model(ids).logits, ids, torch.ones_like(ids)))
    assert total / (len(stream) - 1) == pytest.approx(scores["stage2"]["loss"], rel=1e-5)
    rows = np.load(result.folder / "logits" / "stage2.npy")
    assert rows.shape == (math.ceil((len(stream) - 1) / 23), 2) and rows[:, 1].sum() == len(stream) - 1
    assert json.loads((result.model_folder / "results.json").read_text()) == results

    console = Console(width=160, record=True, quiet=False)
    console.print(results_table(results))
    shown = console.export_text()
    assert "perplexity" in shown and "of the gap in loss between control and teacher" in shown


def test_every_stage_ends_with_its_lowest_perplexity(root):
    stage2 = {"steps": 6, "batch_size": 8, "evaluate_every": 1, "lr": 0.2, "schedule": "constant"}
    result = distill(short(root, "best", stage2=stage2, kernel={"kernel": "hedgehog"}))
    records = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    evals = {r["step"]: r for r in records if r["stage"] == "stage2" and r["kind"] == "eval"}
    final = next(r for r in records if r["stage"] == "stage2" and r["kind"] == "final")
    best = min(evals.values(), key=lambda record: (record["perplexity"], record["step"]))
    assert final["best_step"] == best["step"] < 6, "the learning rate should ruin the model again"
    assert final["loss"] == pytest.approx(best["loss"], rel=1e-5)


def test_the_teacher_is_followed_and_accumulation_changes_nothing(root):
    plain = distill(short(root, "plain", stage2={**SHORT, "lr": 1e-3}))
    follow = {**SHORT, "lr": 1e-3, "distillation": 0.5}
    whole = distill(short(root, "whole", stage2=follow))
    parts = distill(short(root, "parts", stage2={**follow, "batch_size": 2, "accumulate": 4}))
    weights = [load_file(result.model_folder / "model.safetensors") for result in (plain, whole, parts)]
    for key in weights[0]:
        torch.testing.assert_close(weights[1][key], weights[2][key], rtol=0, atol=1e-5)
    assert any(not weights[0][key].equal(weights[1][key]) for key in weights[0])
    records = [json.loads(line) for line in (whole.folder / "metrics.jsonl").read_text().splitlines()]
    line = next(record for record in records if record["stage"] == "stage2" and record["kind"] == "train")
    assert line["loss"] == pytest.approx((line["task_loss"] + line["distillation_loss"]) / 2, rel=1e-5)
    assert not (whole.folder / "logits" / "teacher-train.npy").exists()


def test_a_document_a_sequence_other_texts_for_stage_1_and_a_subset_of_queries(root):
    small_gpt.save_jsonl(root / "others.jsonl", small_gpt.documents(40, seed=7))
    values = short(
        root,
        "apart",
        data={"packing": False, "group_column": "author", "validation": None, "max_length": 20},
        stage1={**SHORT, "queries_per_sequence": 3, "eval_sequences": 8},
        stage1_data={"train": str(root / "others.jsonl"), "validation_fraction": 0.2, "max_length": 16},
        kernel={"kernel": "hedgehog", "num_features": 4, "layers": [1]},
        teacher={"steps": 0},
    )
    results = distill(values).results
    assert results["scores"]["teacher"] is not None  # the checkpoint has its head
    assert results["data"]["tokens"]["test"] == sum(
        min(20, 1 + len(row["text"].split())) - 1 for row in small_gpt.documents(20, seed=2)
    )
    assert 7 * 16 < results["transfer"]["stage1"]["queries"] <= 8 * 16  # packed; the last sequence may be short
    assert [layer["layer_idx"] for layer in results["transfer"]["stage1"]["layers"]] == [1]


def test_llama_with_grouped_heads(root, tmp_path):
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "vocab_size": 24,
        "initializer_range": 0.2,
    }
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, bos_token_id=1, eos_token_id=1)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "llama")
    small_gpt.save_tokenizer(tmp_path / "llama")
    model = {"name": str(tmp_path / "llama")}
    result = distill(short(root, "llama", model=model, stage2={**SHORT, "distillation": 0.5}))
    again = AutoModelForCausalLM.from_pretrained(result.model_folder)
    assert type(again).__name__ == "AttnExtLlamaForCausalLM"


def test_a_headless_checkpoint_with_tied_embeddings_has_its_head(root, tmp_path):
    torch.manual_seed(0)
    GPT2Model(small_gpt.host_config()).save_pretrained(tmp_path / "bare")
    small_gpt.save_tokenizer(tmp_path / "bare")
    stages = {"teacher": {"steps": 0}, "stage2": {**SHORT, "distillation": 0.5}}
    results = distill(short(root, "bare", model={"name": str(tmp_path / "bare")}, **stages)).results
    assert results["scores"]["teacher"]["perplexity"] > 1


def test_activation_checkpointing_gives_the_same_weights(root):
    plain = distill(short(root, "kept"))
    saving = distill(short(root, "recomputed", model={"name": str(root / "model"), "activation_checkpointing": True}))
    one, two = (load_file(result.model_folder / "model.safetensors") for result in (plain, saving))
    for key in one:
        torch.testing.assert_close(one[key], two[key], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"data": {"max_length": 64}}, "max_length is 64.*only 40 positions"),
        ({"data": {"metric": "accuracy"}}, "language_modeling task has no metric 'accuracy'"),
        ({"data": {"labels": ["a", "b"]}}, "data.labels"),
        ({"data": {"task": "language_modelling"}}, "task.*language_modeling"),
    ],
)
def test_mistakes_are_one_line(root, sections, said):
    with pytest.raises(AttnExtError, match=said) as caught:
        distill(short(root, "mistake", **sections))
    assert "\n" not in str(caught.value) and not (root / "mistake").exists()


def test_a_model_that_sees_what_it_should_predict_is_refused(root, tmp_path):
    folder = small.save_model(tmp_path / "roberta")
    with pytest.raises(AttnExtError, match=r"roberta.* is not causal.*needs a decoder"):
        distill(short(root, "encoder", model={"name": str(folder)}, data={"max_length": 16}))
    assert not (root / "encoder").exists()


KILLS = [("teacher", 2, "gradients"), ("stage1", 1, "saving"), ("stage2", 3, "gradients"), ("stage2", 1, "finishing")]


def test_killed_and_resumed_equals_left_alone(tmp_path):
    ends = two_runs(tmp_path, KILLS, 0, made=small_gpt, stage2={"distillation": 0.5})
    assert ends == [9] * len(KILLS)
    assert_same(tmp_path)
