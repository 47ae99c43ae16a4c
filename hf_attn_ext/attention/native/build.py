"""Compile the kernel once, on request; find it and load it afterwards.

The library has no torch in it, only a C++ compiler is needed, for seconds. It lies in the user's cache, under a name
made of everything it depends on; where that changes, it is as if it were not built.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from hf_attn_ext.errors import AttnExtError

SOURCES = ("attention.cpp", "backward.h", "head.h", "simd.h")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "-Wno-psabi")
SWITCH = "HF_ATTN_EXT_COMPILED"
# what the library's place depends on, in a process
_PLACES = ("TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME", "HOME", "CXXFLAGS")
COMPILERS = ("c++", "g++", "clang++")
_plain = contextvars.ContextVar("plain", default=False)
_candidate: contextvars.ContextVar[ctypes.CDLL | None] = contextvars.ContextVar("candidate", default=None)


def build_kernels(progress: Callable[[str], None] = lambda text: None) -> Path:
    """Compile the CPU kernel for this machine, unless that is done; later calls and processes use it by themselves.

    Args:
        progress: told what is done.

    Returns:
        The library, in ``TORCH_EXTENSIONS_DIR`` or the user's cache folder.

    Raises:
        AttnExtError: there is no C++ compiler (the variable CXX names one, CXXFLAGS adds options), it fails, what
            it makes computes wrong numbers, or there is no folder that can be written to.

    Example:
        >>> build_kernels(print)  # doctest: +SKIP
        compiling with /usr/bin/c++
    """
    path = _place_to_build()
    if not path.is_file():
        compiler = _compiler()
        progress(f"compiling with {compiler}")
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            beside = Path(folder) / path.name
            _compile(compiler, beside)
            progress("checking its numbers")
            _check(beside)
            os.replace(beside, path)
    _load.cache_clear()
    kernel_library()
    return path


def library_path() -> Path:
    """Where the library for this source, processor and torch lies, or would lie.

    Raises:
        RuntimeError: there is no home folder.
        ValueError: CXXFLAGS has a quote that does not end.
    """
    return _cache_folder() / "hf_attn_ext" / f"attention-{_key()}.so"


def _found() -> Path | None:
    """The library; None where it is not built, or the place where it would lie is not known or not readable."""
    try:
        path = library_path()
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):
        return None


def _place_to_build() -> Path:
    """The library's path, in a folder that can be written to unless the library is there."""
    try:
        _flags()
    except ValueError as error:
        raise AttnExtError(f"CXXFLAGS={os.environ['CXXFLAGS']!r} cannot be read ({error}): mend or unset it") from error
    try:
        path = library_path()
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent):
                return path
    except (OSError, RuntimeError) as error:
        reason = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) else error
        raise AttnExtError(
            f"there is no place for the compiled kernel ({reason}): let TORCH_EXTENSIONS_DIR name a folder that you "
            "may write to"
        ) from error
    return path


def kernel_library() -> ctypes.CDLL | None:
    """The library, loaded; None where it is not built or is switched off by ``HF_ATTN_EXT_COMPILED=0``.

    Raises:
        AttnExtError: it is there, but can't be loaded.
    """
    candidate = _candidate.get()
    if candidate is not None or switched_off():
        return candidate
    return _load(*(os.environ.get(name) for name in _PLACES))


@torch.compiler.assume_constant_result
def kernels_loaded() -> bool:
    """Whether calls that the compiled kernel takes are computed by it."""
    return not _plain.get() and kernel_library() is not None


@contextlib.contextmanager
def plain_forms() -> Iterator[None]:
    """Inside a ``with``, torch's own forms compute all calls."""
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


def switched_off() -> bool:
    """Whether the user wants the plain torch forms."""
    return os.environ.get(SWITCH, "").lower() in {"0", "off", "no", "false"}


def describe_kernels() -> str:
    """What ``hf-attn-ext doctor`` says."""
    if switched_off():
        return f"switched off by {SWITCH}"
    path = _found()
    return f"built, {path}" if path else "not built; `hf-attn-ext build` makes attention on the CPU faster"


@functools.cache
def _load(*places: str | None) -> ctypes.CDLL | None:
    path = _found()
    return _open(path) if path else None


def _open(path: Path) -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(str(path))
        for name in ("forward", "backward"):
            for kind in ("float", "double"):
                function = getattr(library, f"{name}_{kind}")
                function.restype, function.argtypes = ctypes.c_int, [ctypes.c_void_p]
    except (OSError, AttributeError) as error:
        raise AttnExtError(
            f"the compiled kernel does not load ({error}): delete {path} and run `hf-attn-ext build`, or set {SWITCH}=0"
        ) from error
    return library


def _compiler() -> str:
    chosen = os.environ.get("CXX")
    for name in [chosen] if chosen else COMPILERS:
        found = shutil.which(name)
        if found:
            return found
    what = f"CXX names {chosen!r}, which is not found" if chosen else f"none of {', '.join(COMPILERS)} is found"
    raise AttnExtError(f"no C++ compiler: {what}; install g++ or clang++ (without the kernel torch computes the same)")


def _compile(compiler: str, target: Path) -> None:
    command = [compiler, *_flags(), str(Path(__file__).with_name(SOURCES[0])), "-o", str(target)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise AttnExtError(f"{compiler} does not run: {error.strerror or error}") from error
    if done.returncode or not target.is_file():
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        reason = lines[0].strip() if lines else f"exit code {done.returncode}"
        raise AttnExtError(f"{compiler} fails: {reason}; set CXX to another compiler")


def _check(path: Path) -> None:
    """Let a library that is not in its place yet compute something known."""
    from .check import check_kernels

    token = _candidate.set(_open(path))
    try:
        check_kernels()
    finally:
        _candidate.reset(token)


def _cache_folder() -> Path:
    chosen = os.environ.get("TORCH_EXTENSIONS_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_extensions"


def _flags() -> tuple[str, ...]:
    return (*FLAGS, *shlex.split(os.environ.get("CXXFLAGS", "")))


def _key() -> str:
    parts = [torch.__version__, *_flags(), platform.system(), platform.machine(), _processor()]
    parts += [Path(__file__).with_name(name).read_text() for name in SOURCES]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """What ``-march=native`` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer", "CPU part")
    return "\n".join(sorted({line for line in lines if line.split("\t")[0].split(":")[0].strip() in wanted}))
