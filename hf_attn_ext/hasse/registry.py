"""The table of masks: names to the functions that make them, and the one factory that builds by name.

A mask of your own, in one file:

    from hf_attn_ext.hasse.masks import register_mask
    from hf_attn_ext.hasse import MaskSpec

    @register_mask("strided", example={"n": 8, "step": 2})
    def strided(n, step):
        return MaskSpec.of_text(n, name="strided", form=lambda q, kv: (kv <= q) & ((q - kv) % step == 0), labels={})
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from hf_attn_ext.errors import AttnExtError, short, suggest
from hf_attn_ext.hasse.order.reading import is_whole

from .spec import MaskSpec

Maker = Callable[..., MaskSpec]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A mask in the table: the function that makes it, and options for a small one to look at."""

    make: Maker
    example: Mapping[str, Any]

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        return dict(inspect.signature(self.make).parameters)


_MASKS: dict[str, Entry] = {}
_KEPT: list[Any] = []  # what is kept of masks by their names
_MOST = 1 << 24  # tokens, or whatever an option counts: what a machine can list


def register_mask(name: str, example: Mapping[str, Any]) -> Callable[[Maker], Maker]:
    """Decorator that enters a function making a :class:`MaskSpec` under ``name``.

    A function of the same name as before takes its place, as when a notebook's cell runs again; models that have the
    mask by its name attend by the new one from then on.

    Args:
        name: the name in :func:`list_masks`.
        example: options that make a small one, for pictures and for the tests that run over every mask.

    Raises:
        AttnExtError: the name is taken by another function.
    """

    def enter(make: Maker) -> Maker:
        known = _MASKS.get(name)
        if known is not None and known.make.__qualname__ != make.__qualname__:
            raise AttnExtError(f"mask {name!r} is already registered by {known.make.__module__}; choose another name")

        @functools.wraps(make)
        def made(*arguments: Any, **options: Any) -> MaskSpec:
            bound = inspect.signature(make).bind(*arguments, **options)
            bound.apply_defaults()
            return dataclasses.replace(make(*arguments, **options), name=name, options=dict(bound.arguments))

        _MASKS[name] = Entry(made, dict(example))
        for kept in _KEPT:
            kept.cache_clear()
        return made

    return enter


def kept_by_name(maxsize: int) -> Callable[[Callable], Callable]:
    """``functools.lru_cache`` for what depends on masks by their names: forgotten when a name is entered anew."""

    def keep(compute: Callable) -> Callable:
        kept = functools.lru_cache(maxsize)(compute)
        _KEPT.append(kept)
        return kept

    return keep


def list_masks() -> list[str]:
    """Return the names of all registered masks, sorted."""
    return sorted(_MASKS)


def mask_entry(name: str) -> Entry:
    """Return the table's entry of ``name``.

    Raises:
        AttnExtError: unknown name; the nearest is suggested.
    """
    if not isinstance(name, str) or name not in _MASKS:
        raise AttnExtError(f"unknown mask {short(name)}.{suggest(name, _MASKS)} Known masks: {', '.join(list_masks())}")
    return _MASKS[name]


def make_mask(name: str, **options: Any) -> MaskSpec:
    """Build a mask by its name.

    Raises:
        AttnExtError: unknown mask or option (the nearest is suggested), a missing option, or an option's value that
            the mask refuses.

    Example:
        >>> make_mask("sliding_window", n=4, w=2).dense().int().tolist()
        [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    """
    entry = mask_entry(name)
    parameters = entry.options
    for option in options:
        if option not in parameters:
            near = suggest(option, parameters)
            raise AttnExtError(f"mask {name!r} has no option {option!r}.{near} Options: {', '.join(parameters)}")
    for option, parameter in parameters.items():
        if parameter.default is parameter.empty and option not in options:
            raise AttnExtError(f"mask {name!r} needs the option {option!r}, e.g. {entry.example.get(option)!r}")
    return entry.make(**options)


def whole_number(mask: str, name: str, value: Any, least: int, most: int | None = None) -> int:
    """``value`` as an int.

    Raises:
        AttnExtError: not a whole number, or not from ``least`` to ``most`` (2**24 where there is no ``most``).
    """
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
    if not is_whole(value) or value < least or (most is not None and value > most):
        raise AttnExtError(f"{mask}: {name} must be a whole number {bounds}, got {short(value)}")
    if value > _MOST:
        raise AttnExtError(f"{mask}: {name} must be at most {_MOST}, got {short(value)}")
    return int(value)


def whole_numbers(mask: str, name: str, values: Any, least: int, most: int | None = None) -> list[int]:
    """``values``, a list, tuple, range or 1-D tensor or array, as a list of ints.

    Raises:
        AttnExtError: no such sequence, or an entry that is not a whole number from ``least`` to ``most``.
    """
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, set | frozenset):
        values = sorted(values) if all(map(is_whole, values)) else list(values)
    if not isinstance(values, list | tuple | range):
        raise AttnExtError(f"{mask}: {name} must be a list of whole numbers, got {short(values)}")
    return [whole_number(mask, f"{name}[{i}]", value, least, most) for i, value in enumerate(values)]
