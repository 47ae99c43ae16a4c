"""Checks of the fields of a :class:`.MaskSpec`; every message begins with the mask's name."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from hf_attn_ext.errors import AttnExtError, short
from hf_attn_ext.hasse.order.reading import is_whole

_MOST_TOKENS = (1 << 63) - 1  # a token's number must fit int64


def check_inputs(name: str, inputs: Sequence[Hashable]) -> None:
    """Raise :class:`AttnExtError` where there is no input, or one that cannot be hashed."""
    if not inputs:
        raise AttnExtError(f"{name}: a mask needs at least one position, got no inputs")
    for position, entry in enumerate(inputs):
        try:
            hash(entry)
        except TypeError:
            where = f"{name}: the input at position {position}"
            raise AttnExtError(f"{where} is unhashable: {short(entry)}; use a tuple, a string or a number") from None


def check_texts(name: str, texts: Sequence[Any]) -> None:
    """Raise :class:`AttnExtError` unless roles and names are texts of one line."""
    if not all(isinstance(text, str) and text.isprintable() for text in texts):
        raise AttnExtError(f"{name}: roles and names must be texts of one line, got {short([*texts])}")


def check_lengths(name: str, size: int, **fields: Any) -> None:
    """Raise :class:`AttnExtError` unless each field has one entry per position."""
    for field, values in fields.items():
        if len(values) != size:
            raise AttnExtError(f"{name}: {len(values)} {field} for {size} positions")


def check_kinds(name: str, form: Any, options: Any, task_family: Any, tables: Sequence[Any], window: Any) -> None:
    """Raise :class:`AttnExtError` where one of these fields has a value of another kind."""
    for field, value, kind, right in (
        ("form", form, "a function", callable(form)),
        ("options", options, "a dictionary", isinstance(options, Mapping)),
        ("task_family", task_family, "a function or None", task_family is None or callable(task_family)),
        ("tables", tables, "tensors", all(isinstance(table, Tensor) for table in tables)),
        ("window", window, "a whole number or None", window is None or (is_whole(window) and window > 0)),
    ):
        if not right:
            raise AttnExtError(f"{name}: {field} must be {kind}, got {short(value)}")


def read_tokens(name: str, tokens: Any) -> int:
    """Return the number of tokens as an int.

    Raises:
        AttnExtError: not a whole number from 1 to ``2**63 - 1``.
    """
    if not is_whole(tokens) or not 1 <= tokens <= _MOST_TOKENS:
        raise AttnExtError(f"{name}: tokens must be a whole number from 1 to 2**63 - 1, got {short(tokens)}")
    return int(tokens)


def read_targets(name: str, labels: Any, size: int, tokens: int) -> dict[int, int]:
    """Return labels as ``{position: token}`` of ints.

    Raises:
        AttnExtError: not a mapping of whole numbers, a position from ``size`` on, or a token from ``tokens`` on.
    """
    if not isinstance(labels, Mapping):
        raise AttnExtError(f"{name}: labels must map positions to tokens, got {short(labels)}")
    for position, label in labels.items():
        if not is_whole(position) or not is_whole(label):
            raise AttnExtError(
                f"{name}: labels must map positions to tokens, both whole numbers, got "
                f"{short(position)}: {short(label)}"
            )
        if not 0 <= position < size:
            raise AttnExtError(f"{name}: a label is at position {position}; the positions are 0 to {size - 1}")
        if not 0 <= label < tokens:
            raise AttnExtError(f"{name}: the label at {position} is token {label} of {tokens} tokens")
    return {int(position): int(label) for position, label in labels.items()}


def read_position_ids(name: str, ids: Any) -> Tensor:
    """Return position ids as int64 ``(N,)``.

    Raises:
        AttnExtError: not a list, array or tensor of whole numbers.
    """
    try:
        read = torch.as_tensor(ids)
        whole = read.ndim == 1 and not read.is_floating_point() and not read.is_complex() and read.dtype != torch.bool
    except (TypeError, ValueError, RuntimeError, OverflowError):
        whole = False
    if not whole:
        raise AttnExtError(
            f"{name}: position_ids must be whole numbers that fit int64, one per position, got {short(ids)}"
        )
    return read.to(torch.int64)
