"""A tiny RoBERTa, a word-level tokenizer and generated texts: real enough to train on in a second."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, RobertaConfig, RobertaForSequenceClassification, RobertaModel

GOOD = ["good", "great", "fine", "lovely"]
BAD = ["bad", "awful", "poor", "dull"]
FILL = ["the", "film", "a", "plot", "is", "was", "and", "very", "not", "of", "it", "this"]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def save_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    vocabulary = {word: i for i, word in enumerate(SPECIAL + GOOD + BAD + FILL)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        cls_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        sep_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>",
        model_input_names=["input_ids", "attention_mask"],
    )
    fast.save_pretrained(folder)
    return fast


def host_config(**changes) -> RobertaConfig:
    values = {
        "vocab_size": len(SPECIAL + GOOD + BAD + FILL),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 40,
        "type_vocab_size": 1,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "initializer_range": 0.3,
    }
    return RobertaConfig(**{**values, **changes})


def save_model(folder: Path, head: bool = False, seed: int = 0, **changes) -> Path:
    """Write a tiny model with its tokenizer: with a (random) classifier, or bare."""
    torch.manual_seed(seed)
    kind = RobertaForSequenceClassification if head else RobertaModel
    kind(host_config(**changes)).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def sentence(generator: random.Random, positive: bool) -> str:
    words = generator.choices(FILL, k=generator.randint(3, 12)) + generator.choices(GOOD if positive else BAD, k=2)
    generator.shuffle(words)
    return " ".join(words)


def rows(count: int, seed: int = 0, regression: bool = False) -> list[dict]:
    generator = random.Random(seed)
    made = []
    for i in range(count):
        positive = generator.random() < 0.5
        label = (1.0 if positive else -1.0) + generator.random() if regression else ("bad", "good")[positive]
        made.append({"text": sentence(generator, positive), "label": label, "movie": f"m{i % 12}"})
    return made


def save_csv(path: Path, records: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(records[0]))
        writer.writeheader()
        writer.writerows(records)
    return path


def settings(root: Path, name: str = "run", **sections) -> dict:
    """Return a whole small configuration; sections update its fields."""
    values = {
        "model": {"name": str(root / "model")},
        "output": {"folder": str(root / name), "progress": False, "log_every": 2},
        "data": {
            "train": str(root / "train.csv"),
            "validation": str(root / "dev.csv"),
            "test": str(root / "test.csv"),
            "max_length": 16,
        },
        "kernel": {"kernel": "flexformer_p", "num_features": 4},
        "teacher": {"steps": 6, "batch_size": 8, "lr": 5e-3, "evaluate_every": 3},
        "stage1": {"steps": 6, "batch_size": 8, "lr": 1e-2, "evaluate_every": 3, "calibration_batches": 2},
        "stage2": {"steps": 6, "batch_size": 8, "lr": 2e-3, "evaluate_every": 3},
    }
    for section, value in sections.items():
        if isinstance(value, dict) and isinstance(values.get(section), dict):
            values[section] = {**values[section], **value}
        else:
            values[section] = value
    return values


def prepare(root: Path, regression: bool = False, **changes) -> Path:
    """Write model and data into ``root``."""
    save_model(root / "model", **changes)
    for i, (name, count) in enumerate((("train", 60), ("dev", 24), ("test", 30))):
        save_csv(root / f"{name}.csv", rows(count, seed=i, regression=regression))
    return root
