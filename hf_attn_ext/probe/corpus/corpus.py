"""Read texts from files, cut long ones, draw some: every text knows the file and the place it came from."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hf_attn_ext.errors import AttnExtError, first_line, suggest

from .annotate import check_characters
from .cutting import Cut, by_tokens, whole_texts

FORMATS = (".txt", ".jsonl", ".csv", ".tsv", ".parquet")


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Texts in order.

    Attributes:
        texts: no blank ones.
        places: where each comes from, such as ``"speeches.jsonl, line 3"``.
        documents: a hash of what each was cut from, or of itself.
        files: the files, as they were named.
        blank: how many blank texts were left out, and of those that are cut to tokens, how many too short ones.
        drawn_from: how many there were before ``limit``.
        left: of texts that are cut to tokens, how many tokens were left at documents' ends, too few for a text.
    """

    texts: list[str]
    places: list[str]
    documents: list[str]
    files: list[str]
    blank: int
    drawn_from: int
    left: int = 0

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def document_count(self) -> int:
        """How many different documents the texts come from."""
        return len(set(self.documents))

    def digest(self) -> str:
        """A hash of all texts and their documents, in order."""
        digest = hashlib.blake2b(digest_size=16)
        for text, document in zip(self.texts, self.documents, strict=True):
            digest.update(text.encode("utf-8", "surrogatepass") + b"\0" + document.encode() + b"\0")
        return digest.hexdigest()


def read_corpus(
    files: list[str], column: str = "text", cut: Cut = whole_texts, limit: int | None = None, seed: int = 0
) -> Corpus:
    """Read files of texts.

    Args:
        files: .txt (a text a line), .jsonl, .csv, .tsv or .parquet.
        column: the field of the texts in formats that have fields.
        cut: what makes texts of each: :func:`.cutting.by_words`, :func:`.cutting.by_tokens`, or nothing.
        limit: draw so many, by ``seed``, in the files' order.

    Raises:
        AttnExtError: a file that is missing, empty, of another format or damaged, named with the line.
    """
    texts, places, documents, blank, left = [], [], [], 0, 0
    for name in files:
        before, solid = len(texts), False
        for place, text in _read(Path(name), column):
            if not isinstance(text, str):
                what = "is empty" if text is None else f"is {text!r}, not text"
                raise AttnExtError(f"{name}, {place}: {column!r} {what}")
            check_characters(text, f"{name}, {place}")
            pieces, rest = cut.with_rest(text) if isinstance(cut, by_tokens) else (cut(text), 0)
            left += rest
            blank += not pieces
            solid |= bool(text.strip())
            documents += [_digest(text)] * len(pieces)
            for number, piece in enumerate(pieces):
                texts.append(piece)
                places.append(f"{name}, {place}" + (f", part {number + 1}" if len(pieces) > 1 else ""))
        if len(texts) == before:
            what = "texts that are all too short" if solid else "no text"
            raise AttnExtError(f"file {name!r} holds {what}; name one that does")
    total = len(texts)
    if limit is not None and limit < total:
        kept = np.sort(np.random.default_rng([seed, 2]).permutation(total)[:limit])
        texts, places, documents = ([each[at] for at in kept] for each in (texts, places, documents))
    return Corpus(texts, places, documents, list(files), blank, total, left)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _read(path: Path, column: str) -> Iterator[tuple[str, Any]]:
    if not path.is_file():
        problem = "is a folder; name the files in it" if path.is_dir() else "does not exist"
        raise AttnExtError(f"text file {str(path)!r} {problem}")
    kind = path.suffix.lower()
    if kind not in FORMATS:
        raise AttnExtError(f"text file {str(path)!r} must end in one of {', '.join(FORMATS)}")
    try:
        if kind == ".parquet":
            yield from _read_parquet(path, column)
            return
        with path.open(encoding="utf-8-sig", newline="" if kind in (".csv", ".tsv") else None) as file:
            if kind == ".txt":
                yield from ((f"line {number}", line.rstrip("\n")) for number, line in enumerate(file, 1))
            elif kind == ".jsonl":
                yield from _read_jsonl(path, file, column)
            else:
                yield from _read_csv(path, file, column, "\t" if kind == ".tsv" else ",")
    except UnicodeDecodeError as error:
        raise AttnExtError(f"text file {str(path)!r} is not UTF-8 text: {error.reason}") from error
    except OSError as error:
        raise AttnExtError(f"cannot read {str(path)!r}: {error.strerror or error}") from error


def _read_jsonl(path: Path, file: Any, column: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise AttnExtError(f"{path}, line {number} is no JSON: {error.msg}") from None
        if not isinstance(record, dict) or column not in record:
            names = list(record) if isinstance(record, dict) else []
            raise AttnExtError(f"{path}, line {number} has no field {column!r}.{suggest(column, names)}")
        yield f"line {number}", record[column]


def _read_csv(path: Path, file: Any, column: str, separator: str) -> Iterator[tuple[str, Any]]:
    csv.field_size_limit(sys.maxsize)
    reader = csv.DictReader(file, delimiter=separator)
    try:
        names = reader.fieldnames or []
        if names and column not in names:
            raise AttnExtError(f"{path} has no column {column!r}, only {', '.join(names)}.{suggest(column, names)}")
        for record in reader:
            yield f"line {reader.line_num}", record[column]
    except csv.Error as error:
        raise AttnExtError(f"{path}, line {reader.line_num}: {error}") from error


def _read_parquet(path: Path, column: str) -> Iterator[tuple[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(path)
        names = table.schema_arrow.names
        if column not in names:
            raise AttnExtError(f"{path} has no column {column!r}, only {', '.join(names)}.{suggest(column, names)}")
        number = 0
        for batch in table.iter_batches(columns=[column]):
            for value in batch.column(0).to_pylist():
                number += 1
                yield f"row {number}", value
    except pyarrow.ArrowException as error:
        raise AttnExtError(f"cannot read {str(path)!r}: {first_line(error)}") from error
