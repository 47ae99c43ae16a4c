"""Read masks and task families from files.

A mask: ``.npy`` and ``.csv`` hold the matrix; ``.pt`` the matrix or a dictionary; ``.json`` the rows, or an object:

    {"mask": [[1, 0], [1, 1]], "labels": {"0": 1}, "inputs": [["token", 0], ["token", 1]],
     "roles": ["token", "token"], "position_ids": [0, 1], "tokens": 2, "name": "causal", "names": ["w0", "w1"]}

Only ``mask`` is required; the other fields are those of :class:`.MaskSpec`.

A task family, ``.json``: a list of tasks, or ``{"tasks": [...]}``. A task:

    {"inputs": [["the", 0], ["cat", 1]], "labels": {"1": ["sat", 2]}, "mask": "causal"}

``inputs`` are texts, numbers or lists of them, all different within a task. ``labels`` map positions to labels.
``mask`` is rows of 0 and 1, ``"causal"``, ``"bidirectional"`` or ``{"groups": [1, 1, 2]}``: consecutive groups, each of
which sees itself and all groups before it. A label that equals an input is that input's token, and must not be seen.
"""

from __future__ import annotations

import csv
import pickle
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_attn_ext._util.files import as_path
from hf_attn_ext.errors import AttnExtError, short, suggest
from hf_attn_ext.hasse.inputs import input_text
from hf_attn_ext.hasse.order.reading import is_whole
from hf_attn_ext.hasse.order.serial import hashable, read_json
from hf_attn_ext.hasse.order.values import check_hashable
from hf_attn_ext.hasse.spec import MaskSpec
from hf_attn_ext.hasse.tasks.family import chain, groups
from hf_attn_ext.hasse.tasks.task import Task

MASK_SUFFIXES = (".npy", ".pt", ".json", ".csv")
_FIELDS = ("mask", "labels", "inputs", "roles", "position_ids", "tokens", "name", "names")
_LISTS = {"inputs": object, "roles": str, "names": str, "position_ids": int}
_TASK_FIELDS = ("inputs", "labels", "mask")
_WORDS = ("causal", "bidirectional")
_TRUTH = {"true": 1.0, "false": 0.0}


def read_mask_file(path: str | Path, labels: Mapping[int, int] | None = None) -> MaskSpec:
    """Read a mask from a file.

    Args:
        path: a file in a format of this module; ``.pt`` files are read with ``weights_only=True``.
        labels: ``{position: token}`` that replace those of the file.

    Raises:
        AttnExtError: a missing file, another ending, content that is not a mask, or a label out of range.
    """
    path = _existing(path, MASK_SUFFIXES, "a mask")
    content = _READERS[path.suffix.lower()](path)
    if isinstance(content, list) and any(isinstance(entry, Mapping) for entry in content):
        raise AttnExtError(f"{path.name} holds tasks, not a mask; use mask derive for it")
    record: dict[str, Any] = dict(content) if isinstance(content, Mapping) else {"mask": content}
    _check_fields(path.name, record, _FIELDS, needed="mask")
    if labels is not None:
        record["labels"] = labels
    record = {field: value for field, value in record.items() if value is not None or field == "mask"}
    if "labels" in record:
        record["labels"] = _token_labels(path.name, record["labels"])
    for field, kind in _LISTS.items():
        if field in record:
            record[field] = _typed_list(path.name, field, record[field], kind)
    if not isinstance(record.get("name", ""), str) or not isinstance(record.get("tokens", 1), int):
        raise AttnExtError(f"{path.name}: name must be a string and tokens a whole number")
    return MaskSpec.from_mask(record.pop("mask"), **{"name": input_text(path.name), **record})


def read_tasks_file(path: str | Path) -> list[Task]:
    """Read a task family from a file.

    Raises:
        AttnExtError: a missing file, another ending, or content that is not a task family; the message names the task.
    """
    path = _existing(path, (".json",), "a task family")
    record = _read_json(path)
    if isinstance(record, dict):
        _check_fields(path.name, record, ("tasks",), needed="tasks")
        record = record["tasks"]
    if not isinstance(record, list) or not record:
        raise AttnExtError(f"{path.name} must hold a list of at least one task, or an object with 'tasks'")
    return [_task(f"{path.name}: task {number}", entry) for number, entry in enumerate(record)]


def _existing(path: str | Path, suffixes: tuple[str, ...], what: str) -> Path:
    path = as_path(path)
    if path.suffix.lower() not in suffixes:
        raise AttnExtError(f"{what} is read from a file ending in {', '.join(suffixes)}, got {path.name!r}")
    if not path.is_file():
        raise AttnExtError(f"there is no file {str(path)!r}")
    return path


