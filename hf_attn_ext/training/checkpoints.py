"""Checkpoints of a running stage: written atomically; the last few and the best stay.

A checkpoint holds everything the next step depends on: weights, optimizer, gradient scaler, the random states of
every process, and the loop's own numbers. The data position needs no state: it follows from the step.
"""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from hf_attn_ext._util.files import read_json, remove_folder, replace_folder, sweep, temporary_path, write_json
from hf_attn_ext.errors import AttnExtError


@dataclasses.dataclass
class LoopState:
    """The loop's own numbers.

    Attributes:
        step: steps done.
        best_step: the step of the best evaluation so far, with ``best_score`` (higher is better) and
            ``best_metrics``.
        window: sums of the training losses since the last line in the journal.
        units: what those sums are divided by.
    """

    step: int = 0
    best_step: int | None = None
    best_score: float | None = None
    best_metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    window: dict[str, float | Tensor] = dataclasses.field(default_factory=dict)
    units: float = 0.0


class Stateful(Protocol):
    """An object with weights and an optimizer to save; its methods are called on every process."""

    def save_state(self, folder: Path) -> None:
        """Write weights and optimizer to ``folder``."""

    def load_state(self, folder: Path) -> None:
        """Restore what :meth:`save_state` wrote."""


class CheckpointStore:
    """The checkpoints of one stage in one folder.

    Args:
        folder: holds ``step-00000010`` and so on.
        keep: number of most recent checkpoints that stay, in addition to the best.
        accelerator: for the main process and the barriers.
    """

    def __init__(self, folder: Path, keep: int, accelerator: Accelerator):
        self.folder, self.keep, self.accelerator = folder, keep, accelerator
        if accelerator.is_main_process:
            folder.mkdir(parents=True, exist_ok=True)
            sweep(folder)
        accelerator.wait_for_everyone()

    def steps(self) -> list[int]:
        """Return the steps that have a whole checkpoint, in order."""
        return sorted(int(path.name.removeprefix("step-")) for path in self.folder.glob("step-*"))

    def path(self, step: int) -> Path:
        """Return the folder of the checkpoint of ``step``."""
        return self.folder / f"step-{step:08d}"

    def save(self, state: LoopState, stage: Stateful) -> None:
        """Write the checkpoint of ``state.step``, then drop what is neither recent nor the best."""
        final = self.path(state.step)
        temporary = temporary_path(final, final.name)  # the same on every process
        if self.accelerator.is_main_process:
            temporary.mkdir(parents=True, exist_ok=True)
        self.accelerator.wait_for_everyone()
        stage.save_state(temporary)
        torch.save(_random_states(), temporary / f"random-{self.accelerator.process_index}.pt")
        if self.accelerator.is_main_process:
            window: dict[str, float | Tensor] = {name: float(value) for name, value in state.window.items()}
            write_json(temporary / "loop.json", dataclasses.asdict(dataclasses.replace(state, window=window)))
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            replace_folder(temporary, final)
            recent = self.steps()[-self.keep :]
            for step in self.steps():
                if step not in recent and step != state.best_step:
                    remove_folder(self.path(step))
        self.accelerator.wait_for_everyone()

    def load(self, step: int, stage: Stateful) -> LoopState:
        """Restore the checkpoint of ``step``.

        Raises:
            AttnExtError: a file of the checkpoint is missing or damaged; the message names it.
        """
        folder = self.path(step)
        random_file = folder / f"random-{self.accelerator.process_index}.pt"
        for file in (folder / "loop.json", random_file):
            if not file.is_file():
                raise AttnExtError(
                    f"checkpoint {str(folder)!r} lacks {file.name!r}: delete it to continue from an earlier checkpoint"
                )
        state = LoopState(**read_json(folder / "loop.json"))
        stage.load_state(folder)
        _set_random_states(torch.load(random_file, weights_only=True))
        return state

    def clear(self) -> None:
        """Delete all checkpoints of the stage."""
        if self.accelerator.is_main_process:
            remove_folder(self.folder)
        self.accelerator.wait_for_everyone()


def _random_states() -> dict[str, Any]:
    # get_state returns this tuple unless legacy=False is given
    state = cast("tuple[str, np.ndarray, int, int, float]", np.random.get_state())
    kind, keys, position, has_gauss, gauss = state
    states: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _set_random_states(states: dict[str, Any]) -> None:
    random.setstate(states["python"])
    kind, keys, *rest = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
