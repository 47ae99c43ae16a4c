"""Whether a run has the processes that were asked for."""

from __future__ import annotations

from collections.abc import Mapping

from hf_attn_ext.errors import AttnExtError


def check_processes(wanted: int | None, running: int, environment: Mapping[str, str], two_on_cpu: str) -> None:
    """Raise :class:`AttnExtError` if the run was asked for another number of processes than it got.

    ``accelerate launch --cpu --num_processes 2`` starts a single process unless MPI is set up; it then leaves an
    address to meet at (``MASTER_ADDR``) but no ``WORLD_SIZE``. torchrun on a machine without a GPU sets ``WORLD_SIZE``,
    but without ``ACCELERATE_USE_CPU`` each process believes that it is alone.

    Args:
        wanted: the configuration's ``processes``.
        running: what the accelerator says.
        environment: the process's environment variables.
        two_on_cpu: the command that starts two processes on a CPU, for the message.
    """
    if wanted is not None:
        if wanted != running:
            raise AttnExtError(
                f"field 'processes' asks for {wanted} processes, but {running} runs. Two on CPU: {two_on_cpu}"
                if running == 1
                else f"field 'processes' asks for {wanted} processes, but {running} run"
            )
        return
    world = environment.get("WORLD_SIZE", "")
    if running == 1 and world.isdigit() and int(world) > 1:
        raise AttnExtError(
            f"the launcher started {world} processes, but each of them runs alone: set ACCELERATE_USE_CPU=true, as in "
            f"{two_on_cpu}"
        )
    launched = "ACCELERATE_MIXED_PRECISION" in environment and "MASTER_ADDR" in environment
    if running == 1 and launched and not world:
        raise AttnExtError(
            "accelerate launch was asked for several processes but started one (on CPU it needs MPI). Use "
            f"{two_on_cpu}; or, if one process is meant, set 'processes: 1'"
        )
