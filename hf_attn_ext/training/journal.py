"""``metrics.jsonl`` and accelerate's trackers: what a run measured, one line a record."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accelerate import Accelerator

from hf_attn_ext._util.files import write_text


class Journal:
    """Appends records to a JSONL file on the main process, and sends the same numbers to the trackers.

    A record is ``{"stage": ..., "step": ..., "kind": "train" | "eval" | "final", ...numbers}``. A resumed stage
    deletes the records that came after its checkpoint, so no step is recorded twice.

    Args:
        path: the JSONL file.
        accelerator: identifies the main process and holds the trackers.
    """

    def __init__(self, path: Path, accelerator: Accelerator):
        self.path, self.accelerator = path, accelerator
        self.offset = 0  # steps of the stages before this one: trackers want one rising axis

    def write(self, stage: str, step: int, kind: str, values: dict[str, Any]) -> None:
        """Append one record."""
        if self.accelerator.is_main_process:
            record = {"stage": stage, "step": step, "kind": kind, **values}
            clean = {k: (None if isinstance(v, float) and not math.isfinite(v) else v) for k, v in record.items()}
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(clean) + "\n")
        if self.accelerator.trackers:
            numbers = {f"{stage}/{kind}/{k}": v for k, v in values.items() if isinstance(v, (int, float))}
            self.accelerator.log(numbers, step=self.offset + step)

    def rewind(self, stage: str, step: int) -> None:
        """Drop the records of ``stage`` after ``step``, and a last line cut short by a kill."""
        if not self.accelerator.is_main_process or not self.path.exists():
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8").splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue
            late = record["step"] > step or record["kind"] == "final"
            if not (record["stage"] == stage and late):
                kept.append(line)
        write_text(self.path, "".join(line + "\n" for line in kept))


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return dotted names with plain values, as trackers want them."""
    plain: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            plain.update(flat(value, f"{prefix}{key}."))
        else:
            plain[f"{prefix}{key}"] = value if isinstance(value, (int, float, str, bool)) else str(value)
    return plain
