"""Start of a run: the accelerator, and a check of the number of processes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence

import torch
from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker, get_available_trackers
from accelerate.utils import parse_flag_from_env

from hf_attn_ext._util.processes import check_processes
from hf_attn_ext.errors import AttnExtError, first_line, suggest

from .config import DistillConfig

TWO_ON_CPU = "ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 -m hf_attn_ext.distill --config ..."


def make_accelerator(config: DistillConfig, trackers: Sequence[GeneralTracker] = ()) -> Accelerator:
    """Return the run's accelerator, with the configuration's trackers and ``trackers``.

    Raises:
        AttnExtError: a tracker that is unknown or not installed; several processes asked for and one started; fp16
            where the device has none.
    """
    _check_trackers(config.tracking.trackers)
    precision = config.mixed_precision
    if precision == "auto":
        precision = "bf16" if computes_in_bf16() else "no"
    try:
        accelerator = Accelerator(
            mixed_precision=precision,
            log_with=[*config.tracking.trackers, *trackers] or None,
            project_dir=config.output.folder,
        )
    except ValueError as error:
        if "already been initialized" in str(error):
            raise AttnExtError(
                f"field 'mixed_precision': this Python process has run with another precision than "
                f"{precision!r}; start the run in a new process"
            ) from error
        raise AttnExtError(f"field 'mixed_precision': {first_line(error)}") from error
    check_processes(config.processes, accelerator.num_processes, os.environ, TWO_ON_CPU)
    if accelerator.mixed_precision == "fp16" and accelerator.device.type == "cpu":
        raise AttnExtError(
            "field 'mixed_precision': fp16 training needs a GPU (no gradient scaling on CPU); use bf16 or no"
        )
    if accelerator.mixed_precision == "bf16" and not computes_in_bf16() and accelerator.is_main_process:
        warnings.warn(
            "mixed_precision is bf16, but this device has no bf16 arithmetic: expect it several times slower than "
            "float32; 'auto' chooses by the device",
            stacklevel=2,
        )
    return accelerator


def computes_in_bf16() -> bool:
    """Return whether the device has bf16 arithmetic; without it, a CPU is several times slower than in float32."""
    if torch.cuda.is_available() and not parse_flag_from_env("ACCELERATE_USE_CPU"):
        return torch.cuda.is_bf16_supported(including_emulation=False)
    checks = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return any(check() for check in checks if check is not None)


def _check_trackers(names: list[str]) -> None:
    available = [str(getattr(name, "value", name)) for name in get_available_trackers()]
    known = [str(getattr(name, "value", name)) for name in LOGGER_TYPE_TO_CLASS]
    for name in names:
        if name not in known:
            raise AttnExtError(f"field 'tracking.trackers': unknown tracker {name!r}.{suggest(name, known)}")
        if name not in available:
            raise AttnExtError(f"field 'tracking.trackers': {name!r} is not installed: pip install {name}")
