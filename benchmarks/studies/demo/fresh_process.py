"""What both demos share: the fresh process that opens the saved model, the printed results, and an option."""

from __future__ import annotations

import argparse
import hashlib
import inspect
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import checkout_environment
from hf_attn_ext.errors import AttnExtError

# Equal weights need not give equal bits: on a busy machine the first batch of a process differed by 2e-6 to 3e-6.
# Outputs may differ by this much times (1 + the largest output), about 800 times the precision of float32.
TOLERANCE = 1e-4


def add_set_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--set``, which overrides settings of the demo."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.FIELD=VALUE",
        help="wins over the demo's settings; repeatable",
    )


def silence_transformers() -> None:
    """Turn off the progress bars and messages of Transformers."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()


def reopen(program: str, model: Path, task: dict[str, Any]) -> dict[str, np.ndarray]:
    """Let ``program`` open ``model`` in a fresh process, which can import ``hf_attn_ext`` and knows no more.

    Args:
        program: Python text, which can call :func:`tensor_digests`. Its arguments are the model's folder, a file with
            the arrays of ``task`` and with this process's ``device`` and number of ``threads``, and the ``.npz`` file
            that it has to write.
        model: the folder of a saved model.
        task: names to what numpy makes an array of.

    Returns:
        The arrays that it wrote. ``logits`` and ``tensors``, the digests of the opened model as JSON, are among them.

    Raises:
        AttnExtError: the program failed, or the logits are not finite.
    """
    import torch
    from accelerate import PartialState

    with tempfile.TemporaryDirectory() as scratch:
        task_file, result_file = Path(scratch) / "task.npz", Path(scratch) / "result.npz"
        np.savez(task_file, **task, device=str(PartialState().device), threads=torch.get_num_threads())
        imports = "from __future__ import annotations\nimport hashlib, json\n"
        source = "\n".join([imports, inspect.getsource(tensor_digests), program])
        command = [sys.executable, "-c", source, str(model), str(task_file), str(result_file)]
        done = subprocess.run(command, env=checkout_environment(), capture_output=True, text=True)
        if done.returncode:
            raise AttnExtError(f"the fresh process could not open {model}: {done.stderr.strip().splitlines()[-1]}")
        with np.load(result_file) as arrays:
            fresh = {name: arrays[name] for name in arrays.files}
    if not np.isfinite(fresh["logits"]).all():
        raise AttnExtError(f"the model in {model} gives logits that are not finite")
    return fresh


def tensor_digests(tensors: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 of each tensor's dtype, shape and bytes, by name."""
    import torch

    digests = {}
    for name, tensor in tensors.items():
        digest = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        digests[name] = digest.hexdigest()
    return digests


def differing_tensors(model: Path, opened: Mapping[str, str]) -> list[str]:
    """Names of the weights and buffers whose digests in ``opened`` are not those of the files of a saved model."""
    from safetensors.torch import load_file

    saved: dict[str, str] = {}
    for path in model.glob("*.safetensors"):
        saved |= tensor_digests(load_file(path))
    # A weight that several names share is saved under one of them.
    shared = set(saved.values())
    return [
        name
        for name in dict.fromkeys([*saved, *opened])
        if (opened.get(name) != saved[name] if name in saved else opened[name] not in shared)
    ]


def check_reopened(
    console: Any, model: Path, fresh: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]
) -> bool:
    """Compare the model that a fresh process opened with the run, and print both results.

    Args:
        console: a rich console.
        model: the folder of the saved model.
        fresh: what :func:`reopen` returned.
        outputs: the arrays of the run that ``fresh`` has under the same names.

    Returns:
        Whether weights and buffers are equal bit for bit and outputs within :data:`TOLERANCE`. If not, stderr says
        what differs.
    """
    opened = json.loads(str(fresh["tensors"]))
    differing = differing_tensors(model, opened)
    verdict = f"{len(differing)} differ" if differing else "all equal bit for bit"
    console.print(f"fresh process: {len(opened)} weights and buffers compared, {verdict}")
    errors = []
    if differing:
        errors.append(f"weights or buffers are not those that were saved, among them {', '.join(differing[:3])}")
    for name, expected in outputs.items():
        difference = float(np.abs(fresh[name] - expected).max())
        allowed = TOLERANCE * (1 + float(np.abs(expected).max()))
        console.print(
            f"fresh process: {expected.size} {name} compared, largest difference {difference}, tolerance {allowed:.1e}"
        )
        if not difference <= allowed:
            errors.append(f"{name} differ from those of the run by {difference}, more than the tolerance {allowed:.1e}")
    for error in errors:
        print(f"error: the model that a fresh process opened is not that of the run: {error}", file=sys.stderr)
    return not errors


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
