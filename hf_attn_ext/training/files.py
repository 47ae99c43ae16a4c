"""Files that are whole or not there: everything is written beside and renamed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hf_attn_ext.errors import AttnExtError

_TEMPORARY = ".tmp-"


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{_TEMPORARY}{path.name}")
    beside.write_text(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(beside, path)


def read_json(path: Path) -> Any:
    """Read JSON; a broken file is an :class:`AttnExtError` that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise AttnExtError(f"file {str(path)!r} is damaged: {error}") from None


def temporary(path: Path) -> Path:
    """Return the name under which ``path`` is written before it is renamed."""
    return path.with_name(f"{_TEMPORARY}{path.name}")


def replace_folder(source: Path, target: Path) -> None:
    """Give the folder ``source`` the name ``target``; what was there goes away."""
    if target.exists():
        remove(target)
    os.replace(source, target)


def remove(path: Path) -> None:
    """Remove a folder so that it is never seen half-removed: renamed first, then deleted."""
    if not path.exists():
        return
    doomed = path.with_name(f"{_TEMPORARY}removed-{path.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    os.replace(path, doomed)
    shutil.rmtree(doomed)


def sweep(folder: Path) -> None:
    """Delete what a killed run left half-written directly in ``folder``."""
    if folder.is_dir():
        for entry in folder.glob(f"{_TEMPORARY}*"):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a folder to write into; it becomes ``target`` when the block ends without an error."""
    beside = temporary(target)
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    yield beside
    replace_folder(beside, target)
