"""The two tasks for lm-evaluation-harness: their questions, and a run of both on a tiny model."""

import json
import random
import re
from pathlib import Path

import datasets

from benchmarks.studies import lm_eval_data
from hf_attn_ext.cli.main import main
from tests.cli import harness
from tests.training import small_gpt

TASKS = Path(lm_eval_data.__file__).parent / "lm_eval_tasks"


def address(number: int, sentences: int) -> dict:
    """Sentences of different lengths, every word different."""
    generator, words = random.Random(number), iter(range(10**6))
    lengths = [generator.randint(4, 12) for _ in range(sentences)]
    text = [" ".join(f"w{next(words)}" for _ in range(length)) + "." for length in lengths]
    return {"text": "\n\n".join(text), "address": f"a{number}", "year": 1900 + number}


def test_questions():
    addresses = [address(number, sentences) for number, sentences in enumerate((100, 200, 5, 100))]
    made = lm_eval_data.questions(addresses, 20, passage=12, words=5, seed=0)
    assert made == lm_eval_data.questions(addresses, 20, passage=12, words=5, seed=0)
    assert made != lm_eval_data.questions(addresses, 20, passage=12, words=5, seed=1)
    assert [sum(q["address"] == f"a{i}" for q in made) for i in range(4)] == [5, 5, 0, 5]
    assert {q["answer"] for q in made} == {0, 1, 2, 3}
    used = []
    for q in made:
        text = " ".join(next(a for a in addresses if a["address"] == q["address"])["text"].split())
        assert len(q["passage"].split()) == 12
        assert [len(choice.split()) for choice in q["choices"]] == [5] * 4
        follows = [f"{q['passage']} {choice}" in text for choice in q["choices"]]
        assert follows == [i == q["answer"] for i in range(4)]
        used += [(q["address"], word) for piece in (q["passage"], *q["choices"]) for word in piece.split()]
    assert len(used) == len(set(used))


def test_beginning():
    assert lm_eval_data.beginning("a  b\n\nc d", 3) == "a  b\n\nc"
    assert lm_eval_data.beginning("a b", 3) == "a b" and lm_eval_data.beginning("", 3) == ""


def test_both_tasks_run(tmp_path, monkeypatch, capfd):
    folder = tmp_path / "assets" / "sotu"
    small_gpt.save_jsonl(folder / "test.jsonl", [address(number, 120) for number in range(3)])
    small_gpt.save_model(tmp_path / "stock", n_positions=100)
    monkeypatch.setenv("HF_ATTN_EXT_ASSETS", str(folder.parent))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "datasets"))
    monkeypatch.chdir(tmp_path)
    harness.prepare(monkeypatch)
    assert lm_eval_data.main(["--questions", "6", "--words", "150"]) == 0
    assert main(["convert", "stock", "--out", "ours", "--num-features", "4"]) == 0
    words = ["--model_args", "pretrained=ours", "--tasks", "sotu", "--include_path", str(TASKS), "--batch_size", "4"]
    assert main(["lm-eval", "--model", "hf", *words, "--device", "cpu", "--output_path", "out"]) == 0
    printed = capfd.readouterr().out
    assert "runs/lm_eval/addresses.jsonl: 3" in printed and "runs/lm_eval/continuations.jsonl: 6" in printed
    assert re.search(r"sotu_perplexity *\|", printed) and re.search(r"sotu_continuation *\|", printed)
    (file,) = (tmp_path / "out").rglob("results_*.json")
    results = json.loads(file.read_text())
    assert results["n-samples"]["sotu_perplexity"]["effective"] == 3
    assert results["n-samples"]["sotu_continuation"]["effective"] == 6
    assert results["results"]["sotu_perplexity"]["bits_per_byte,none"] > 0
    assert {"acc,none", "acc_mutual_info,none"} <= set(results["results"]["sotu_continuation"])
