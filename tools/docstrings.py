"""A griffe extension for the API pages: Sphinx roles become code, and ``Example:`` a section of runnable examples."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc|obj):`[~.!]?([^`]+)`")
EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrite each docstring before mkdocstrings parses it."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one module, class, function or attribute."""
        if obj.docstring:
            obj.docstring.value = EXAMPLE.sub("Examples:", ROLE.sub(r"`\1`", obj.docstring.value))
