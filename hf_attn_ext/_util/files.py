"""Files that hold the old content or the new, never a part: written beside, then renamed."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from hf_attn_ext.errors import AttnExtError, short


def as_path(path: str | os.PathLike) -> Path:
    """Return a path as a Path.

    Raises:
        AttnExtError: it is none.
    """
    try:
        path = Path(path)
    except TypeError:
        raise AttnExtError(f"a path must be a text or a Path, got {short(path)}") from None
    if "\0" in str(path):
        raise AttnExtError(f"a path holds no zero byte, got {short(str(path))}")
    return path


@contextlib.contextmanager
def written_beside(path: str | Path) -> Iterator[Path]:
    """Give a file in the same folder to write to, which takes the name ``path`` at the end.

    After an error ``path`` is as it was, and nothing else is left.

    Raises:
        AttnExtError: the system refuses to write or to rename; the message names ``path``.

    Example:
        >>> with written_beside("scores.csv") as beside:  # doctest: +SKIP
        ...     numpy.savetxt(beside, scores)
    """
    path = as_path(path)
    # Short, for the name itself may be as long as one can be; another one for each process, thread and file.
    beside = path.with_name(f".hf-attn-ext-{uuid.uuid4().hex[:12]}.tmp")
    try:
        yield beside
        os.replace(beside, path)
    except OSError as error:
        raise AttnExtError(f"cannot write {str(path)!r}: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text in UTF-8 beside ``path``, then rename it.

    Raises:
        AttnExtError: the system refuses.
    """
    with written_beside(path) as beside:
        beside.write_text(text, encoding="utf-8")
