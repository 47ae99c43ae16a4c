"""The registry of statistics: one name, one object of a :class:`.HeadStatistic`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from hf_attn_ext.errors import AttnExtError, short, suggest

from .base import HeadStatistic
from .findings import VERDICTS

_STATISTICS: dict[str, HeadStatistic] = {}

Kind = TypeVar("Kind", bound=type[HeadStatistic])


def register_statistic(name: str) -> Callable[[Kind], Kind]:
    """Class decorator that enters a :class:`.HeadStatistic` under ``name``.

    Probes that are made afterwards count it. A class of the same name as before takes its place, as when a cell of a
    notebook runs again.

    Args:
        name: the name in :func:`list_statistics`, lower case, words joined by underscores.

    Raises:
        AttnExtError: another kind of name, a name that another class has, or a class without title or description.

    Example:
        >>> @register_statistic("neighbours")  # doctest: +SKIP
        ... class Neighbours(PairStatistic):
        ...     title = "pairs of neighbours"
        ...     description = "share of high pairs that are neighbours"
        ...     def of_pair(self, pairs):
        ...         return pairs.distance == 1
    """
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise AttnExtError(f"statistic name {short(name)} must be lower case letters, digits and underscores")

    def enter(kind: Kind) -> Kind:
        if not (isinstance(kind, type) and issubclass(kind, HeadStatistic)):
            raise AttnExtError(f"statistic {name!r} must be a subclass of HeadStatistic, got {short(kind)}")
        for needed in ("title", "description"):
            if not hasattr(kind, needed):
                raise AttnExtError(f"statistic {name!r}: {kind.__name__} has no {needed}; give it one line")
        known = _STATISTICS.get(name)
        if known is not None and type(known).__qualname__ != kind.__qualname__:
            where = type(known).__module__
            raise AttnExtError(f"statistic {name!r} is already registered by {where}; choose another name")
        kind.name = name
        _STATISTICS[name] = kind()
        VERDICTS.update(kind.verdicts.values())
        return kind

    return enter


def list_statistics() -> list[str]:
    """Return the names of all registered statistics, in the order of results.

    Example:
        >>> list_statistics()[:2]
        ['within_sentence', 'repeated_tokens']
    """
    return list(_STATISTICS)


def statistic_named(name: str) -> HeadStatistic:
    """Return the registered statistic ``name``.

    Raises:
        AttnExtError: unknown name; the nearest is suggested.
    """
    if name not in _STATISTICS:
        near = suggest(name, _STATISTICS)
        raise AttnExtError(f"unknown statistic {short(name)}.{near} Import the module that registers it.")
    return _STATISTICS[name]
