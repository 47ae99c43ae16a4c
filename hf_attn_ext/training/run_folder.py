"""The run's folder: what belongs there, which phases are done, and whether it may be gone on with."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator

from hf_attn_ext._util.files import TEMPORARY, atomic_write, read_json, remove_folder, sweep, write_json
from hf_attn_ext._util.processes import check_on_main
from hf_attn_ext.errors import AttnExtError

from .config import DistillConfig, difference

MARKER = "distill.json"

# may change between a run and its resumption: they don't touch a single weight
_FREE = {"output": ("folder", "log_every", "progress"), "tracking": ("trackers", "project")}


def _fixed(config: dict[str, Any]) -> dict[str, Any]:
    kept = {k: dict(v) if isinstance(v, dict) else v for k, v in config.items()}
    for section, fields in _FREE.items():
        for field in fields:
            kept[section].pop(field, None)
    kept.pop("processes", None)
    for stage in ("teacher", "stage1", "stage2"):
        kept[stage].pop("keep_checkpoints", None)
    return kept


@dataclasses.dataclass
class RunFolder:
    """Paths of a run, and its finished phases.

    A phase is finished when ``phases/<name>.json`` exists; it is written last, after the weights it speaks of.
    """

    root: Path
    accelerator: Accelerator

    @classmethod
    def open(cls, config: DistillConfig, accelerator: Accelerator) -> RunFolder:
        """Look whether the run may use its folder; nothing is written yet.

        Raises:
            AttnExtError: the folder holds something else, or a run with another configuration (the field is named).
        """
        root = Path(config.output.folder)
        check_on_main(lambda: _check(root, config, accelerator.num_processes), accelerator)
        return cls(root, accelerator)

    def claim(self, config: DistillConfig) -> None:
        """Create the folder with the configuration in it, or clean up what a killed run left half-written."""
        if self.accelerator.is_main_process:
            self.root.mkdir(parents=True, exist_ok=True)
            for folder in (self.root, self.root / "phases", self.root / "checkpoints", self.root / "logits"):
                sweep(folder)
            if not (self.root / MARKER).is_file():
                content = {"config": config.to_dict(), "processes": self.accelerator.num_processes}
                write_json(self.root / MARKER, content)
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
        return self.root / "results.json"

    @property
    def journal(self) -> Path:
        return self.root / "metrics.jsonl"

    def checkpoints(self, stage: str) -> Path:
        return self.root / "checkpoints" / stage

    def weights(self, phase: str) -> Path:
        """Where a phase keeps its weights: a file (feature maps) or a folder (a whole model)."""
        return self.root / "phases" / phase

    def result(self, phase: str) -> dict[str, Any] | None:
        """Return what a finished phase measured, or ``None``."""
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
        path = self.root / "logits" / f"{name}.npy"
        return np.load(path) if path.is_file() else None

    def tidy(self) -> None:
        """Delete what only a resumption needed."""
        if self.accelerator.is_main_process:
            for name in ("checkpoints", "phases"):
                remove_folder(self.root / name)
            sweep(self.root)
        self.accelerator.wait_for_everyone()


def _check(root: Path, config: DistillConfig, processes: int) -> None:
    marker = root / MARKER
    if root.exists() and not root.is_dir():
        raise AttnExtError(f"field 'output.folder': {str(root)!r} is a file")
    if marker.is_file():
        known = read_json(marker)
        change = difference(_fixed(known["config"]), _fixed(config.to_dict()))
        if change is None and known["processes"] != processes:
            change = ("number of processes", known["processes"], processes)
        if change:
            field, before, after = change
            raise AttnExtError(
                f"output folder {str(root)!r} holds a run with another configuration: {field} was {before!r}, is now "
                f"{after!r}; choose another output.folder, or delete this one"
            )
        return
    # a run that was killed while it claimed the folder has left only temporary files
    names = (path.name for path in root.iterdir()) if root.is_dir() else ()
    others = [name for name in names if not name.startswith(TEMPORARY)]
    if others:
        first = sorted(others)[0]
        raise AttnExtError(
            f"output folder {str(root)!r} holds something else ({first!r}); name a new or empty folder in output.folder"
        )
