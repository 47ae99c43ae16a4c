"""Read the Args section of a docstring, so that help texts are written once."""

from __future__ import annotations

import inspect
import re


def argument_texts(documented: object) -> dict[str, str]:
    """Return the text of each argument in the ``Args:`` section of an object's docstring, in one line.

    Example:
        >>> def window(n, w):
        ...     '''Cut.
        ...
        ...     Args:
        ...         n, m: tokens,
        ...             at least 1.
        ...         w: tokens in the window.
        ...     '''
        >>> argument_texts(window)
        {'n': 'tokens, at least 1.', 'm': 'tokens, at least 1.', 'w': 'tokens in the window.'}
    """
    section = re.search(r"^Args:\n((?:[ \t]+.*\n?|\n)+)", inspect.getdoc(documented) or "", re.MULTILINE)
    if section is None:
        return {}
    texts: dict[str, str] = {}
    for names, text in re.findall(r"^ {4}(\w[\w, ]*): (.*(?:\n {5,}.*)*)", section[1], re.MULTILINE):
        texts |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return texts
