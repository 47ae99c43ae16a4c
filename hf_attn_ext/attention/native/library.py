"""Find and load the compiled library of the native op, and switch it off.

The library depends on no part of torch. It is stored in the user's cache, under a name made from everything that it
depends on: its source, the compiler flags, the processor and torch. A library for anything else counts as not built.
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
from collections.abc import Iterator
from pathlib import Path

import torch

from hf_attn_ext.errors import AttnExtError

SOURCES = ("attention.cpp", "backward.h", "head.h", "simd.h")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fPIC", "-shared", "-Wno-psabi")
SWITCH = "HF_ATTN_EXT_COMPILED"
# environment variables that the library's path depends on, within one process
_PATH_VARIABLES = ("TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME", "HOME", "CXXFLAGS")
_plain = contextvars.ContextVar("plain", default=False)
_candidate: contextvars.ContextVar[ctypes.CDLL | None] = contextvars.ContextVar("candidate", default=None)


def library_path() -> Path:
    """Return the path of the library for this source, processor and torch, whether it is built or not.

    Raises:
        RuntimeError: there is no home folder.
        ValueError: CXXFLAGS has an unclosed quote.
    """
    return _cache_folder() / "hf_attn_ext" / f"attention-{_key()}.so"


def built_library() -> Path | None:
    """Return the library's path; None if it is not built, or if its path is unknown or not readable."""
    try:
        path = library_path()
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):
        return None


def native_library() -> ctypes.CDLL | None:
    """Return the loaded library; None if it is not built or switched off by ``HF_ATTN_EXT_COMPILED=0``.

    Raises:
        AttnExtError: the library exists, but cannot be loaded.
    """
    candidate = _candidate.get()
    if candidate is not None or switched_off():
        return candidate
    return _load(*(os.environ.get(name) for name in _PATH_VARIABLES))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch does not annotate it
def native_op_loaded() -> bool:
    """Return whether the native op is loaded and enabled."""
    return not _plain.get() and native_library() is not None


@contextlib.contextmanager
def plain_forms() -> Iterator[None]:
    """Compute all calls inside the ``with`` block by torch's own operations, without the native op.

    Example:
        >>> with plain_forms():
        ...     native_op_loaded()
        False
    """
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


@contextlib.contextmanager
def trial(path: Path) -> Iterator[None]:
    """Use the library at ``path`` inside the ``with`` block, before it is moved to its final path."""
    token = _candidate.set(_open(path))
    try:
        yield
    finally:
        _candidate.reset(token)


def switched_off() -> bool:
    """Return whether ``HF_ATTN_EXT_COMPILED`` switches the native op off."""
    return os.environ.get(SWITCH, "").lower() in {"0", "off", "no", "false"}


def describe_native_op() -> str:
    """Return the state of the native op in one line, as ``hf-attn-ext doctor`` prints it."""
    if switched_off():
        return f"switched off by {SWITCH}"
    path = built_library()
    return f"built, {path}" if path else "not built; `hf-attn-ext build` makes attention on the CPU faster"


def forget_loaded() -> None:
    """Look for the library again at the next call."""
    _load.cache_clear()


def compiler_flags() -> tuple[str, ...]:
    """Return the compiler's flags, those of CXXFLAGS last.

    Raises:
        ValueError: CXXFLAGS has an unclosed quote.
    """
    return (*FLAGS, *shlex.split(os.environ.get("CXXFLAGS", "")))


@functools.cache
def _load(*variables: str | None) -> ctypes.CDLL | None:
    path = built_library()
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
            f"the library of the native op cannot be loaded ({error}). Delete {path} and run `hf-attn-ext build`, or "
            f"set {SWITCH}=0"
        ) from error
    return library


def _cache_folder() -> Path:
    chosen = os.environ.get("TORCH_EXTENSIONS_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_extensions"


def _key() -> str:
    parts = [torch.__version__, *compiler_flags(), platform.system(), platform.machine(), _processor()]
    parts += [Path(__file__).with_name(name).read_text() for name in SOURCES]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """Return the properties of the processor that ``-march=native`` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU implementer", "CPU part")
    return "\n".join(sorted({line for line in lines if line.split("\t")[0].split(":")[0].strip() in wanted}))
