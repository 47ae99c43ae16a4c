"""Read a :class:`DistillConfig` from a YAML file, with settings from the command line on top."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hf_attn_ext._util.yaml_files import apply_overrides, read_mapping

from .config import DistillConfig

__all__ = ["apply_overrides", "load_config"]


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> DistillConfig:
    """Read a YAML file into a :class:`DistillConfig`.

    Args:
        path: the file.
        overrides: settings such as ``"stage1.steps=10"`` that win over the file.

    Raises:
        AttnExtError: no such file, no valid YAML, an unknown or ill-typed field (named, nearest suggested).
    """
    return DistillConfig.from_dict(apply_overrides(read_mapping(path), overrides), where=str(path))
