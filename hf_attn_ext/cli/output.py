"""Output folders of commands: refuse to overwrite what the package did not write."""

from __future__ import annotations

from pathlib import Path

from hf_attn_ext._util.files import read_json_object
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hub.files import MODEL_FILES, TOKENIZER_FILES, WEIGHTS_PATTERNS

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


def _is_converted(folder: Path) -> bool:
    config = folder / "config.json"
    return config.is_file() and isinstance(read_json_object(config).get("attn_ext"), dict)
