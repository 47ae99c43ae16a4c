"""How a run was started: the accelerator, and whether it has the processes that were asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker, get_available_trackers

from ..errors import AttnExtError, suggest
from .config import DistillConfig

TWO_ON_CPU = "ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 -m hf_attn_ext.distill --config ..."


def make_accelerator(config: DistillConfig, trackers: Sequence[GeneralTracker] = ()) -> Accelerator:
    """Return the run's accelerator, with the configuration's trackers and ``trackers``.

    Raises:
        AttnExtError: a tracker that is unknown or not installed; several processes asked for and one started; fp16
            where the device has none.
    """
    _check_trackers(config.tracking.trackers)
    try:
        accelerator = Accelerator(
            mixed_precision=config.mixed_precision,
            log_with=[*config.tracking.trackers, *trackers] or None,
            project_dir=config.output.folder,
        )
    except ValueError as error:
        if "already been initialized" in str(error):
            raise AttnExtError(
                f"field 'mixed_precision': this Python process has run with another precision than "
                f"{config.mixed_precision!r}; start the run in a new process"
            ) from error
        raise AttnExtError(f"field 'mixed_precision': {str(error).splitlines()[0]}") from error
    check_processes(config.processes, accelerator.num_processes, os.environ)
    if accelerator.mixed_precision == "fp16" and accelerator.device.type == "cpu":
        raise AttnExtError(
            "field 'mixed_precision': fp16 training needs a GPU (no gradient scaling on CPU); use bf16 or no"
        )
    return accelerator


def check_processes(wanted: int | None, running: int, environment: Mapping[str, str]) -> None:
    """Raise :class:`AttnExtError` if the run was asked for another number of processes than it got.

    ``accelerate launch --cpu --num_processes 2`` starts a single process unless MPI is set up; it then leaves an
    address to meet at (``MASTER_ADDR``) but no ``WORLD_SIZE``. torchrun on a machine without a GPU sets ``WORLD_SIZE``,
    but without ``ACCELERATE_USE_CPU`` each process believes that it is alone.

    Args:
        wanted: the configuration's ``processes``.
        running: what the accelerator says.
        environment: the process's environment variables.
    """
    if wanted is not None:
        if wanted != running:
            raise AttnExtError(
                f"field 'processes' asks for {wanted} processes, but {running} runs. Two on CPU: {TWO_ON_CPU}"
                if running == 1
                else f"field 'processes' asks for {wanted} processes, but {running} run"
            )
        return
    world = environment.get("WORLD_SIZE", "")
    if running == 1 and world.isdigit() and int(world) > 1:
        raise AttnExtError(
            f"the launcher started {world} processes, but each of them runs alone: set ACCELERATE_USE_CPU=true, as in "
            f"{TWO_ON_CPU}"
        )
    launched = "ACCELERATE_MIXED_PRECISION" in environment and "MASTER_ADDR" in environment
    if running == 1 and launched and not world:
        raise AttnExtError(
            "accelerate launch was asked for several processes but started one (on CPU it needs MPI). Use "
            f"{TWO_ON_CPU}; or, if one process is meant, set 'processes: 1'"
        )


def _check_trackers(names: list[str]) -> None:
    available = [str(getattr(name, "value", name)) for name in get_available_trackers()]
    known = [str(getattr(name, "value", name)) for name in LOGGER_TYPE_TO_CLASS]
    for name in names:
        if name not in known:
            raise AttnExtError(f"field 'tracking.trackers': unknown tracker {name!r}.{suggest(name, known)}")
        if name not in available:
            raise AttnExtError(f"field 'tracking.trackers': {name!r} is not installed: pip install {name}")
