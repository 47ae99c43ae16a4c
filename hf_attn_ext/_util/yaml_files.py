"""YAML files of settings, as people write them, with settings from the command line on top."""

from __future__ import annotations

import copy
import re
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from hf_attn_ext.errors import AttnExtError


class _Loader(yaml.SafeLoader):
    """YAML as people write it: ``1e-3`` is a number, and a field given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise AttnExtError(f"field {key!r} in line {key_node.start_mark.line + 1} is no name")
            if key in seen:
                raise AttnExtError(f"field {key!r} is given twice, again in line {key_node.start_mark.line + 1}")
            seen.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1 wants a dot and a signed exponent; without this, lr: 1e-3 would be the text "1e-3".
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def _parse(text: str, where: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        raise AttnExtError(f"{where} is not valid YAML{line}: {getattr(error, 'problem', error)}") from None
    except AttnExtError as error:
        raise AttnExtError(f"{where}: {error}") from None


def apply_overrides(mapping: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a copy of ``mapping`` with ``"stage1.steps=10"``-like settings written into it.

    The value is read as YAML. Names are checked later, where the mapping becomes a dataclass.

    Raises:
        AttnExtError: a setting without ``=``, or one that goes through a field that holds no section.
    """
    result = copy.deepcopy(dict(mapping))
    for setting in overrides:
        name, equals, text = setting.partition("=")
        parts = name.strip().split(".")
        if not equals or not all(parts):
            raise AttnExtError(f"--set needs section.field=value, got {setting!r}")
        target = result
        for part in parts[:-1]:
            if target.get(part) is None:
                target[part] = {}
            target = target[part]
            if not isinstance(target, dict):
                raise AttnExtError(f"--set {setting!r}: {part!r} is no section")
        target[parts[-1]] = _parse(text, f"--set {setting!r}")
    return result


def read_mapping(path: str | Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Raises:
        AttnExtError: no such file, no valid YAML, or something else in it.
    """
    path = Path(path)
    if not path.is_file():
        problem = "is a folder; name a YAML file" if path.is_dir() else "does not exist"
        raise AttnExtError(f"config file {str(path)!r} {problem}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise AttnExtError(f"config file {str(path)!r} is no UTF-8 text: {error}") from error
    mapping = _parse(text, str(path))
    if not isinstance(mapping, Mapping):
        raise AttnExtError(f"{path}: must be a mapping of sections, got {mapping!r}")
    return dict(mapping)
