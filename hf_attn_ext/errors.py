"""The exception for users' mistakes, and helpers for its message."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AttnExtError(ValueError):
    """A mistake that the caller can correct.

    The message is one line: what is wrong, the value, and what to do. The command line prints it without a
    traceback and exits with code 2.

    Example:
        >>> raise AttnExtError("num_features must be at least 1, got 0")
        Traceback (most recent call last):
        ...
        hf_attn_ext.errors.AttnExtError: num_features must be at least 1, got 0
    """


def suggest(name: object, options: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the option nearest to ``name``, or ``""`` when none is near.

    Example:
        >>> suggest("hedgehg", ["hedgehog", "performer"])
        " Did you mean 'hedgehog'?"
    """
    options = {option.casefold(): option for option in options}
    near = difflib.get_close_matches(str(name)[:80].casefold(), options, n=1, cutoff=0.5)
    return f" Did you mean {options[near[0]]!r}?" if near else ""


def short(value: object) -> str:
    r"""Return ``repr(value)`` in one line of at most 80 characters.

    Example:
        >>> short("a\nb"), len(short(list(range(100))))
        ("'a\\nb'", 80)
    """
    try:
        text = " ".join(repr(value).split())
    except Exception:  # Python refuses to print a number of 5,000 digits, and a message must not fail
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


def first_line(error: BaseException) -> str:
    r"""Return the first line of an exception's message that is not blank, or the name of its class.

    Example:
        >>> first_line(ValueError("\nno such file\nmore")), first_line(KeyError())
        ('no such file', 'KeyError')
    """
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
