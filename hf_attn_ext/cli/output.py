"""Output folders: never overwrite what is not ours, and appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hub.files import MODEL_FILES, TOKENIZER_FILES, WEIGHTS_PATTERNS, read_json

_OURS = (*MODEL_FILES, *TOKENIZER_FILES, *WEIGHTS_PATTERNS, "*_attn_ext.py", "attn_ext_*.py", "results.json")


def check_output(out: Path, force: bool) -> None:
    """Raise AttnExtError unless a model may be written to ``out``.

    A new or an empty folder may be written. A folder with a converted model in it, and nothing else, may be replaced
    with ``force``. Anything else is refused, ``force`` or not.
    """
    if not out.exists():
        return
    if not out.is_dir():
        raise AttnExtError(f"--out {str(out)!r} is a file; name a folder that does not exist yet")
    entries = sorted(out.iterdir())
    if not entries:
        return
    if not _is_converted(out):
        raise AttnExtError(
            f"--out {str(out)!r} holds something else ({entries[0].name!r}); name a folder that does not exist yet"
        )
    foreign = [entry.name for entry in entries if not any(entry.match(pattern) for pattern in _OURS)]
    if foreign:
        raise AttnExtError(f"--out {str(out)!r} holds a converted model and also {foreign[0]!r}; name another folder")
    if not force:
        raise AttnExtError(f"--out {str(out)!r} already holds a converted model; add --force to replace it")


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a folder beside ``out`` to write into; it takes the name ``out`` when the block ends without an error.

    What ``out`` held before stays until then, and comes back if the last step fails.
    """
    out = Path(os.path.abspath(out))
    out.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        content = work / "new"
        content.mkdir()
        yield content
        old = work / "old"
        if out.exists():
            os.replace(out, old)
        try:
            os.replace(content, out)
        except OSError:
            if old.exists():
                os.replace(old, out)
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _is_converted(folder: Path) -> bool:
    config = folder / "config.json"
    return config.is_file() and isinstance(read_json(config).get("attn_ext"), dict)
