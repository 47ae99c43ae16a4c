"""Run folders: the settings that all runs of a folder share, so that a stopped study continues with the same ones."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from hf_attn_ext._util.files import atomic_write, read_json, remove_folder, write_json
from hf_attn_ext.errors import AttnExtError


def settings_of(options: argparse.Namespace, chosen: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return all options but ``--out``, ``--seeds`` and ``chosen``, which only say which runs are made and where."""
    return {name: value for name, value in vars(options).items() if name not in (*chosen, "out", "seeds")}


def claim(folder: Path, settings: dict[str, Any]) -> None:
    """Write ``settings.json``; raise AttnExtError where the folder's runs had others, or nothing can be written."""
    path = folder / "settings.json"
    known = read_json(path) if path.is_file() else settings
    for field in {**known, **settings}:
        if known.get(field) != settings.get(field):
            raise AttnExtError(
                f"{folder} holds a run with another {field}: {known.get(field)!r}, not {settings.get(field)!r}; "
                "choose another --out"
            )
    make_folder(folder)
    write_json(path, settings)


def make_folder(path: Path) -> Path:
    """Make the folder ``path`` where it is missing; raise AttnExtError where the system refuses."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AttnExtError(f"cannot write into --out, {str(path)!r}: {error.strerror or error}") from None
    return path


def picture_folder(path: Path) -> Path:
    """Make the folder ``path`` for pictures; raise AttnExtError where there is a file of that name."""
    if path.exists() and not path.is_dir():
        raise AttnExtError(f"--out {str(path)!r} is a file; name a folder")
    return make_folder(path)


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open ``path`` for bytes; the file appears when it is written completely."""
    with atomic_write(path) as temporary_path, open(temporary_path, "wb") as file:
        yield file


def save_array(path: Path, array: np.ndarray) -> None:
    """Write one array as ``.npy``."""
    with whole_file(path) as file:
        np.save(file, array)


def tidy(folder: Path) -> None:
    """Delete the checkpoints of a finished run."""
    remove_folder(folder / "checkpoints")
