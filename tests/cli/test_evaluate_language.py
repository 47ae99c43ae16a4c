"""``hf-attn-ext evaluate`` of a causal language model: its perplexity, and mistakes in one line."""

import json
import math

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, RobertaForCausalLM

from tests.cli import models
from tests.training import small, small_gpt

SHOWN = ("perplexity", "loss", "bits_per_token", "tokens")


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    return small_gpt.save_model(tmp_path_factory.mktemp("stock") / "gpt")


@pytest.fixture
def texts(tmp_path):
    return small_gpt.save_jsonl(tmp_path / "texts.jsonl", small_gpt.documents(9))


@pytest.fixture
def ours(run, stock, tmp_path):
    done = run("convert", stock, "--num-features", 4, "--out", tmp_path / "ours")
    assert done.code == 0, done.err
    return tmp_path / "ours"


def scores(outcome) -> dict[str, float]:
    assert outcome.code == 0, outcome.err
    assert outcome.err == "", outcome.err
    return {line.split()[0]: float(line.split()[1]) for line in outcome.out.splitlines()[1:]}


def loss_of(folder, sequences) -> float:
    model, total, count = AutoModelForCausalLM.from_pretrained(folder).eval(), 0.0, 0
    for ids in sequences:
        with torch.no_grad():
            total += float(model(torch.tensor([ids]), labels=torch.tensor([ids])).loss) * (len(ids) - 1)
        count += len(ids) - 1
    return total / count


@pytest.mark.parametrize("folder", ["stock", "ours"])
@pytest.mark.parametrize("packing", [True, False])
def test_perplexity_is_that_of_one_sequence_at_a_time(run, request, texts, tmp_path, folder, packing):
    model = request.getfixturevalue(folder)
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = [tokenizer(f"{small_gpt.END} {row['text']}")["input_ids"] for row in small_gpt.documents(9)]
    stream = [token for row in rows for token in row]
    whole = [stream[i : i + 10] for i in range(0, len(stream) - 1, 9)]
    sequences = whole if packing else [row[:10] for row in rows]
    options = ("--max-length", 10, "--out", tmp_path / "scores.json", *(() if packing else ("--no-packing",)))
    done = run("evaluate", model, "--data", texts, *options)
    found = scores(done)
    assert tuple(found) == SHOWN and "9 texts" in done.out
    assert found["loss"] == pytest.approx(loss_of(model, sequences), rel=1e-4)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]), rel=1e-4)
    assert found["tokens"] == sum(len(ids) - 1 for ids in sequences)
    saved = json.loads((tmp_path / "scores.json").read_text())
    assert saved["examples"] == 9 and saved["perplexity"] == pytest.approx(found["perplexity"], rel=1e-4)
    again = scores(run("evaluate", model, "--data", texts, *options[:2], *options[4:], "--batch-size", 2))
    assert again["loss"] == pytest.approx(found["loss"], rel=1e-5)


def test_a_text_file_is_one_text(run, stock, tmp_path):
    (tmp_path / "text.txt").write_text("anna said that\nanna then went\n")
    done = run("evaluate", stock, "--data", tmp_path / "text.txt")
    assert ": 1 text\n" in done.out and scores(done)["tokens"] == 6


def test_mistakes(run, stock, texts, tmp_path):
    assert "'txt'" in run("evaluate", stock, "--data", texts, "--text-column", "txt").mistake()
    message = run("evaluate", stock, "--data", texts, "--text-pair-column", "author").mistake()
    assert "text_pair_column" in message and "language_modeling" in message
    assert "41 tokens" in run("evaluate", stock, "--data", texts, "--max-length", 41).mistake()
    RobertaForCausalLM(small.host_config()).save_pretrained(tmp_path / "encoder")
    models.tokenizer().save_pretrained(tmp_path / "encoder")
    assert "is not causal" in run("evaluate", tmp_path / "encoder", "--data", texts).mistake()
