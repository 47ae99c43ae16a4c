"""Checks of inputs and labels: they are compared, so each must equal itself and no value of another kind."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from hf_attn_ext.errors import AttnExtError, short

from .reading import is_whole, read_list

_CONTAINERS = (tuple, list, set, frozenset, Mapping)


def read_inputs(inputs: Iterable[Hashable], count: int) -> tuple[Hashable, ...]:
    """Return one input per position.

    Raises:
        AttnExtError: another number of inputs, or one that is unhashable, a tensor, or does not equal itself.
    """
    inputs = tuple(read_list(inputs, "inputs"))
    if len(inputs) != count:
        raise AttnExtError(f"inputs must have one entry per position, got {len(inputs)} for {count} positions")
    for position, value in enumerate(inputs):
        check_hashable(value, "input", position)
        check_comparable(value, "input", position)
    return inputs


def read_labels(labels: Mapping[int, Any], count: int) -> dict[int, Any]:
    """Return ``{position: label}``, positions as ints.

    Raises:
        AttnExtError: not a dictionary, a position out of range, or a label that is a tensor or does not equal itself.
    """
    if not isinstance(labels, Mapping):
        raise AttnExtError(f"labels must be a dictionary {{position: label}}, got {type(labels).__name__}")
    read = {}
    for key, label in labels.items():
        if not is_whole(key) or not 0 <= key < count:
            raise AttnExtError(f"label {short(label)} is at position {short(key)}; the positions are 0 to {count - 1}")
        check_comparable(label, "label", key)
        read[int(key)] = label
    return read


def check_hashable(value: Any, kind: str, position: int) -> None:
    """Raise :class:`AttnExtError` where a value, an ``"input"`` or a ``"label"``, cannot be hashed."""
    try:
        hash(value)
    except TypeError:
        raise AttnExtError(
            f"the {kind} at position {position} is unhashable ({type(value).__name__}); it is compared with others, so "
            "give a hashable one, such as (token, position)"
        ) from None


def check_comparable(value: Any, kind: str, position: int) -> None:
    """Raise :class:`AttnExtError` if a value, or a part of it at any depth, is a tensor or not equal to itself.

    Neither can be compared by ``==``: tensors compare element by element, and NaN is not equal to itself.
    """
    parts, seen = [value], set()
    while parts:
        part = parts.pop()
        if isinstance(part, torch.Tensor | np.ndarray):
            how = "is" if part is value else "holds"
            hint = "give a number, such as its .item(), or its .tolist()"
            raise AttnExtError(f"the {kind} at position {position} {how} a tensor; {hint}")
        if isinstance(part, _CONTAINERS):
            if id(part) not in seen:  # a list may hold itself
                seen.add(id(part))
                parts += (*part.keys(), *part.values()) if isinstance(part, Mapping) else part
        elif not _equals_itself(part):
            how = "" if part is value else f" holds {short(part)}, which"
            raise AttnExtError(
                f"the {kind} {short(value)} at position {position}{how} does not equal itself; use a value that does"
            )


def same_value(value: Any, other: Any) -> bool:
    """Return whether two values are equal and have bools at the same positions; ``True`` and ``1`` are not the same.

    Raises:
        AttnExtError: a comparison that is neither true nor false.
    """
    if value is other:
        return True
    try:
        equal = bool(value == other)
    except (TypeError, ValueError, RuntimeError, ArithmeticError):
        raise AttnExtError(
            f"values of type {type(value).__name__} cannot be compared with ==; give numbers, text or tuples"
        ) from None
    return equal and _truths(value) == _truths(other)


def _equals_itself(value: Any) -> bool:
    try:
        return bool(value == value)
    except (TypeError, ValueError, RuntimeError, ArithmeticError):
        return False


def _truths(value: Any) -> Any:
    """At which positions a value holds truth values."""
    if isinstance(value, tuple | list):
        truths = tuple(map(_truths, value))
        return truths if any(truths) else False
    if isinstance(value, set | frozenset):
        return any(map(_truths, value))
    return isinstance(value, bool | np.bool_)
