"""Settings: dataclasses from mappings, YAML files and ``--set`` overrides, with errors that name the field.

Written here because no library gives the same strictness in fewer lines: HfArgumentParser does not nest, OmegaConf
converts ``"3"`` to 3 and knows no ``Literal``, and pydantic's errors would have to be rewritten to one line with a
suggestion.
"""

from __future__ import annotations

import copy
import dataclasses
import re
import types
import typing
from collections.abc import Hashable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union

import yaml

from hf_attn_ext.errors import AttnExtError, suggest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def from_mapping(cls: type[T], mapping: object, where: str = "config", _path: str = "") -> T:
    """Build the dataclass ``cls`` from ``mapping``, checking every name and type.

    Nested dataclasses, ``Optional``, ``Literal``, ``list[...]``, ``tuple[...]`` and ``dict`` are followed. An integer
    is taken where a float is asked for; nothing else is converted.

    Args:
        cls: a dataclass type.
        mapping: a mapping of field names to values.
        where: what the mapping is, for the error message, such as ``"configs/distill/quick.yaml"``.

    Returns:
        An instance of ``cls``.

    Raises:
        AttnExtError: an unknown field (the nearest name is suggested), a value of the wrong type, or a missing field.

    Example:
        >>> @dataclasses.dataclass
        ... class Point:
        ...     x: int = 0
        >>> from_mapping(Point, {"x": 3})
        Point(x=3)
    """
    if not isinstance(mapping, Mapping):
        raise AttnExtError(f"{where}: {_path or 'the whole'} must be a mapping of fields, got {mapping!r}")
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    values = {}
    for name, value in mapping.items():
        dotted = f"{_path}.{name}" if _path else str(name)
        if name not in fields:
            known = f" Fields: {', '.join(fields)}"
            raise AttnExtError(f"{where}: unknown field {dotted!r}.{suggest(name, fields) or known}")
        values[name] = _checked(hints[name], value, where, dotted)
    for name, field in fields.items():
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and name not in values:
            raise AttnExtError(f"{where}: field {f'{_path}.{name}' if _path else name!r} is missing")
    return cls(**values)


def _checked(hint: Any, value: Any, where: str, dotted: str) -> Any:
    """Return ``value`` as the type ``hint`` asks for, or raise with the dotted field name."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        return _checked_union(args, value, where, dotted, hint)
    if origin is Literal:
        return _checked_literal(args, value, where, dotted)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if isinstance(value, hint):
            return value
        from_saved = getattr(hint, "from_saved", None)  # of a dataclass that was saved under other names before
        return from_mapping(hint, from_saved(value, where) if from_saved else value, where, dotted)
    if origin in (list, tuple) and isinstance(value, (list, tuple)):
        item = args[0] if args else Any
        return origin([_checked(item, entry, where, f"{dotted}[{i}]") for i, entry in enumerate(value)])
    if dict in (origin, hint) and isinstance(value, Mapping):
        key_type, value_type = args or (Any, Any)
        return {
            _checked(key_type, key, where, dotted): _checked(value_type, entry, where, f"{dotted}.{key}")
            for key, entry in value.items()
        }
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if origin is None and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise _ill_typed(hint, value, where, dotted)


def _checked_literal(args: tuple[Any, ...], value: Any, where: str, dotted: str) -> Any:
    if value is False and "no" in args:
        return "no"  # YAML reads an unquoted no as false
    if value in args and type(value) in {type(arg) for arg in args}:
        return value
    allowed = ", ".join(repr(arg) for arg in args)
    nearest = suggest(value, [arg for arg in args if isinstance(arg, str)])
    raise AttnExtError(f"{where}: field {dotted!r} must be one of {allowed}, got {value!r}.{nearest}")


def _checked_union(args: tuple[Any, ...], value: Any, where: str, dotted: str, hint: Any) -> Any:
    if value is None and type(None) in args:
        return None
    options = [arg for arg in args if arg is not type(None)]
    if len(options) == 1:
        return _checked(options[0], value, where, dotted)
    for option in options:
        try:
            return _checked(option, value, where, dotted)
        except AttnExtError:
            continue
    raise _ill_typed(hint, value, where, dotted)


def _ill_typed(hint: Any, value: Any, where: str, dotted: str) -> AttnExtError:
    name = str(getattr(hint, "__name__", None)) if typing.get_origin(hint) is None else str(hint)
    expected = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}.get(name, name)
    extra = ""
    if hint is float and isinstance(value, str):
        extra = " (YAML reads 1e-3 as text: write 1.0e-3)"
    return AttnExtError(f"{where}: field {dotted!r} must be {expected}, got {value!r}{extra}")


class _Loader(yaml.SafeLoader):
    """YAML as people write it: ``1e-3`` is a number, and a field given twice is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise AttnExtError(f"field {key!r} in line {key_node.start_mark.line + 1} is not a name")
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


def apply_overrides(
    mapping: Mapping[str, Any], overrides: Iterable[str], flag: str = "--set", form: str = "section.field=value"
) -> dict[str, Any]:
    """Return a copy of ``mapping`` with ``"stage1.steps=10"``-like settings written into it.

    The value is read as YAML. Names are checked later, where the mapping becomes a dataclass.

    Raises:
        AttnExtError: a setting without ``=``, or one that goes through a field that is not a section.
    """
    result = copy.deepcopy(dict(mapping))
    for setting in overrides:
        name, equals, text = setting.partition("=")
        parts = name.strip().split(".")
        if not equals or not all(parts):
            raise AttnExtError(f"{flag} needs {form}, got {setting!r}")
        target = result
        for part in parts[:-1]:
            if target.get(part) is None:
                target[part] = {}
            target = target[part]
            if not isinstance(target, dict):
                raise AttnExtError(f"{flag} {setting!r}: {part!r} is not a section")
        target[parts[-1]] = _parse(text, f"{flag} {setting!r}")
    return result


def read_mapping(path: str | Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Raises:
        AttnExtError: no such file, not valid YAML, or the file does not hold a mapping.
    """
    path = Path(path)
    if not path.is_file():
        problem = "is a folder; name a YAML file" if path.is_dir() else "does not exist"
        raise AttnExtError(f"config file {str(path)!r} {problem}")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise AttnExtError(f"config file {str(path)!r} is not UTF-8 text: {error}") from error
    mapping = _parse(text, str(path))
    if not isinstance(mapping, Mapping):
        raise AttnExtError(f"{path}: must be a mapping of sections, got {mapping!r}")
    return dict(mapping)


def load_settings(
    cls: type[T],
    path: str | Path | None = None,
    overrides: Iterable[str] = (),
    given: Mapping[str, Any] | None = None,
    where: str = "config",
) -> T:
    """Build the dataclass ``cls`` from a YAML file, overrides and single fields; later ones win.

    Args:
        cls: a dataclass type.
        path: the YAML file; None starts with the defaults.
        overrides: settings such as ``"stage1.steps=10"``.
        given: fields of ``cls``.
        where: named in errors where there is no file.

    Raises:
        AttnExtError: no such file, not valid YAML, an unknown field (the nearest name is suggested), a value of the
            wrong type, or a missing field.
    """
    mapping = apply_overrides({} if path is None else read_mapping(path), overrides)
    return from_mapping(cls, {**mapping, **(given or {})}, where if path is None else str(path))
