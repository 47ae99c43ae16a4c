"""The one exception for users' mistakes, and the helper that suggests the nearest valid name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AttnExtError(ValueError):
    """A mistake that the caller can mend.

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
    near = difflib.get_close_matches(str(name).casefold(), options, n=1, cutoff=0.5)
    return f" Did you mean {options[near[0]]!r}?" if near else ""
