"""Write masks to files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from hf_attn_ext._util.files import as_path, atomic_write
from hf_attn_ext.errors import AttnExtError, short
from hf_attn_ext.hasse.inputs import is_input
from hf_attn_ext.hasse.order.serial import writable
from hf_attn_ext.hasse.spec import MaskSpec, check_spec

MASK_SUFFIXES = (".npy", ".pt", ".json", ".csv")


def write_mask_file(spec: MaskSpec, path: str | Path) -> None:
    """Write a mask to a file, in one step.

    ``.npy`` and ``.csv`` hold the matrix; ``.pt`` and ``.json`` also labels, inputs, roles, position ids and names.

    Raises:
        AttnExtError: another ending, an input that cannot be written, or a folder that does not exist.
    """
    path = as_path(path)
    check_spec(spec)
    if path.suffix.lower() not in MASK_SUFFIXES:
        raise AttnExtError(f"a mask is written to a file ending in {', '.join(MASK_SUFFIXES)}, got {path.name!r}")
    if not path.parent.is_dir():
        raise AttnExtError(f"the folder {str(path.parent)!r} does not exist; make it first")
    with atomic_write(path) as temporary_path, temporary_path.open("wb") as file:
        _WRITERS[path.suffix.lower()](spec, file)


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
        "inputs": [_plain(entry) for entry in spec.inputs],
        "roles": list(spec.roles),
        "position_ids": spec.position_ids.tolist(),
        "names": list(spec.names),
    }


def _plain(entry: Any) -> Any:
    """Return an input with whole numbers of any library as ints."""
    return [entry[0], *map(int, entry[1:])] if is_input(entry) else entry


def _write_json(spec: MaskSpec, file: IO[bytes]) -> None:
    fields = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in _record(spec).items()]
    rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in spec.dense().int().tolist())
    file.write(("{" + ",\n".join([*fields, f'"mask": [\n{rows}\n]']) + "}\n").encode())


def _write_csv(spec: MaskSpec, file: IO[bytes]) -> None:
    for rows in spec.chunks():
        file.write("".join(",".join(map(str, row)) + "\n" for row in rows.int().tolist()).encode())


_WRITERS: dict[str, Callable[[MaskSpec, IO[bytes]], None]] = {
    ".npy": lambda spec, file: np.save(file, spec.dense().numpy()),
    ".pt": lambda spec, file: torch.save({"mask": spec.dense(), **_record(spec)}, file),
    ".json": _write_json,
    ".csv": _write_csv,
}
