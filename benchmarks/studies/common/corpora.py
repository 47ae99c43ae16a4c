"""What ``choose_layers.py`` and ``prune_heads.py`` read: models and their texts, by name."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

from benchmarks.assets import ensure
from hf_attn_ext._util.files import write_text
from hf_attn_ext.errors import AttnExtError, suggest
from hf_attn_ext.probe.corpus.corpus import read_corpus
from hf_attn_ext.probe.corpus.cutting import by_words, whole_texts

from .folders import make_folder
from .written_texts import write_samples

MAX_LENGTH = 128
# of each corpus: its model, files, words of a piece, what ends a segment (None: sentences), texts for the suggestion or
# the scores, and for the measurement of hybrids and of pruned models (None: it has neither segments nor sentences),
# texts a pass, and stage 1
CORPORA: dict[str, dict[str, Any]] = {
    "reviews": {
        "model": "minilm",
        "asset": "reviews",
        "file": "{}.csv",
        "words": None,
        "boundaries": None,
        "texts": 96,
        "test": 64,
        "pruned_test": 40,
        "size": 32,
        "batch": 16,
    },
    "speeches": {
        "model": "minilm",
        "asset": "sotu",
        "file": "{}.jsonl",
        "words": 90,
        "boundaries": None,
        "texts": 24,
        "test": 16,
        "pruned_test": 10,
        "size": 8,
        "batch": 3,
    },
    "reactions": {
        "model": "rxnfp",
        "asset": "rxnfp",
        "file": "{}.txt",
        "words": None,
        "boundaries": [".", ">>"],
        "texts": 48,
        "test": 40,
        "pruned_test": 40,
        "size": 8,
        "batch": 4,
    },
    "samples": {
        "model": "mgm",
        "asset": "mgm",
        "file": "{}.jsonl",
        "words": None,
        "boundaries": None,
        "texts": 48,
        "test": 40,
        "pruned_test": None,
        "size": 8,
        "batch": 4,
    },
}
WRITTEN = 1024  # samples that the language model writes
MODELS = tuple(dict.fromkeys(its["model"] for its in CORPORA.values()))


def add_options(parser: argparse.ArgumentParser, corpus: str) -> None:
    """``--model`` and ``--corpora``; ``corpus`` is MiniLM's default."""
    parser.add_argument("--model", default="minilm", help=f"of {', '.join(MODELS)}")
    known = "; ".join(f"{model}: {', '.join(_of(model))}" for model in MODELS)
    parser.add_argument("--corpora", help=f"with commas, of {known}; default: {corpus}, or all of another model's")


def corpora_of(model: str, text: str | None, default: str) -> list[str]:
    """Read ``--corpora``, names with commas; None is ``default``, or where that is another model's, all of ``model``.

    Raises:
        AttnExtError: an unknown model or corpus, or a corpus of another model.
    """
    if model not in MODELS:
        raise AttnExtError(f"unknown model {model!r}.{suggest(model, MODELS)} There are: {', '.join(MODELS)}")
    if text is None:
        return [default] if default in _of(model) else _of(model)
    names = text.split(",")
    for name in names:
        if name not in CORPORA:
            known = ", ".join(CORPORA)
            raise AttnExtError(f"unknown corpus {name!r}.{suggest(name, CORPORA)} There are: {known}")
        if name not in _of(model):
            raise AttnExtError(
                f"corpus {name!r} is not for --model {model}, which reads {', '.join(_of(model))}; give --model "
                f"{CORPORA[name]['model']}"
            )
    return names


def _of(model: str) -> list[str]:
    return [name for name, its in CORPORA.items() if its["model"] == model]


def texts_folder(corpus: str, out: Path) -> Path:
    """The folder of a corpus's train, validation and test files.

    Reactions come in one file: its first eight tenths, the next and the last one are written into ``out``. Samples are
    written by their model.
    """
    folder = ensure(CORPORA[corpus]["asset"])
    if corpus == "samples":
        return write_samples(folder, make_folder(out) / "samples", 0, WRITTEN)
    if corpus != "reactions":
        return folder
    lines = (folder / "reactions.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    ends = [0, 8 * len(lines) // 10, 9 * len(lines) // 10, len(lines)]
    splits = make_folder(out / "reactions")
    for split, start, end in zip(("train", "validation", "test"), ends, ends[1:], strict=False):
        path = splits / CORPORA[corpus]["file"].format(split)
        if not path.is_file():
            write_text(path, "".join(lines[start:end]))
    return splits


def read_texts(corpus: str, split: str, count: int, seed: int, out: Path) -> list[str]:
    """``count`` texts of a split, drawn by the seed."""
    its = CORPORA[corpus]
    path = texts_folder(corpus, out) / its["file"].format(split)
    cut = whole_texts if its["words"] is None else by_words(its["words"])
    return read_corpus([str(path)], cut=cut, limit=count, seed=seed).texts


def opened(corpus: str) -> tuple[Any, Any]:
    """The model of a corpus, to be evaluated, and its tokenizer."""
    logging.set_verbosity_error()  # an encoder leaves its checkpoint's head unread
    folder = ensure(CORPORA[corpus]["model"])
    return AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def limits(corpus: str) -> dict[str, Any]:
    """How the probe reads a corpus's texts."""
    return {"batch_size": CORPORA[corpus]["size"], "truncation": True, "max_length": MAX_LENGTH}
