"""Real checkpoints and real text, fetched once into the assets folder (see benchmarks/assets/)."""

import csv

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

from benchmarks.assets import ensure

logging.disable_progress_bar()


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/real" in item.path.as_posix():
            item.add_marker(pytest.mark.real)


@pytest.fixture(scope="session")
def sentences():
    """Review sentences of the held-out films, in the file's order."""
    with open(ensure("reviews") / "test.csv", newline="", encoding="utf-8") as file:
        return [row["text"] for row in csv.DictReader(file)]


@pytest.fixture(scope="session")
def tokenizer():
    return AutoTokenizer.from_pretrained(ensure("minilm"))


@pytest.fixture
def minilm():
    """MiniLM with a new regression head, in evaluation mode."""
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_pretrained(ensure("minilm"), num_labels=1).eval()


@pytest.fixture
def sapiens():
    """The antibody RoBERTa with its masked-language-model head, in evaluation mode."""
    return AutoModelForMaskedLM.from_pretrained(ensure("sapiens")).eval()


@pytest.fixture(scope="session")
def residues():
    return AutoTokenizer.from_pretrained(ensure("sapiens"))


@pytest.fixture
def batch(tokenizer, sentences):
    """Six sentences of very different lengths, padded on the right."""
    chosen = sorted(sentences[:120], key=len)[::20]
    return tokenizer(chosen, padding=True, truncation=True, max_length=64, return_tensors="pt")
