"""Benchmarks and studies: the commands behind the numbers in the documentation. Not part of the wheel.

Everything runs in the root of a checkout: ``python -m benchmarks.speed``, ``python -m benchmarks.studies.NAME``,
``python -m benchmarks.assets``. See ``benchmarks/README.md`` for what each answers and how long it takes.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def checkout_environment(**variables: str) -> dict[str, str]:
    """Return this process's environment for a child process that imports this checkout, with ``variables`` added."""
    path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH")) if part)
    return {**os.environ, "PYTHONPATH": path, **variables}
