"""The texts of ``long_texts.py``: long addresses, short review sentences, and what stage 1 learns from."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies.common.texts import by_film, read_addresses, read_reviews
from hf_attn_ext.errors import AttnExtError

SHORTEST = 32  # tokens of a text in stage 1
SENTENCE = 25  # tokens of a review sentence, about


def some_reviews(split: str, count: int) -> list[dict[str, str]]:
    """Return ``count`` review sentences of a split, drawn."""
    rows = read_reviews(split)
    return [rows[i] for i in np.random.default_rng(0).permutation(len(rows))[:count]]


def long_documents(tokenizer: Any, longest: int, limit: int | None) -> tuple[list[list[int]], np.ndarray, np.ndarray]:
    """Addresses of at least ``longest`` tokens: token ids, years, presidents; at most ``limit``, drawn.

    Raises:
        AttnExtError: they are by fewer than three presidents.
    """
    addresses = read_addresses("train", "test")  # the split named validation is for stage 1
    ids = tokenizer([row["text"] for row in addresses], add_special_tokens=False, verbose=False)["input_ids"]
    chosen = [i for i, row in enumerate(ids) if len(row) >= longest]
    if limit is not None:
        chosen = sorted(np.random.default_rng(0).permutation(chosen)[:limit].tolist())
    years = np.array([addresses[i]["year"] for i in chosen], dtype=np.float64)
    presidents = np.array([addresses[i]["president"] for i in chosen])
    authors = len(np.unique(presidents))
    if authors < 3:
        raise AttnExtError(
            f"{len(chosen)} addresses of {longest} tokens or more, by {authors} presidents, are too few: give more "
            "--documents or a smaller --longest"
        )
    return [ids[i] for i in chosen], years, presidents


def write_stage1(folder: Path, tokenizer: Any, count: int, window: int, longest: int) -> None:
    """Write ``train.csv``, ``count`` texts of up to ``longest`` tokens, and a ``validation.csv``, up to ``window``.

    Lengths are spread evenly on a logarithmic scale, so that short texts count as much as long ones. Half of what fits
    into a window are sentences about one film; the rest are pieces of addresses that no task uses.
    """
    addresses = [row["text"] for row in read_addresses("validation")]
    spans = tokenizer(addresses, return_offsets_mapping=True, add_special_tokens=False, verbose=False)["offset_mapping"]
    for split, rows, top in (("train", count, longest), ("validation", 12, window)):
        films = by_film(read_reviews(split))
        names, generator = list(films), np.random.default_rng([4, len(films)])
        with open(folder / f"{split}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            for _ in range(rows):
                length = int(np.exp(generator.uniform(np.log(min(SHORTEST, top)), np.log(top))))
                if length <= window and generator.random() < 0.5:
                    sentences = films[names[generator.integers(len(names))]]
                    order = generator.permutation(len(sentences))[: max(1, length // SENTENCE)]
                    text = " ".join(sentences[i] for i in order)
                else:
                    which = int(generator.integers(len(addresses)))
                    first = int(generator.integers(max(1, len(spans[which]) - length)))
                    piece = spans[which][first : first + length]
                    text = addresses[which][piece[0][0] : piece[-1][1]]
                writer.writerow([text, 0.0])
