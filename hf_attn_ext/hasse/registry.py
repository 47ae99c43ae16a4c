"""The registry of masks: names, the functions that make them, and what else is special about each.

A mask of your own, in one file; everything that is special about it is said there:

    from hf_attn_ext.hasse import MaskSpec
    from hf_attn_ext.hasse.masks import register_mask

    @register_mask("strided", example={"n": 8, "step": 2}, prefix_stable=True)
    def strided(n: int, step: int) -> MaskSpec:
        return MaskSpec.of_text(n, name="strided", form=lambda q, kv: (kv <= q) & ((q - kv) % step == 0), labels={})
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from hf_attn_ext.errors import AttnExtError, short, suggest
from hf_attn_ext.hasse.order.reading import is_whole

from .roles import Role, declare_roles
from .spec import MaskSpec

Options = ParamSpec("Options")
Value = TypeVar("Value")


@dataclasses.dataclass(frozen=True)
class MaskEntry:
    """A registered mask.

    Attributes:
        make: the function that makes it.
        example, prefix_stable, clipped, roles: as :func:`register_mask` takes them.
    """

    make: Callable[..., MaskSpec]
    example: Mapping[str, Any]
    prefix_stable: bool = False
    clipped: str | None = None
    roles: Mapping[str, Role] = dataclasses.field(default_factory=dict)

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The parameters of the function that makes the mask, by name."""
        return dict(inspect.signature(self.make).parameters)


_MASKS: dict[str, MaskEntry] = {}
_CACHES: list[Any] = []  # caches whose keys are names of masks
_MOST = 1 << 24  # tokens, or whatever an option counts: what a machine can list


def register_mask(
    name: str,
    example: Mapping[str, Any],
    *,
    prefix_stable: bool = False,
    clipped: str | None = None,
    roles: Mapping[str, Role] | None = None,
) -> Callable[[Callable[Options, MaskSpec]], Callable[Options, MaskSpec]]:
    """Decorator that registers a function which makes a :class:`MaskSpec` under ``name``.

    The function's parameters, their annotations and the Args of its docstring become the options of
    ``hf-attn-ext mask show``. A second function of the same name replaces the first, as when a notebook's cell runs
    again; models whose mask was set by this name then use the new function.

    Args:
        name: the name in :func:`list_masks`.
        example: options of a small one, for pictures and for the tests that run over every mask.
        prefix_stable: the mask of m tokens is the upper left part of every mask of more tokens. A cache can then grow,
            and one long mask serves shorter calls.
        clipped: an option, such as the width of a window, that counts at most n; a larger value is taken as n where the
            length of a call sets n.
        roles: ``{role: Role(letter, colour)}`` of the roles that the mask gives to positions, other than ``"token"``.

    Raises:
        AttnExtError: the name is taken by another function, ``clipped`` is not an option, or another mask declares a
            role differently.

    Example:
        >>> from hf_attn_ext.hasse.masks import mask_entry
        >>> mask_entry("sliding_window").clipped, mask_entry("sliding_window").prefix_stable
        ('w', True)
    """

    def register(make: Callable[Options, MaskSpec]) -> Callable[Options, MaskSpec]:
        known, signature = _MASKS.get(name), inspect.signature(make)
        if known is not None and known.make.__qualname__ != make.__qualname__:
            raise AttnExtError(f"mask {name!r} is already registered by {known.make.__module__}; choose another name")
        if clipped is not None and clipped not in signature.parameters:
            known_options = ", ".join(signature.parameters)
            raise AttnExtError(f"mask {name!r} has no option {clipped!r} to clip; its options: {known_options}")
        declare_roles(name, roles or {})

        @functools.wraps(make)
        def made(*arguments: Options.args, **options: Options.kwargs) -> MaskSpec:
            bound = signature.bind(*arguments, **options)
            bound.apply_defaults()
            return dataclasses.replace(make(*arguments, **options), name=name, options=dict(bound.arguments))

        _MASKS[name] = MaskEntry(made, dict(example), prefix_stable, clipped, dict(roles or {}))
        for cache in _CACHES:
            cache.cache_clear()
        return made

    return register


def kept_by_name(maxsize: int) -> Callable[[Callable[Options, Value]], Callable[Options, Value]]:
    """``functools.lru_cache`` for results that depend on masks by their names; cleared when a mask is registered."""

    def keep(compute: Callable[Options, Value]) -> Callable[Options, Value]:
        cached = functools.lru_cache(maxsize)(compute)
        _CACHES.append(cached)
        return cached  # type: ignore[return-value]  # lru_cache's type has no parameters

    return keep


def list_masks() -> list[str]:
    """Return the names of all registered masks, sorted."""
    return sorted(_MASKS)


def mask_entry(name: str) -> MaskEntry:
    """Return the entry of ``name``.

    Raises:
        AttnExtError: an unknown name; the nearest is suggested.
    """
    if not isinstance(name, str) or name not in _MASKS:
        raise AttnExtError(f"unknown mask {short(name)}.{suggest(name, _MASKS)} Known masks: {', '.join(list_masks())}")
    return _MASKS[name]


def make_mask(name: str, **options: Any) -> MaskSpec:
    """Build a mask by its name.

    Raises:
        AttnExtError: an unknown mask or option (the nearest is suggested), a missing option, or a value of an option
            that the mask refuses.

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
    """Return ``value`` as an int.

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
    """Return ``values``, a list, tuple, range, set, or 1-D tensor or array, as a list of ints.

    Raises:
        AttnExtError: another kind of value, or an entry that is not a whole number from ``least`` to ``most``.
    """
    if hasattr(values, "tolist"):
        values = values.tolist()
    if isinstance(values, set | frozenset):
        values = sorted(values) if all(map(is_whole, values)) else list(values)
    if not isinstance(values, list | tuple | range):
        raise AttnExtError(f"{mask}: {name} must be a list of whole numbers, got {short(values)}")
    return [whole_number(mask, f"{name}[{i}]", value, least, most) for i, value in enumerate(values)]
