"""The folder of a resumable run: a marker file says which run it holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hf_attn_ext.errors import AttnExtError, short

from .files import TEMPORARY, read_json_object, sweep, write_json


def difference(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> tuple[str, Any, Any] | None:
    """Return ``(dotted field, old value, new value)`` of the first difference of two nested dictionaries, or None."""
    for key in {**old, **new}:
        name = f"{prefix}{key}"
        before, after = old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            deeper = difference(before, after, f"{name}.")
            if deeper:
                return deeper
        elif before != after:
            return name, before, after
    return None


def check_run_folder(
    root: Path,
    marker: str,
    identity: Mapping[str, Any],
    fixed: Callable[[dict[str, Any]], Mapping[str, Any]] = lambda content: content,
) -> None:
    """Check that a run may use its folder: it is new, empty, or holds the same run. Nothing is written.

    Args:
        root: the folder; it need not exist.
        marker: the name of the marker file.
        identity: JSON values; the content of the marker file.
        fixed: takes the content of a marker file and returns what must be equal to resume the run.

    Raises:
        AttnExtError: the folder is a file, holds something else or another run (the first difference is named), cannot
            be read, or has a damaged marker file.
    """
    if root.exists() and not root.is_dir():
        raise AttnExtError(f"output folder {str(root)!r} is a file; name a new folder")
    try:
        names = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    except OSError as error:
        raise AttnExtError(f"cannot read {str(root)!r}: {error.strerror or error}") from error
    others = [name for name in names if not name.startswith(TEMPORARY)]
    if marker not in others:
        if others:
            raise AttnExtError(
                f"output folder {str(root)!r} holds something else ({others[0]!r}); name a new or an empty folder"
            )
        return
    try:
        known = fixed(read_json_object(root / marker))
    except (KeyError, TypeError, AttributeError) as error:
        raise AttnExtError(f"{root / marker} is damaged ({error}); delete the folder to start again") from error
    change = difference(known, fixed(json.loads(json.dumps(identity))))
    if change:
        name, before, after = change
        raise AttnExtError(
            f"output folder {str(root)!r} holds a run with another setting: {name} was {short(before)}, is now "
            f"{short(after)}; name another folder, or delete this one"
        )


def claim_run_folder(root: Path, marker: str, identity: Mapping[str, Any]) -> None:
    """Make a checked folder this run's: write the marker file, and delete what a killed run left unfinished.

    Raises:
        AttnExtError: the folder cannot be written.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        sweep(root, recursive=True)
    except OSError as error:
        raise AttnExtError(f"cannot write {str(root)!r}: {error.strerror or error}") from error
    if not (root / marker).is_file():
        write_json(root / marker, identity)
