"""Read columns of csv, tsv, json, jsonl, txt and parquet files, row by row and without a cache."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TextIO

from hf_attn_ext.errors import AttnExtError, first_line, suggest

from .files import as_path

FORMATS = {".txt": "txt", ".jsonl": "json", ".json": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}
Row = tuple[str, Sequence[Any]]


class MissingColumnError(AttnExtError):
    """A table lacks a column; ``names`` are the columns that it has."""

    def __init__(self, table: str, column: str, names: Sequence[str]):
        super().__init__(f"{table} has no column {column!r}, only {', '.join(names)}.{suggest(column, names)}")
        self.names = names


def check_columns(columns: Sequence[str], names: Sequence[str], table: str) -> None:
    """Raise an AttnExtError if one of ``columns`` is missing from ``names`` or is there twice."""
    for column in columns:
        if column not in names:
            raise MissingColumnError(table, column, names)
        if names.count(column) > 1:
            raise AttnExtError(f"{table} has two columns {column!r}; rename one of them")


def read_columns(path: str | os.PathLike[str], columns: Sequence[str], whole: bool = False) -> Iterator[Row]:
    """Yield the rows of a file, with the values of some columns only.

    Args:
        path: a file that ends in one of :data:`FORMATS`. A json file holds an array of objects or, as jsonl, one object
            per line; a txt file has the column ``"text"``.
        columns: the names of the columns.
        whole: a txt file is a single text; by default each line is a text.

    Yields:
        Where the row begins, such as ``"line 3"``, and its values in the order of ``columns``. Cells of csv and tsv are
        texts, empty cells too; json and parquet keep their types.

    Raises:
        AttnExtError: the file is missing, empty or damaged, lacks a column or has it twice, or a row and the header
            differ in length. The message names the file and the line.

    Example:
        >>> list(read_columns("reviews.csv", ["label", "text"]))  # doctest: +SKIP
        [('line 2', ['good', 'A fine film.']), ('line 3', ['bad', 'Too long.'])]
    """
    path = as_path(path)
    if not path.is_file():
        problem = "is a folder; name the files in it" if path.is_dir() else "does not exist"
        raise AttnExtError(f"file {str(path)!r} {problem}")
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise AttnExtError(f"file {str(path)!r} must end in one of {', '.join(FORMATS)}")
    empty = True
    try:
        with path.open(encoding="utf-8-sig", newline="" if kind == "csv" else None) as file:
            for row in _READERS[kind](str(path), file, columns, whole):
                empty = False
                yield row
    except UnicodeDecodeError as error:
        raise AttnExtError(f"file {str(path)!r} is not UTF-8 text: {error.reason}") from error
    except OSError as error:
        raise AttnExtError(f"cannot read {str(path)!r}: {error.strerror or first_line(error)}") from error
    if empty:
        raise AttnExtError(f"file {str(path)!r} holds no text; name another file")


def _read_txt(path: str, file: TextIO, columns: Sequence[str], whole: bool) -> Iterator[Row]:
    check_columns(columns, ["text"], path)
    lines = filter(None, [file.read()]) if whole else (line.rstrip("\n") for line in file)
    yield from ((f"line {number}", [text] * len(columns)) for number, text in enumerate(lines, 1))


def _read_csv(path: str, file: TextIO, columns: Sequence[str], _: bool) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(file, delimiter="\t" if path.lower().endswith(".tsv") else ",", strict=True)
    header: list[str] = []
    line = 1  # where the row begins; reader.line_num is where it ends
    try:
        for row in reader:
            if row and not header:
                header = row
                check_columns([*columns, *header], header, path)
                picked = [header.index(column) for column in columns]
            elif row and len(row) != len(header):
                raise csv.Error(f"{len(row)} fields, but the header has {len(header)}")
            elif row:
                yield f"line {line}", [row[index] for index in picked]
            line = reader.line_num + 1
    except csv.Error as error:
        problem = "a quote is never closed" if "unexpected end" in str(error) else first_line(error)
        advice = "put fields with separators in quotes and double the quotes in them"
        raise AttnExtError(f"{path}, line {line}: {problem}; {advice}") from error


def _read_json(path: str, file: TextIO, columns: Sequence[str], _: bool) -> Iterator[Row]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        array = line.lstrip().startswith("[")
        text = line + file.read() if array else line
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            last = number + getattr(error, "lineno", 1) - 1
            raise AttnExtError(f"{path}, line {last} is no JSON: {getattr(error, 'msg', first_line(error))}") from None
        for index, record in enumerate(value if array else [value], 1):
            row = f"record {index}" if array else f"line {number}"
            if not isinstance(record, dict):
                raise AttnExtError(f"{path}, {row} must be a JSON object, got {type(record).__name__}")
            check_columns(columns, list(record), f"{path}, {row}")
            yield row, [record[column] for column in columns]


def _read_parquet(path: str, _: TextIO, columns: Sequence[str], __: bool) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(path)
        check_columns(columns, table.schema_arrow.names, path)
        batches = (batch.to_pydict() for batch in table.iter_batches(columns=list(columns)))
        rows = (row for batch in batches for row in zip(*(batch[column] for column in columns), strict=True))
        yield from ((f"row {number}", row) for number, row in enumerate(rows, 1))
    except pyarrow.ArrowException as error:
        raise AttnExtError(f"cannot read {path!r}: {first_line(error)}") from error


_READERS = {"txt": _read_txt, "csv": _read_csv, "json": _read_json, "parquet": _read_parquet}
