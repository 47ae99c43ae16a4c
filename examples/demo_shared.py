"""What ``demo.py`` and ``demo_gpt.py`` share: the fresh process, the printed results, and an option."""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from hf_attn_ext.errors import AttnExtError

ROOT = Path(__file__).resolve().parents[1]


def add_set_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.FIELD=VALUE",
        help="wins over the demo's settings; repeatable",
    )


def silence_transformers() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def reopen(program: str, model: Path, task: dict[str, Any]) -> dict[str, np.ndarray]:
    """Let ``program`` open ``model`` in a fresh process, which can import ``hf_attn_ext`` and knows no more.

    Args:
        program: Python text. Its arguments are the model's folder, a file with the arrays of ``task`` and with this
            process's ``device`` and number of ``threads``, and the ``.npz`` file that it has to write.
        model: the folder of a saved model.
        task: names to what numpy makes an array of.

    Returns:
        The arrays that it wrote, ``logits`` among them.

    Raises:
        AttnExtError: the program failed, or the logits are not finite.
    """
    import torch
    from accelerate import PartialState

    with tempfile.TemporaryDirectory() as scratch:
        given, found = Path(scratch) / "task.npz", Path(scratch) / "found.npz"
        np.savez(given, **task, device=str(PartialState().device), threads=torch.get_num_threads())
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        command = [sys.executable, "-c", program, str(model), str(given), str(found)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise AttnExtError(f"the fresh process could not open {model}: {done.stderr.strip().splitlines()[-1]}")
        with np.load(found) as arrays:
            fresh = {name: arrays[name] for name in arrays.files}
    if not np.isfinite(fresh["logits"]).all():
        raise AttnExtError(f"the model in {model} gives logits that are not finite")
    return fresh


def peak_memory() -> float:
    """Peak resident memory in MiB of this process and of its largest child (they do not run side by side)."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / unit


def print_table(results: dict[str, Any]) -> Any:
    """Print the scores of every step; return the rich console, for the lines that a demo has of its own."""
    from rich.console import Console

    from hf_attn_ext.training import results_table

    console = Console(width=None if sys.stdout.isatty() else 130, highlight=False)
    console.print(results_table(results))
    return console


def print_ending(console: Any, results: dict[str, Any], model: Path, card: Path, start: float) -> None:
    """Print the seconds by step, where the model and its card are, and what all of it took since ``start``."""
    spent = "   ".join(f"{name} {seconds:.0f}" for name, seconds in results["seconds"].items())
    console.print(f"seconds by step: {spent}")
    console.print(f"model: {model}   card: {card}", soft_wrap=True)
    seconds = time.perf_counter() - start
    console.print(
        f"wall time: {int(seconds // 60)} min {seconds % 60:.0f} s   peak memory: {peak_memory() / 1024:.2f} GiB"
    )
