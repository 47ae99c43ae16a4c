"""The probe's options: checked, and brought into one form."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Any

from ..errors import AttnExtError, suggest
from ..integration.capture import Layer

KEEPS = ("statistics", "matrices")
CONTROLS = ("cosine", "attention")
_SPECIAL = ("bos", "eos", "cls", "sep", "pad", "mask")


def choose_layers(there: list[Layer], chosen: Sequence[int | str] | int | str | None) -> list[Layer]:
    if chosen is None:
        return there
    wanted = [chosen] if isinstance(chosen, (int, str)) else list(chosen)
    found: dict[int, Layer] = {}
    for one in wanted:
        if isinstance(one, str):
            matches = [layer for layer in there if fnmatch.fnmatchcase(layer.name, one)]
        else:
            matches = [layer for layer in there if not isinstance(one, bool) and layer.index == one]
        if not matches:
            names = [layer.name for layer in there]
            raise AttnExtError(
                f"no layer matches {one!r}; there are layers 0 to {len(there) - 1}, {names[0]} to {names[-1]}."
                f"{suggest(one, names) if isinstance(one, str) else ''}"
            )
        found |= {layer.index: layer for layer in matches}
    if not found:
        raise AttnExtError(f"layers is empty; leave it out for all of 0 to {len(there) - 1}")
    return [found[index] for index in sorted(found)]


def choose_heads(layers: list[Layer], chosen: Sequence[int] | int | None) -> list[int]:
    count = min(layer.num_heads for layer in layers)
    if chosen is None:
        if any(layer.num_heads != count for layer in layers):
            numbers = ", ".join(str(layer.num_heads) for layer in layers)
            raise AttnExtError(f"the layers differ in their number of heads ({numbers}); choose layers or heads")
        return list(range(count))
    wanted = [chosen] if isinstance(chosen, int) else list(chosen)
    for one in wanted:
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < count:
            raise AttnExtError(f"no head {one!r}; there are heads 0 to {count - 1}")
    if not wanted:
        raise AttnExtError(f"heads is empty; leave it out for all of 0 to {count - 1}")
    return sorted(set(wanted))


def special_ids(tokenizer: Any) -> set[int]:
    """The ids that stand for no word; an unknown word is still a word."""
    return {getattr(tokenizer, f"{name}_token_id", None) for name in _SPECIAL} - {None}


def token_ids(tokenizer: Any, tokens: Sequence[str]) -> set[int]:
    """The ids of tokens, with a vocabulary's marks of a word's beginning or without."""
    known = tokenizer.get_vocab()
    return {known[mark + token] for token in tokens for mark in ("", "\u0120", "\u2581") if mark + token in known}


def words(given: Sequence[str] | str, options: Sequence[str], name: str) -> tuple[str, ...]:
    given = (given,) if isinstance(given, str) else tuple(given)
    for one in given:
        if one not in options:
            raise AttnExtError(f"{name} has {one!r};{suggest(one, options)} It takes {', '.join(options)}")
    return given


def percents_of(given: Sequence[float]) -> tuple[float, ...]:
    given = tuple(sorted(set(given)))
    if not given or any(not 0 < one <= 50 for one in given):
        raise AttnExtError(f"percents must be numbers above 0 and up to 50, got {given!r}")
    return given


def share(given: float) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= 1:
        raise AttnExtError(f"sample must be a share of the texts from 0 to 1, got {given!r}")
    return float(given)


def whole(given: int, least: int, name: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < least:
        raise AttnExtError(f"{name} must be a whole number of at least {least}, got {given!r}")
    return given
