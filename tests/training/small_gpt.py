"""A tiny GPT-2, a word-level tokenizer and documents with something far back to remember, made on the spot."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

NAMES = ["anna", "ben", "carl", "dora"]
FILL = ["said", "that", "the", "road", "was", "long", "and", "then", "went", "on", "again", "home"]
END = "<end>"


def save_tokenizer(folder: Path, **special: str) -> PreTrainedTokenizerFast:
    """Words; by default one token begins and ends a document, and there is none for padding, as for GPT-2."""
    special = special or {"eos_token": END, "bos_token": END}
    vocabulary = {word: i for i, word in enumerate(["<unk>", *dict.fromkeys(special.values()), *NAMES, *FILL])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = ["input_ids", "attention_mask"]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", model_input_names=names, **special)
    fast.save_pretrained(folder)
    return fast


def host_config(**changes) -> GPT2Config:
    values = {"vocab_size": 24, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 40, "initializer_range": 0.2}
    values |= {"bos_token_id": 1, "eos_token_id": 1, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2Config(**{**values, **changes})


def save_model(folder: Path, seed: int = 0, **changes) -> Path:
    torch.manual_seed(seed)
    GPT2LMHeadModel(host_config(**changes)).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def document(generator: random.Random) -> str:
    """One name as every third word, and words of two kinds between."""
    name, words = generator.choice(NAMES), []
    for _ in range(generator.randint(4, 7)):
        words += [name, generator.choice(FILL[:3]), generator.choice(FILL[3:6])]
    return " ".join(words)


def documents(count: int, seed: int = 0) -> list[dict]:
    generator = random.Random(seed)
    return [{"text": document(generator), "author": f"a{i % 6}"} for i in range(count)]


def save_jsonl(path: Path, records: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def prepare(root: Path, **changes) -> Path:
    """Write model and documents into ``root``."""
    save_model(root / "model", **changes)
    for seed, (name, count) in enumerate((("train", 160), ("dev", 16), ("test", 20))):
        save_jsonl(root / f"{name}.jsonl", documents(count, seed))
    return root


def settings(root: Path, name: str = "run", **sections) -> dict:
    """Return a whole small configuration; sections update its fields."""
    stage = {"steps": 4, "batch_size": 8, "evaluate_every": 2}
    values = {
        "model": {"name": str(root / "model")},
        "output": {"folder": str(root / name), "progress": False, "log_every": 2},
        "data": {
            "task": "language_modeling",
            "train": str(root / "train.jsonl"),
            "validation": str(root / "dev.jsonl"),
            "test": str(root / "test.jsonl"),
            "max_length": 24,
        },
        "kernel": {"kernel": "flexformer_p", "num_features": 4},
        "teacher": {**stage, "lr": 5e-3},
        "stage1": {**stage, "lr": 1e-2, "calibration_batches": 2},
        "stage2": {**stage, "lr": 2e-3},
    }
    for section, value in sections.items():
        if isinstance(value, dict) and isinstance(values.get(section), dict):
            values[section] = {**values[section], **value}
        else:
            values[section] = value
    return values
