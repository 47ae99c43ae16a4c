"""``hf-attn-ext evaluate``: the right numbers, and mistakes in one line."""

import json

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from tests.cli import models
from tests.training import small

TEXTS = [
    ("the film is good", "good"),
    ("a dull story", "bad"),
    ("great plot and very good film", "good"),
    ("not so great", "bad"),
    ("bad", "bad"),
]


@pytest.fixture
def reviews(tmp_path):
    path = tmp_path / "reviews.csv"
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in TEXTS))
    return path


@pytest.fixture
def ours(run, classifier, tmp_path):
    done = run("convert", classifier, "--num-features", 4, "--out", tmp_path / "ours")
    assert done.code == 0, done.err
    return tmp_path / "ours"


def accuracy(folder) -> float:
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder).eval(), models.tokenizer()
    right = 0
    for text, label in TEXTS:
        with torch.no_grad():
            best = model(**tokenizer(text, return_tensors="pt")).logits.argmax(-1).item()
        right += model.config.id2label[best] == label
    return right / len(TEXTS)


def scores(outcome) -> dict[str, float]:
    assert outcome.code == 0, outcome.err
    assert outcome.err == "", outcome.err
    return {line.split()[0]: float(line.split()[1]) for line in outcome.out.splitlines()[1:]}


def test_a_converted_model_scores_what_it_scores_one_text_at_a_time(run, ours, reviews, tmp_path):
    found = scores(run("evaluate", ours, "--data", reviews, "--batch-size", 2, "--out", tmp_path / "scores.json"))
    assert found["accuracy"] == pytest.approx(accuracy(ours))
    again = scores(run("evaluate", ours, "--data", reviews))
    assert again["accuracy"] == found["accuracy"] and again["loss"] == pytest.approx(found["loss"], rel=1e-4)
    saved = json.loads((tmp_path / "scores.json").read_text())
    assert saved["examples"] == 5 and saved["accuracy"] == pytest.approx(found["accuracy"])


def test_a_stock_model_is_scored_too(run, classifier, reviews):
    assert scores(run("evaluate", classifier, "--data", reviews))["accuracy"] == pytest.approx(accuracy(classifier))


def test_labels_are_matched_by_name_not_by_their_order_in_the_file(run, reviews, tmp_path):
    other = models.classifier(tmp_path / "other", labels=("good", "bad"))
    assert scores(run("evaluate", other, "--data", reviews))["accuracy"] == pytest.approx(accuracy(other))


def test_a_file_that_lacks_a_class(run, ours, tmp_path):
    (tmp_path / "one.csv").write_text("text,label\nthe film,bad\na plot,bad\n")
    assert "accuracy" in scores(run("evaluate", ours, "--data", tmp_path / "one.csv"))


def test_mistakes(run, ours, masked_lm, reviews, tmp_path):
    assert "no-such.csv" in run("evaluate", ours, "--data", tmp_path / "no-such.csv").mistake()
    assert "'no-such'" in run("evaluate", "./no-such", "--data", reviews).mistake().replace("./", "")
    message = run("evaluate", masked_lm, "--data", reviews).mistake()
    assert "RobertaForMaskedLM" in message and "ForSequenceClassification" in message
    assert "'txt'" in run("evaluate", ours, "--data", reviews, "--text-column", "txt").mistake()
    assert "'--batch-size'" in run("evaluate", ours, "--data", reviews, "--batch-size", 0).mistake()
    assert "no-such" in run("evaluate", ours, "--data", reviews, "--out", tmp_path / "no-such" / "x").mistake()
    (tmp_path / "labels.csv").write_text("text,label\nthe film,superb\na plot,bad\n")
    assert "'superb'" in run("evaluate", ours, "--data", tmp_path / "labels.csv").mistake()


def test_texts_longer_than_the_model(run, ours, tmp_path):
    (tmp_path / "long.csv").write_text(f"text,label\n{'good film ' * 50},good\na plot,bad\n")
    message = run("evaluate", ours, "--data", tmp_path / "long.csv", "--max-length", 41).mistake()
    assert "41 tokens" in message and "40 positions" in message
    scores(run("evaluate", ours, "--data", tmp_path / "long.csv", "--max-length", 40))


def test_texts_longer_than_a_model_that_counts_positions_from_its_padding_index(run, tmp_path):
    stock = small.save_model(tmp_path / "stock", head=True, id2label={0: "bad", 1: "good"})
    assert run("convert", stock, "--num-features", 4, "--out", tmp_path / "ours").code == 0
    small.save_csv(
        tmp_path / "long.csv", [{"text": "good film " * 50, "label": "good"}, {"text": "bad", "label": "bad"}]
    )
    for folder in (stock, tmp_path / "ours"):
        message = run("evaluate", folder, "--data", tmp_path / "long.csv", "--max-length", 39).mistake()
        assert "39 tokens" in message and "38 positions" in message
        scores(run("evaluate", folder, "--data", tmp_path / "long.csv", "--max-length", 38))


def test_labels_that_do_not_match_in_number(run, reviews, tmp_path):
    three = models.classifier(tmp_path / "three", labels=("bad", "so-so", "fine"))
    assert "'good'" in run("evaluate", three, "--data", reviews).mistake()
