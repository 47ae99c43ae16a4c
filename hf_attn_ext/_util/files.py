"""Atomic files and folders: each holds its old or its new content, never a part. Also JSON files and digests."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hf_attn_ext.errors import AttnExtError, short

TEMPORARY = ".hf-attn-ext-"
"""Prefix of the names of unfinished files and folders."""


def as_path(path: str | os.PathLike[str]) -> Path:
    """Return a path as a Path.

    Raises:
        AttnExtError: ``path`` is neither a string nor a Path, or contains a zero byte.
    """
    try:
        path = Path(path)
    except TypeError:
        raise AttnExtError(f"a path must be a string or a Path, got {short(path)}") from None
    if "\0" in str(path):
        raise AttnExtError(f"a path must not contain a zero byte, got {short(str(path))}")
    return path


def temporary_path(path: Path, name: str | None = None) -> Path:
    """Return a path in the folder of ``path`` to write to before the result is renamed to ``path``.

    Args:
        path: the final path.
        name: makes the temporary path the same in every process; by default it is unique.
    """
    # Short, because the final name may already have the greatest length that the file system allows.
    return path.with_name(f"{TEMPORARY}{name or uuid.uuid4().hex[:12]}.tmp")


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the same folder, which is renamed to ``path`` at the end.

    After an error ``path`` is unchanged and the temporary file is removed.

    Raises:
        AttnExtError: the system cannot write or rename the file; the message names ``path``.

    Example:
        >>> with atomic_write("scores.csv") as temporary:  # doctest: +SKIP
        ...     numpy.savetxt(temporary, scores)
    """
    path = as_path(path)
    temporary = temporary_path(path)
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise AttnExtError(f"cannot write {str(path)!r}: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write a text in UTF-8 atomically.

    Raises:
        AttnExtError: the system cannot write the file.
    """
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike[str], value: Any, indent: int | None = 2, sort_keys: bool = False) -> None:
    """Write ``value`` as JSON in UTF-8 atomically, and make its folder where it is missing.

    Raises:
        AttnExtError: the system cannot write the file.
        ValueError: ``value`` contains NaN or infinity.
    """
    path = as_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AttnExtError(f"cannot write {str(path)!r}: {error.strerror or error}") from None
    write_text(path, json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False, sort_keys=sort_keys) + "\n")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read a JSON file.

    Raises:
        AttnExtError: the file is missing, cannot be read, or is not JSON; the message names ``path``.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AttnExtError(f"{path} is missing") from None
    except OSError as error:
        raise AttnExtError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise AttnExtError(f"{path} is damaged: not valid JSON (truncated or edited?): {error}") from error


def read_json_object(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        AttnExtError: as :func:`read_json`, or the file holds something else.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise AttnExtError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def sha256(path: str | os.PathLike[str]) -> str:
    """Return the hexadecimal SHA-256 digest of a file, read in blocks."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def new_folder(target: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to ``target`` when the block ends without an error.

    An existing ``target`` stays until then, and comes back if the renaming fails.
    """
    target = Path(os.path.abspath(target))
    temporary = temporary_path(target)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        replace_folder(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def replace_folder(source: Path, target: Path) -> None:
    """Rename the folder ``source`` to ``target`` and delete the previous ``target``."""
    previous = temporary_path(target)
    if target.exists():
        os.replace(target, previous)
    try:
        os.replace(source, target)
    except OSError:
        if previous.exists():
            os.replace(previous, target)
        raise
    shutil.rmtree(previous, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Delete a folder if it exists. It is renamed first, so that a half-deleted folder never has its name."""
    if path.exists():
        doomed = temporary_path(path, f"removed-{uuid.uuid4().hex[:12]}")
        os.replace(path, doomed)
        shutil.rmtree(doomed)


def sweep(folder: Path, recursive: bool = False) -> None:
    """Delete the unfinished files and folders that a killed run left directly in ``folder``, or anywhere below it."""
    for entry in list((folder.rglob if recursive else folder.glob)(f"{TEMPORARY}*")):
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
