"""The texts of the runs as sequences of tokens."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from hf_attn_ext.errors import AttnExtError

SPLITS = ("train", "validation", "test")
FILES = {split: f"{split}.jsonl" for split in SPLITS}


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
        return [(name, getattr(self, name)) for name in SPLITS]


def load(folder: Path) -> Any:
    """The documents of a folder with train.jsonl and the like."""
    from hf_attn_ext.training import DataConfig
    from hf_attn_ext.training.data.loading import load_task_data

    return load_task_data(DataConfig(path=str(folder), task="language_modeling", **FILES))


def documents(folder: Path, tokenizer: Any, length: int, packing: bool, validation: int, test: int | None) -> Texts:
    """For decoders: one stream cut into sequences, or, without ``packing``, each text a sequence of its own."""
    from hf_attn_ext.training.data.encoding import encode_documents

    data = load(folder)
    splits = [encode_documents(getattr(data, name), tokenizer, length, packing) for name in SPLITS]
    return Texts(tokenizer, splits[0], some(splits[1], validation), some(splits[2], test))


def pieces(folder: Path, tokenizer: Any, length: int, validation: int, test: int | None) -> Texts:
    """For encoders: pieces of exactly ``length`` tokens, none of which reaches over the end of a text."""
    from hf_attn_ext.training.data.encoding import pack

    data = load(folder)
    splits = []
    for name in SPLITS:
        split = getattr(data, name)
        whole = dataclasses.replace(split, groups=list(range(len(split))))
        splits.append(pack(whole, tokenizer, length, where=name))
    return Texts(tokenizer, splits[0], some(splits[1], validation), some(splits[2], test))


def some(split: Any, most: int | None) -> Any:
    """At most so many sequences, spread over the whole split."""
    from hf_attn_ext.training.data.encoding import EncodedSplit

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
