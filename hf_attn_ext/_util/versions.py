"""Versions of Python and of installed packages."""

from __future__ import annotations

import platform
from importlib import metadata


def version(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python and of those of ``packages`` that are installed.

    Example:
        >>> versions("torch")  # doctest: +SKIP
        {'python': '3.12.3', 'torch': '2.13.0'}
    """
    known = {package: version(package) for package in packages}
    return {"python": platform.python_version(), **{name: number for name, number in known.items() if number}}
