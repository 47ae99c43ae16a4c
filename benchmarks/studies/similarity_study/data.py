"""What ``similarity_study.py`` reads: models and their documents, by name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from benchmarks.assets import ensure
from benchmarks.studies.common.texts import SPLITS, by_film, read_addresses, read_reviews


@dataclasses.dataclass(frozen=True)
class Source:
    """A model and its texts.

    Attributes:
        name: for folders and marks.
        title: of the model, for people.
        model: its folder or hub id.
        files: of documents; None for the English ones, which are written into the run's folder.
        texts: what the texts are, in words.
        sentence: what takes a sentence's place.
        settings: of the probe, where they differ from the defaults.
    """

    name: str
    title: str
    model: str
    files: list[str] | None
    texts: str
    sentence: str
    settings: dict[str, Any]


def source_of(model: str, files: list[str] | None, tokens: int) -> Source:
    """``minilm`` or any other model on the English texts, or ``rxnfp`` on reactions."""
    if model == "rxnfp":
        folder, ends = ensure("rxnfp"), [".", ">>"]
        what = f"{', '.join(files) if files else 'reactions of US patents'}, one per text, cut at {tokens} tokens"
        settings = {"max_length": tokens, "truncation": True, "boundaries": ends, "separators": ends}
        molecule = 'molecule: what ends with "." or ">>"'
        return Source("rxnfp", "rxnfp", str(folder), files or [str(folder / "reactions.txt")], what, molecule, settings)
    name = Path(model).name.lower()
    folder = str(ensure("minilm")) if model == "minilm" else model
    what = ", ".join(files) if files else "State of the Union addresses, and film reviews joined by film"
    title = "MiniLM" if model == "minilm" else model
    return Source(name, title, folder, files, f"{what}, cut to exactly {tokens} tokens", "sentence", {"tokens": tokens})


def english() -> str:
    """Return the addresses one by one, and the review sentences of each film one after another, as JSON lines."""
    documents = [{"text": row["text"], "from": "sotu"} for row in read_addresses(*SPLITS)]
    films = by_film(read_reviews(*SPLITS))
    documents += [{"text": " ".join(sentences), "from": "reviews"} for sentences in films.values()]
    return "".join(json.dumps(document, ensure_ascii=False) + "\n" for document in documents)
