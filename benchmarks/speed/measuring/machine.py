"""What a report says about the machine, and the checks of what is asked of it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from hf_attn_ext._util.versions import version
from hf_attn_ext.errors import AttnExtError, suggest

DEVICES = ("auto", "cpu", "cuda")
PACKAGES = ("torch", "transformers", "performer-pytorch")


def resolve_device(device: str) -> str:
    """Return "cpu" or "cuda"; "auto" takes CUDA where there is one.

    Raises:
        AttnExtError: an unknown name, or CUDA where there is none.
    """
    if device not in DEVICES:
        raise AttnExtError(f"unknown device {device!r}.{suggest(device, DEVICES)} Devices: {', '.join(DEVICES)}")
    found = torch.cuda.is_available()
    if device == "cuda" and not found:
        raise AttnExtError("device 'cuda' is asked for, but torch finds no CUDA device here; use cpu")
    return "cuda" if found and device != "cpu" else "cpu"


def synchronizer(device: str) -> Callable[[], None] | None:
    """What waits for a device, or None where nothing must be waited for."""
    return torch.cuda.synchronize if device == "cuda" else None


def set_threads(threads: int | None) -> int:
    """Set torch's number of threads in this process, where one is given; return what it is."""
    if threads is not None:
        torch.set_num_threads(threads)
    return torch.get_num_threads()


def describe_machine(device: str) -> dict[str, Any]:
    """Processor, threads, memory in bytes, device, and versions."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory": _memory(),
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "system": platform.platform(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) or "not installed" for name in PACKAGES},
        },
    }


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _memory() -> int | None:
    names = getattr(os, "sysconf_names", {})
    known = "SC_PAGE_SIZE" in names and "SC_PHYS_PAGES" in names
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if known else None
