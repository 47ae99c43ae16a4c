"""The folder of a distillation run: its files, and which phases are finished."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator

from hf_attn_ext._util.files import atomic_write, read_json, remove_folder, sweep, write_json
from hf_attn_ext._util.processes import check_on_main
from hf_attn_ext._util.run_folder import check_run_folder, claim_run_folder

from .config import DistillConfig

MARKER = "distill.json"

# These may change between a run and its resumption: they change no weight.
_FREE = {"output": ("folder", "log_every", "progress"), "tracking": ("trackers", "project")}


def _fixed(content: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a marker file that must stay the same for a run to be resumed."""
    kept = {k: dict(v) if isinstance(v, dict) else v for k, v in content["config"].items()}
    for section, fields in _FREE.items():
        for field in fields:
            kept[section].pop(field, None)
    kept.pop("processes", None)
    for stage in ("teacher", "stage1", "stage2"):
        kept[stage].pop("keep_checkpoints", None)
    return {**kept, "number of processes": content["processes"]}


def _identity(config: DistillConfig, accelerator: Accelerator) -> dict[str, Any]:
    return {"config": config.to_dict(), "processes": accelerator.num_processes}


@dataclasses.dataclass
class RunFolder:
    """Paths of a run, and its finished phases.

    A phase is finished when ``phases/<name>.json`` exists; it is written last, after the weights it speaks of.
    """

    root: Path
    accelerator: Accelerator

    @classmethod
    def open(cls, config: DistillConfig, accelerator: Accelerator) -> RunFolder:
        """Check that the run may use its folder; nothing is written yet.

        Raises:
            AttnExtError: the folder holds something else, or a run with other settings (the field is named).
        """
        root = Path(config.output.folder)
        identity = _identity(config, accelerator)
        check_on_main(lambda: check_run_folder(root, MARKER, identity, _fixed), accelerator)
        return cls(root, accelerator)

    def claim(self, config: DistillConfig) -> None:
        """Create the folder with the configuration in it, or delete what a killed run left unfinished."""
        if self.accelerator.is_main_process:
            claim_run_folder(self.root, MARKER, _identity(config, self.accelerator))
        self.accelerator.wait_for_everyone()

    @property
    def model(self) -> Path:
        """The converted and trained model."""
        return self.root / "model"

    @property
    def teacher(self) -> Path:
        """The teacher fine-tuned in this run."""
        return self.root / "teacher"

    @property
    def results(self) -> Path:
        """The file of all results."""
        return self.root / "results.json"

    @property
    def journal(self) -> Path:
        """The file with one record per logged step."""
        return self.root / "metrics.jsonl"

    def checkpoints(self, stage: str) -> Path:
        """Return the folder of a stage's checkpoints."""
        return self.root / "checkpoints" / stage

    def weights(self, phase: str) -> Path:
        """Return the path of a phase's weights: a file (feature maps) or a folder (a whole model)."""
        return self.root / "phases" / phase

    def result(self, phase: str) -> dict[str, Any] | None:
        """Return the results of a finished phase, or ``None``."""
        path = self.root / "phases" / f"{phase}.json"
        return read_json(path) if path.is_file() else None

    def finish(self, phase: str, result: dict[str, Any]) -> dict[str, Any]:
        """Mark a phase as finished."""
        if self.accelerator.is_main_process:
            write_json(self.root / "phases" / f"{phase}.json", result)
        self.accelerator.wait_for_everyone()
        return result

    def save_logits(self, name: str, logits: np.ndarray) -> None:
        """Keep logits (of a language model: each sequence's loss and tokens) in ``logits/<name>.npy``."""
        if self.accelerator.is_main_process:
            path = self.root / "logits" / f"{name}.npy"
            path.parent.mkdir(exist_ok=True)
            with atomic_write(path) as temporary, temporary.open("wb") as file:
                np.save(file, logits)
        self.accelerator.wait_for_everyone()

    def logits(self, name: str) -> np.ndarray | None:
        """Return the logits that :meth:`save_logits` wrote, or None."""
        path = self.root / "logits" / f"{name}.npy"
        return np.load(path) if path.is_file() else None

    def tidy(self) -> None:
        """Delete what only a resumption needed."""
        if self.accelerator.is_main_process:
            for name in ("checkpoints", "phases"):
                remove_folder(self.root / name)
            sweep(self.root)
        self.accelerator.wait_for_everyone()
