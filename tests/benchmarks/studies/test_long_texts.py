"""``long_texts.py`` at small size: everything is measured, once; a mistake is one line."""

import json
import random

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from benchmarks.studies.long_texts import __main__ as long_texts
from hf_attn_ext.integration import is_converted
from tests.training import small

SMALL = ["--longest", "300", "--documents", "10", "--sentences", "20", "--steps", "2", "--precision", "no"]


@pytest.fixture
def tiny_addresses(tiny_assets):
    """Addresses by four presidents under the name of the real ones; the later, the more "good" words they have."""
    for seed, (name, count) in enumerate((("train", 10), ("validation", 3), ("test", 4))):
        generator, lines = random.Random(seed), []
        for i in range(count):
            year = generator.randint(1800, 2000)
            pairs = (generator.random() < (year - 1790) / 220 for _ in range(40))
            text = " ".join(small.sentence(generator, positive) for positive in pairs)
            lines.append(json.dumps({"text": text, "year": year, "president": f"p{i % 4}", "address": f"{name}-{i}"}))
        path = tiny_assets / "sotu" / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tiny_assets


def test_everything_is_measured_once(tiny_addresses, tmp_path, capsys):
    arguments = [*SMALL, "--seeds", "0,1", "--softmax-whole", "--out", "runs/long"]
    assert long_texts.main(arguments) == 0
    printed = capsys.readouterr().out
    folder = tmp_path / "runs" / "long"
    report = json.loads((folder / "results.json").read_text())
    assert report["window"] == 138 and report["lengths"] == [138, 276, 300] and report["documents"] == 10
    assert len(report["years"]["converted, 300"]["seeds"]) == 2
    for name in ("softmax, 34", "softmax in windows, 276", "no attention, 300", "bag of words, 138", "softmax, 300"):
        assert np.isfinite(report["years"][name]["score"]), name
    assert report["years"]["softmax, 138"]["difference_error"] == 0
    assert set(report["short_texts"]["valence"]) == {"softmax", "converted", "no attention"}
    assert set(report["heads"]) == {"34", "138", "300"}
    rows = {(row["name"], row["length"]) for row in report["cost"]["rows"]}
    assert rows == {(name, length) for name in ("softmax", "converted") for length in report["lengths"]}
    assert (folder / "results.md").read_text() in printed and (folder / "results.png").stat().st_size > 1000

    model, tokenizer = (auto.from_pretrained(folder / "model-1") for auto in (AutoModel, AutoTokenizer))
    assert is_converted(model) and tokenizer.model_max_length == 300 == model.config.max_position_embeddings - 2
    trained = AutoModelForSequenceClassification.from_pretrained(folder / "stage1-1" / "model").base_model
    ids = torch.full((1, 300), 7)
    assert model(input_ids=ids).last_hidden_state.equal(trained(input_ids=ids).last_hidden_state)

    # Run again: what is finished is read, not computed.
    (folder / "embeddings" / "converted-1-300.npy").unlink()
    assert long_texts.main(arguments) == 0
    again = capsys.readouterr()
    assert again.out == printed
    assert [line.split(":")[0] for line in again.err.splitlines() if "texts" in line] == ["[long] converted-1-300"]
    assert long_texts.main([*arguments, "--steps", "3"]) == 2
    assert "another steps: 2, not 3" in capsys.readouterr().err


def test_scores_know_a_better_contestant():
    generator = np.random.default_rng(0)
    features, groups = generator.normal(size=(60, 5)), np.repeat(np.arange(12), 5)
    targets = features[:, 0] * 3 + 100
    good = long_texts.scores.apart(features, targets, groups)
    bad = long_texts.scores.apart(features[:, 1:], targets, groups)
    metric = long_texts.scores.root_mean_square
    report = long_texts.scores.compared(metric, targets, {"bad": [bad], "good": [good, good]}, groups, "bad")
    assert report["good"]["score"] < 0.2 < report["bad"]["score"] and report["bad"]["difference"] == 0
    assert report["good"]["difference"] < -4 * report["good"]["difference_error"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--longest", "200"], "--longest must be at least 276, twice what MiniLM has; got 200"),
        (["--longest", "9000"], "0 addresses of 9000 tokens or more, by 0 presidents, are too few"),
        (["--documents", "0"], "--documents must be at least 1, got 0"),
        (["--steps", "-1"], "--steps must be at least 1, got -1"),
        (["--seeds", "0,1.5"], "got '1.5'"),
    ],
)
def test_mistakes_are_one_line(tiny_addresses, tmp_path, capsys, arguments, message):
    assert long_texts.main([*SMALL, *arguments, "--out", "runs/wrong"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and message in lines[0]
    assert not (tmp_path / "runs" / "wrong").exists()
