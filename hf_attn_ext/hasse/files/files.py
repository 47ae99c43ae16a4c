"""Masks and families of tasks in files.

A mask: ``.npy`` and ``.csv`` hold the matrix; ``.pt`` the matrix or a dictionary; ``.json`` the rows, or an object:

    {"mask": [[1, 0], [1, 1]], "labels": {"0": 1}, "inputs": [["token", 0], ["token", 1]],
     "roles": ["token", "token"], "position_ids": [0, 1], "tokens": 2, "name": "causal", "names": ["w0", "w1"]}

of which only ``mask`` must be there; :func:`read_mask_file` says what the others mean.

A family of tasks, ``.json``: a list of tasks, or ``{"tasks": [...]}``. A task:

    {"inputs": [["the", 0], ["cat", 1]], "labels": {"1": ["sat", 2]}, "mask": "causal"}

``inputs`` are texts, numbers or lists of them, no two alike in one task; ``labels`` go by position; ``mask`` is rows of
0 and 1, or ``"causal"``, or ``"bidirectional"``, or ``{"groups": [1, 1, 2]}``: groups in a row, each seeing itself
whole and all before it. A label that is written like an input is that input's token, and must not be seen.
"""

from __future__ import annotations

import csv
import json
import pickle
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_attn_ext._util.files import as_path, atomic_write
from hf_attn_ext.errors import AttnExtError, short, suggest
from hf_attn_ext.hasse.inputs import is_input, token
from hf_attn_ext.hasse.order.reading import is_whole
from hf_attn_ext.hasse.order.serial import hashable, read_json, writable
from hf_attn_ext.hasse.order.values import check_hashable
from hf_attn_ext.hasse.spec import MaskSpec, check_spec
from hf_attn_ext.hasse.tasks.family import chain, groups
from hf_attn_ext.hasse.tasks.joint import JointTask
from hf_attn_ext.hasse.tasks.task import Task

MASK_SUFFIXES = (".npy", ".pt", ".json", ".csv")
_FIELDS = ("mask", "labels", "inputs", "roles", "position_ids", "tokens", "name", "names")
_TASK_FIELDS = ("inputs", "labels", "mask")
_WORDS = ("causal", "bidirectional")
_TRUTH = {"true": 1.0, "false": 0.0}


def read_mask_file(path: str | Path, labels: Mapping[int, int] | None = None) -> MaskSpec:
    """Read a mask.

    Args:
        path: see the top of this file; ``.pt`` files are read with ``weights_only=True``.
        labels: ``{position: token}``, in place of the file's.

    Raises:
        AttnExtError: a missing file, another ending, content that is no such mask, a label at a position that is not
            there.
    """
    path = _existing(path, MASK_SUFFIXES, "a mask")
    record = _READERS[path.suffix.lower()](path)
    record = dict(record) if isinstance(record, Mapping) else {"mask": record}
    _check_fields(path.name, record, _FIELDS, needed="mask")
    if labels is not None:
        record["labels"] = labels
    for field in ("labels", "inputs", "roles", "position_ids", "names"):
        if record.get(field) is None:
            record.pop(field, None)
    if "labels" in record:
        record["labels"] = _by_position(path.name, record["labels"])
        for position, label in record["labels"].items():
            if not is_whole(label):
                raise AttnExtError(
                    f"{path.name}: the label at position {position} must be a token's number, got {short(label)}"
                )
    for field, kind in (("inputs", object), ("roles", str), ("names", str), ("position_ids", int)):
        if field in record:
            record[field] = [hashable(value) for value in _listed(path.name, field, record[field])]
            if not all(isinstance(value, kind) and not isinstance(value, bool) for value in record[field]):
                raise AttnExtError(f"{path.name}: {field} must be {'texts' if kind is str else 'whole numbers'}")
    record = {field: value for field, value in record.items() if value is not None or field == "mask"}
    if not isinstance(record.get("name", ""), str) or not isinstance(record.get("tokens", 1), int):
        raise AttnExtError(f"{path.name}: name must be a text and tokens a whole number")
    return MaskSpec.from_mask(record.pop("mask"), **{"name": input_text(path.name), **record})


def write_mask_file(spec: MaskSpec, path: str | Path) -> None:
    """Write a mask beside, then rename: ``.npy``, ``.csv``: the matrix; ``.pt``, ``.json``: also what goes with it.

    Raises:
        AttnExtError: another ending, or a folder that does not exist.
    """
    path = as_path(path)
    check_spec(spec)
    if path.suffix.lower() not in MASK_SUFFIXES:
        raise AttnExtError(f"a mask is written to a file ending in {', '.join(MASK_SUFFIXES)}, got {path.name!r}")
    if not path.parent.is_dir():
        raise AttnExtError(f"the folder {str(path.parent)!r} does not exist; make it first")
    with atomic_write(path) as beside, beside.open("wb") as file:
        _WRITERS[path.suffix.lower()](spec, file)


def read_tasks_file(path: str | Path) -> list[Task]:
    """Read a family of tasks.

    Raises:
        AttnExtError: a missing file, another ending, or content that is no family of tasks; the message names the task.
    """
    path = _existing(path, (".json",), "a family of tasks")
    record = _read_json(path)
    if isinstance(record, dict):
        _check_fields(path.name, record, ("tasks",), needed="tasks")
        record = record["tasks"]
    if not isinstance(record, list) or not record:
        raise AttnExtError(f"{path.name} must hold a list of at least one task, or an object with 'tasks'")
    return [_task(f"{path.name}: task {number}", entry) for number, entry in enumerate(record)]


