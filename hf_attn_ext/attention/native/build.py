"""Compile the native op, once for a machine and on request only."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from hf_attn_ext.errors import AttnExtError

from .check import check_native_op
from .library import SOURCES, compiler_flags, forget_loaded, library_path, native_library, trial

COMPILERS = ("c++", "g++", "clang++")


def build_native_op(progress: Callable[[str], None] = lambda text: None) -> Path:
    """Compile the native op for this machine, unless it is built; later calls and processes use it automatically.

    Args:
        progress: called with one line of text before each step.

    Returns:
        The library's path, in ``TORCH_EXTENSIONS_DIR`` or in the user's cache folder.

    Raises:
        AttnExtError: there is no C++ compiler (the variable CXX names one, CXXFLAGS adds options), the compiler fails,
            the compiled op computes wrong numbers, or the folder cannot be written to.

    Example:
        >>> build_native_op(print)  # doctest: +SKIP
        compiling with /usr/bin/c++
    """
    path = _path_to_build()
    if not path.is_file():
        compiler = _compiler()
        progress(f"compiling with {compiler}")
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            temporary_path = Path(folder) / path.name
            _compile(compiler, temporary_path)
            progress("checking its numbers")
            with trial(temporary_path):
                check_native_op()
            os.replace(temporary_path, path)
    forget_loaded()
    native_library()
    return path


def _path_to_build() -> Path:
    """Return the library's path, whose folder can be written to unless the library exists."""
    try:
        compiler_flags()
    except ValueError as error:
        raise AttnExtError(
            f"CXXFLAGS={os.environ['CXXFLAGS']!r} cannot be read ({error}). Correct or unset it"
        ) from error
    try:
        path = library_path()
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent):
                return path
    except (OSError, RuntimeError) as error:
        reason = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else error
        raise AttnExtError(
            f"there is no folder for the native op ({reason}). Set TORCH_EXTENSIONS_DIR to a folder that you may write "
            "to"
        ) from error
    return path


def _compiler() -> str:
    chosen = os.environ.get("CXX")
    for name in [chosen] if chosen else COMPILERS:
        path = shutil.which(name)
        if path:
            return path
    what = f"CXX names {chosen!r}, which is not found" if chosen else f"none of {', '.join(COMPILERS)} is found"
    raise AttnExtError(
        f"no C++ compiler: {what}; install g++ or clang++; without the native op torch computes the same"
    )


def _compile(compiler: str, target: Path) -> None:
    command = [compiler, *compiler_flags(), str(Path(__file__).with_name(SOURCES[0])), "-o", str(target)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise AttnExtError(f"{compiler} cannot be run: {error.strerror or error}") from error
    if done.returncode or not target.is_file():
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        reason = lines[0].strip() if lines else f"exit code {done.returncode}"
        raise AttnExtError(f"{compiler} failed: {reason}. Set CXX to another compiler")
