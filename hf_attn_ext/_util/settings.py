"""Turn plain mappings (YAML, JSON, command line) into dataclasses, with errors that name the field.

Used by :class:`hf_attn_ext.AttnExtConfig` and by every configuration file of the package.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union

from hf_attn_ext.errors import AttnExtError, suggest

T = TypeVar("T")


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
            raise AttnExtError(f"{where}: unknown field {dotted!r}.{suggest(name, fields)}")
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
        if value is False and "no" in args:
            return "no"  # YAML reads an unquoted no as false
        if value in args and type(value) in {type(arg) for arg in args}:
            return value
        allowed = ", ".join(repr(arg) for arg in args)
        hint_text = suggest(value, [arg for arg in args if isinstance(arg, str)])
        raise AttnExtError(f"{where}: field {dotted!r} must be one of {allowed}, got {value!r}.{hint_text}")
    if dataclasses.is_dataclass(hint):
        if isinstance(value, hint):
            return value
        from_saved = getattr(hint, "from_saved", None)  # of a dataclass that was saved under other names before
        return from_mapping(hint, from_saved(value, where) if from_saved else value, where, dotted)
    if origin in (list, tuple):
        if not isinstance(value, (list, tuple)):
            raise _ill_typed(hint, value, where, dotted)
        item = args[0] if args else Any
        items = [_checked(item, entry, where, f"{dotted}[{i}]") for i, entry in enumerate(value)]
        return origin(items)
    if origin is dict or hint is dict:
        if not isinstance(value, Mapping):
            raise _ill_typed(hint, value, where, dotted)
        key_type, value_type = args or (Any, Any)
        return {
            _checked(key_type, key, where, dotted): _checked(value_type, entry, where, f"{dotted}.{key}")
            for key, entry in value.items()
        }
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise _ill_typed(hint, value, where, dotted)
    return value


def _checked_union(args: tuple, value: Any, where: str, dotted: str, hint: Any) -> Any:
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
    name = getattr(hint, "__name__", None) if typing.get_origin(hint) is None else str(hint)
    expected = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}.get(
        name, str(name)
    )
    extra = ""
    if hint is float and isinstance(value, str):
        extra = " (YAML reads 1e-3 as text: write 1.0e-3)"
    return AttnExtError(f"{where}: field {dotted!r} must be {expected}, got {value!r}{extra}")