def spec_of_task(task: Task, name: str = "task") -> MaskSpec:
    """A task with inputs and labels of any kind as a spec that can be drawn and checked.

    Inputs and labels that are equal become one token; a label that no input equals is a token of its own. Position
    ids are those in the inputs where all are ``(token, position)``. Inputs as :mod:`.spec` writes them keep their
    meaning where all are written so, and labels are token numbers or ``("token", number)``.

    Raises:
        AttnExtError: no task, an unhashable label, or a joint task whose ``conflicts="keep"`` left a position several
            targets.

    Example:
        >>> spec = spec_of_task(Task(["a", "b"], {0: "b"}, [[1, 0], [1, 1]]))
        >>> spec.names, spec.labels
        (('a', 'b'), {0: 1})
    """
    if not isinstance(task, Task):
        raise AttnExtError(f"give a Task, got {short(task)}")
    labels = dict(task.labels)
    if isinstance(task, JointTask) and task.conflicts == "keep":
        for position, targets in labels.items():
            if len(targets) > 1:
                raise AttnExtError(
                    f"{name}: position {position} has {len(targets)} targets, a mask holds one a position"
                )
        labels = {position: target for position, (target,) in labels.items()}
    if all(map(is_input, task.inputs)):  # as masks write them, and so may labels be
        targets = {position: _number(label) for position, label in labels.items()}
        if all(is_whole(target) and target >= 0 for target in targets.values()):
            return MaskSpec.from_mask(task.mask, labels=targets, inputs=task.inputs, name=name)
    placed = all(isinstance(v, tuple) and len(v) == 2 and is_whole(v[1]) for v in task.inputs)
    numbers: dict[Any, int] = {}
    for position, label in labels.items():
        check_hashable(label, "label", position)
    for value in (*task.inputs, *labels.values()):
        numbers.setdefault(value, len(numbers))
    return MaskSpec.from_mask(
        task.mask,
        labels={position: numbers[label] for position, label in labels.items()},
        inputs=[("unknown", *value) if _is_mean(value) else token(numbers[value]) for value in task.inputs],
        position_ids=[value[1] for value in task.inputs] if placed else None,
        tokens=len(numbers),
        name=name,
        names=[input_text(value) for value in task.inputs],
    )


def _number(label: Any) -> Any:
    """The number in ``("token", number)``; any other label as it is."""
    return label[1] if is_input(label) and label[0] == "token" and len(label) == 2 else label


def _is_mean(value: Any) -> bool:
    """Whether an input is made of several tokens, which have no number where inputs of other kinds are numbered too."""
    return is_input(value) and value[0] == "mean"


def input_text(value: Any) -> str:
    """A short text for an input or a label: ``("sat", 2)`` is ``sat@2``; one line, never empty."""
    if isinstance(value, tuple):
        return "@".join(map(input_text, value)) or "()"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value)) or "''"


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
        raise AttnExtError(f"{path.name} is no array that numpy can read without pickle: {error}") from None


def _read_pt(path: Path) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what is wrong is said in one line below
            return torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError):
        raise AttnExtError(f"{path.name} is no file of torch.save with tensors and plain values alone") from None


def _read_json(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise AttnExtError(f"{path.name} is no JSON text: {error}") from None
    return read_json(text, path.name)


def _read_csv(path: Path) -> Any:
    try:
        rows = [row for row in csv.reader(path.read_text(encoding="utf-8-sig").splitlines(), strict=True) if row]
    except (csv.Error, UnicodeDecodeError) as error:
        raise AttnExtError(f"{path.name} is no CSV: {error}") from None
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
            raise AttnExtError(f"{name}: labels go by position, a whole number, got {short(key)}")
        position = int(key)
        if position in read:
            raise AttnExtError(f"{name}: position {position} has two labels")
        read[position] = label
    return read


def _listed(name: str, field: str, value: Any) -> list:
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
        sizes = mask.get("groups")
        whole = isinstance(sizes, list) and all(is_whole(part) and part >= 0 for part in sizes)
        if set(mask) != {"groups"} or not whole or sum(sizes) != size:
            raise AttnExtError(f"groups must be sizes that add up to {size} inputs, got {short(mask)}")
        return groups(sizes)
    return mask


def _record(spec: MaskSpec) -> dict[str, Any]:
    for position, entry in enumerate(spec.inputs):
        if not is_input(entry) and not writable(entry):
            raise AttnExtError(
                f"the input {short(entry)} at position {position} cannot be written; text, finite numbers, bool, None "
                "and tuples of these can, or write .npy or .csv, which hold the matrix alone"
            )
    return {
        "name": spec.title,
        "tokens": spec.tokens,
        "labels": {str(position): label for position, label in spec.labels.items()},
        "inputs": [[entry[0], *map(int, entry[1:])] if is_input(entry) else entry for entry in spec.inputs],
        "roles": list(spec.roles),
        "position_ids": spec.position_ids.tolist(),
        "names": list(spec.names),
    }


def _write_json(spec: MaskSpec, file: Any) -> None:
    fields = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in _record(spec).items()]
    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in spec.dense().int().tolist())
    file.write(("{" + ",\n".join([*fields, f'"mask": [\n{rows}\n]']) + "}\n").encode())


def _write_csv(spec: MaskSpec, file: Any) -> None:
    for rows in spec.chunks():
        file.write("".join(",".join(map(str, row)) + "\n" for row in rows.int().tolist()).encode())


_READERS: dict[str, Callable[[Path], Any]] = {
    ".npy": _read_npy,
    ".pt": _read_pt,
    ".json": _read_json,
    ".csv": _read_csv,
}
_WRITERS: dict[str, Callable[[MaskSpec, Any], None]] = {
    ".npy": lambda spec, file: np.save(file, spec.dense().numpy()),
    ".pt": lambda spec, file: torch.save({"mask": spec.dense(), **_record(spec)}, file),
    ".json": _write_json,
    ".csv": _write_csv,
}