def _read_npy(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise AttnExtError(f"{path.name} is not an array that numpy can read without pickle: {error}") from None


def _read_pt(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the error below is one line
            return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError):
        raise AttnExtError(f"{path.name} is not a file of torch.save with only tensors and plain values") from None


def _read_json(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise AttnExtError(f"{path.name} is not JSON: {error}") from None
    return read_json(text, path.name)


def _read_csv(path: Path) -> Any:
    try:
        rows = [row for row in csv.reader(path.read_text(encoding="utf-8-sig").splitlines(), strict=True) if row]
    except (csv.Error, UnicodeDecodeError) as error:
        raise AttnExtError(f"{path.name} is not CSV: {error}") from None
    if not rows:
        raise AttnExtError(f"{path.name} is empty; it needs a row for each position")
    values = []
    for number, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise AttnExtError(f"{path.name}: row {number} has {len(row)} cells, row 0 has {len(rows[0])}")
        values.append([_cell(path.name, number, column, cell) for column, cell in enumerate(row)])
    return values


def _cell(name: str, row: int, column: int, cell: str) -> float:
    cell = cell.strip().lower()
    try:
        return _TRUTH[cell] if cell in _TRUTH else float(cell)
    except ValueError:
        raise AttnExtError(f"{name}: row {row}, column {column} is {cell!r}; a cell must be 0 or 1") from None


def _check_fields(name: str, record: Mapping[str, Any], known: tuple[str, ...], needed: str) -> None:
    for field in record:
        if field not in known:
            raise AttnExtError(f"{name}: unknown field {field!r}.{suggest(field, known)} Fields: {', '.join(known)}")
    if needed not in record:
        raise AttnExtError(f"{name} needs the field {needed!r}")


def _by_position(name: str, labels: Any) -> dict[int, Any]:
    if not isinstance(labels, Mapping):
        raise AttnExtError(f"{name}: labels must map positions to labels, got {short(labels)}")
    read: dict[int, Any] = {}
    for key, label in labels.items():
        whole = re.fullmatch("-?[0-9]{1,18}", key) if isinstance(key, str) else is_whole(key)
        if not whole:
            raise AttnExtError(f"{name}: labels are given by position, a whole number, got {short(key)}")
        position = int(key)
        if position in read:
            raise AttnExtError(f"{name}: position {position} has two labels")
        read[position] = label
    return read


def _token_labels(name: str, labels: Any) -> dict[int, Any]:
    read = _by_position(name, labels)
    for position, label in read.items():
        if not is_whole(label):
            raise AttnExtError(f"{name}: the label at position {position} must be a token's number, got {short(label)}")
    return read


def _typed_list(name: str, field: str, values: Any, kind: type) -> list[Any]:
    read = [hashable(value) for value in _listed(name, field, values)]
    if not all(isinstance(value, kind) and not isinstance(value, bool) for value in read):
        raise AttnExtError(f"{name}: {field} must be {'texts' if kind is str else 'whole numbers'}")
    return read


def _listed(name: str, field: str, value: Any) -> list[Any]:
    value = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(value, list | tuple):
        raise AttnExtError(f"{name}: {field} must be a list, got {short(value)}")
    return list(value)


def _task(name: str, record: Any) -> Task:
    if not isinstance(record, dict):
        raise AttnExtError(f"{name} must be an object with {', '.join(_TASK_FIELDS)}, got {short(record)}")
    for field in ("inputs", "mask"):
        _check_fields(name, record, _TASK_FIELDS, needed=field)
    inputs = [hashable(value) for value in _listed(name, "inputs", record["inputs"])]
    given = {} if record.get("labels") is None else record["labels"]
    labels = {position: hashable(label) for position, label in _by_position(name, given).items()}
    try:
        for position, label in labels.items():
            check_hashable(label, "label", position)
        return Task(inputs, labels, _task_mask(record["mask"], len(inputs)))
    except AttnExtError as error:
        raise AttnExtError(f"{name}: {error}") from None


def _task_mask(mask: Any, size: int) -> Any:
    if isinstance(mask, str):
        if mask not in _WORDS:
            raise AttnExtError(
                f"mask must be rows, 'causal' or 'bidirectional', got {short(mask)}.{suggest(mask, _WORDS)}"
            )
        return groups(chain(size) if mask == "causal" else [size])
    if isinstance(mask, dict):
        sizes: Any = mask.get("groups")
        whole = isinstance(sizes, list) and all(is_whole(part) and part >= 0 for part in sizes)
        if set(mask) != {"groups"} or not whole or sum(sizes) != size:
            raise AttnExtError(f"groups must be sizes that add up to {size} inputs, got {short(mask)}")
        return groups(sizes)
    return mask


_READERS: dict[str, Callable[[Path], Any]] = {
    ".npy": _read_npy,
    ".pt": _read_pt,
    ".json": _read_json,
    ".csv": _read_csv,
}
