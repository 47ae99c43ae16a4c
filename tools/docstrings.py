"""A griffe extension for the API pages: what our docstrings write and mkdocstrings does not read.

Sphinx roles become code, ``Example:`` a section of runnable examples, and an entry for several arguments
(``q, k, v: float (B, H, N, d)``) one entry per argument.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc|obj):`[~.!]?([^`]+)`")
EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
SEVERAL = re.compile(
    r"^(?P<indent> +)(?P<names>\*{0,2}\w+(?:, \*{0,2}\w+)+)(?P<text>: .*(?:\n(?P=indent) +.*)*)$", re.MULTILINE
)


def _one_each(entry: re.Match[str]) -> str:
    return "\n".join(f"{entry['indent']}{name}{entry['text']}" for name in entry["names"].split(", "))


class Docstrings(griffe.Extension):
    """Rewrite each docstring before mkdocstrings parses it."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one module, class, function or attribute."""
        if obj.docstring:
            text = EXAMPLE.sub("Examples:", ROLE.sub(r"`\1`", obj.docstring.value))
            obj.docstring.value = SEVERAL.sub(_one_each, text)
