"""Inputs of a mask: what is embedded at each position, as tuples ``(kind, token, *tokens it is made of)``.

Tokens are counted from 0:

    ("token", 3)        the embedding of token 3
    ("mask", 3)         the mask token, with the position id of token 3
    ("noisy", 3)        token 3, or the mask token where noise replaced it; the label counts only where it was replaced
    ("mean", 3, 2, 4)   the mean of the embeddings of tokens 2 and 4, with the position id of token 3
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from hf_attn_ext.hasse.order.reading import is_whole

KINDS = ("token", "mask", "noisy", "mean")


def token(index: int) -> tuple[str, int]:
    """Return the input "embedding of token ``index``"."""
    return ("token", index)


def mask_token(index: int) -> tuple[str, int]:
    """Return the input "mask token that stands for token ``index``"."""
    return ("mask", index)


def noisy_token(index: int) -> tuple[str, int]:
    """Return the input "token ``index``, or the mask token where noise replaced it"."""
    return ("noisy", index)


def neighbours(index: int, tokens: int) -> tuple[str | int, ...]:
    """Return the input "mean of the embeddings of the neighbours of token ``index``".

    The first and the last of ``tokens`` tokens have one neighbour.
    """
    return ("mean", index, *(i for i in (index - 1, index + 1) if 0 <= i < tokens))


def is_input(entry: Hashable) -> bool:
    """Return whether a value is an input in the form of this module.

    Example:
        >>> is_input(("token", 3)), is_input("cat")
        (True, False)
    """
    if not isinstance(entry, tuple) or len(entry) < 2 or entry[0] not in KINDS:
        return False
    return all(is_whole(part) and part >= 0 for part in entry[1:])


def held_tokens(entry: Hashable) -> tuple[int, ...]:
    """Return the tokens whose embeddings an input contains; none for inputs of another form.

    Example:
        >>> held_tokens(("mean", 3, 2, 4)), held_tokens(("mask", 3))
        ((2, 4), ())
    """
    if not isinstance(entry, tuple) or not is_input(entry):
        return ()
    return entry[2:] if entry[0] == "mean" else entry[1:] if entry[0] == "token" else ()


def input_text(value: Any) -> str:
    """Return a short text for an input or a label, printable, in one line and never empty.

    Example:
        >>> input_text(("sat", 2))
        'sat@2'
    """
    if isinstance(value, tuple):
        return "@".join(map(input_text, value)) or "()"
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(value)) or "''"
