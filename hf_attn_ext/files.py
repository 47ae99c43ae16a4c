"""Files that hold the old content or the new, never a part: written beside, then renamed."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from .errors import AttnExtError


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
    path = Path(path)
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
