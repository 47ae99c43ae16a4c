"""Results as JSON: arrays become lists, NaN and infinity in them become null."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from hf_attn_ext._util.files import write_text

FORMAT = 1
"""The version of the JSON form, which every result's JSON holds as ``format``."""


def plain(value: Any) -> Any:
    """Return ``value`` with its arrays as lists, at any depth of dictionaries and lists; NaN and infinity are None."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, np.ndarray):
        boxed = value.astype(object)
        boxed[~np.isfinite(value)] = None
        return boxed.tolist()
    return value


class JsonResult:
    """Base class of results that are written as JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return ``format`` and the fields as JSON values; NaN and infinity in arrays are None."""
        return {"format": FORMAT, **plain(vars(self))}

    def to_json(self, path: str | Path | None = None) -> str:
        """Return the result as JSON text, and write it atomically if ``path`` is given.

        Args:
            path: the file to write, or None.

        Raises:
            AttnExtError: the file cannot be written.

        Example:
            >>> result.to_json("result.json")  # doctest: +SKIP
        """
        text = json.dumps(self.to_dict(), allow_nan=False)
        if path is not None:
            write_text(path, text)
        return text
