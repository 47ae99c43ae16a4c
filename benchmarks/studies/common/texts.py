"""The texts of the studies: rows of the assets, and their splits as sequences of tokens."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.assets import ensure
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.training import DataConfig
from hf_attn_ext.training.data.encoding import EncodedSplit, encode_documents, pack
from hf_attn_ext.training.data.loading import load_task_data

SPLITS = ("train", "validation", "test")
FILES = {split: f"{split}.jsonl" for split in SPLITS}


def read_addresses(*splits: str) -> list[dict[str, Any]]:
    """Return the State of the Union addresses of some splits, with the fields text, address, year and president."""
    rows = []
    for split in splits:
        with open(ensure("sotu") / f"{split}.jsonl", encoding="utf-8") as file:
            rows += [json.loads(line) for line in file]
    return rows


def read_reviews(*splits: str) -> list[dict[str, str]]:
    """Return the review sentences of some splits, with the fields text, label and movie."""
    rows = []
    for split in splits:
        with open(ensure("reviews") / f"{split}.csv", newline="", encoding="utf-8") as file:
            rows += list(csv.DictReader(file))
    return rows


def by_film(rows: list[dict[str, str]]) -> dict[str, list[str]]:
    """Return the sentences about each film, in their order."""
    films: dict[str, list[str]] = {}
    for row in rows:
        films.setdefault(row["movie"], []).append(row["text"])
    return films


@dataclasses.dataclass
class Texts:
    """Three encoded splits, and the tokenizer that made them."""

    tokenizer: Any
    train: Any
    validation: Any
    test: Any

    def __str__(self) -> str:
        parts = (f"{name} {len(split):,} sequences of {split.lengths.sum():,} tokens" for name, split in self.named())
        return f"{len(self.tokenizer):,} words; {', '.join(parts)}"

    def named(self) -> list[tuple[str, Any]]:
        """Return the three splits with their names."""
        return [(name, getattr(self, name)) for name in SPLITS]


def load(folder: Path) -> Any:
    """The documents of a folder with train.jsonl and the like."""
    return load_task_data(DataConfig(path=str(folder), task="language_modeling", **FILES))


def documents(folder: Path, tokenizer: Any, length: int, packing: bool, validation: int, test: int | None) -> Texts:
    """For decoders: one stream cut into sequences, or, without ``packing``, each text a sequence of its own."""
    data = load(folder)
    splits = [encode_documents(getattr(data, name), tokenizer, length, packing) for name in SPLITS]
    return Texts(tokenizer, splits[0], some(splits[1], validation), some(splits[2], test))


def pieces(folder: Path, tokenizer: Any, length: int, validation: int, test: int | None) -> Texts:
    """For encoders: pieces of exactly ``length`` tokens, none of which reaches over the end of a text."""
    data = load(folder)
    splits = []
    for name in SPLITS:
        split = getattr(data, name)
        whole = dataclasses.replace(split, groups=list(range(len(split))))
        splits.append(pack(whole, tokenizer, length, where=name))
    return Texts(tokenizer, splits[0], some(splits[1], validation), some(splits[2], test))


def some(split: Any, most: int | None) -> Any:
    """At most so many sequences, spread over the whole split."""
    if most is None or most >= len(split):
        return split
    rows = np.linspace(0, len(split) - 1, most).round().astype(int)
    return EncodedSplit([split[row]["input_ids"] for row in rows], None, None)


def matrix(split: Any) -> np.ndarray:
    """Token ids (S, L), -1 behind the end of a sequence."""
    found = np.full((len(split), int(split.lengths.max())), -1)
    for row in range(len(split)):
        found[row, : split.lengths[row]] = split[row]["input_ids"]
    return found


def unigram_losses(texts: Texts, vocabulary: int) -> np.ndarray:
    """The control that sees nothing: -log of each test token's share in the training text, one added to each count.

    Returns:
        (S, L) nats, NaN behind the end of a sequence.
    """
    counts = np.bincount(texts.train.ids, minlength=vocabulary) + 1.0
    ids = matrix(texts.test)
    if ids.max() >= len(counts):
        raise AttnExtError(f"the texts have the token {ids.max()}, but the model knows {vocabulary}")
    return np.where(ids < 0, np.nan, -np.log(counts / counts.sum())[ids])
