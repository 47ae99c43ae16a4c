"""Runs of several processes: check their number, and stop all of them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hf_attn_ext.errors import AttnExtError


def check_processes(wanted: int | None, running: int, environment: Mapping[str, str], two_on_cpu: str) -> None:
    """Check that a run has the requested number of processes.

    ``accelerate launch --cpu --num_processes 2`` starts a single process unless MPI is set up; it then sets
    ``MASTER_ADDR`` but not ``WORLD_SIZE``. torchrun on a machine without a GPU sets ``WORLD_SIZE``,
    but without ``ACCELERATE_USE_CPU`` the processes do not connect.

    Args:
        wanted: the configuration's ``processes``.
        running: the accelerator's number of processes.
        environment: the process's environment variables.
        two_on_cpu: the command that starts two processes on a CPU, for the message.

    Raises:
        AttnExtError: the numbers differ, or the launcher started processes that are not connected.
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


def check_on_main(check: Callable[[], object], state: Any) -> None:
    """Call ``check`` on the main process, and raise its error on every process, so that none waits for the others.

    Args:
        check: called without arguments; raises :class:`AttnExtError` for a mistake.
        state: accelerate's ``Accelerator`` or ``PartialState``.

    Raises:
        AttnExtError: that of ``check``, on every process.
    """
    problem = None
    if state.is_main_process:
        try:
            check()
        except AttnExtError as error:
            problem = str(error)
    if state.num_processes > 1:
        from accelerate.utils import broadcast_object_list

        problem = broadcast_object_list([problem])[0]
    if problem:
        raise AttnExtError(problem)
