"""Results as JSON: arrays as lists, what is not finite as null."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from hf_attn_ext._util.files import write_text


def plain(value: Any) -> Any:
    """``value`` with its arrays as lists, NaN and infinity in them as None; dictionaries and lists are followed."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray):
        return np.where(np.isfinite(value), value, None).tolist()
    return value


def json_text(content: dict[str, Any], path: str | Path | None = None) -> str:
    """The JSON text of ``content``; written to ``path``, beside and then renamed, where one is given.

    Raises:
        AttnExtError: the system refuses to write.
    """
    text = json.dumps(plain(content), allow_nan=False)
    if path is not None:
        write_text(path, text)
    return text
