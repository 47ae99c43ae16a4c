"""Execute the package's ``__init__``, which the launcher leaves for the commands that need it."""

from __future__ import annotations

import sys


def execute_package() -> None:
    """Execute ``hf_attn_ext/__init__.py`` unless that has happened; it imports torch and transformers."""
    package = sys.modules[__name__.partition(".")[0]]
    spec = package.__spec__
    if not hasattr(package, "__all__") and spec is not None and spec.loader is not None:
        spec.loader.exec_module(package)
