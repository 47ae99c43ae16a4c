"""The folder of a probe's run: its settings, and the saved state of each process."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from hf_attn_ext._util.files import as_path, atomic_write
from hf_attn_ext._util.run_folder import check_run_folder, claim_run_folder
from hf_attn_ext.errors import AttnExtError, short

MARKER = "probe.json"
_PARTS = ("sums", "plain")
_HEAD = ("settings", "statistics", "counts", "origins", "model")


class RunFolder:
    """The files of one run: of process number ``process`` of ``processes``, in a folder that need not exist."""

    def __init__(self, root: str | Path, process: int, processes: int) -> None:
        self.root, self.processes = as_path(root), processes
        self.state = self.root / "state" / f"{process}-of-{processes}.npz"

    def claim(self, identity: dict[str, Any]) -> None:
        """Take the folder for this run; ``identity`` is all that statistics depend on, the same in a resumed run."""
        check_run_folder(self.root, MARKER, identity)
        claim_run_folder(self.root, MARKER, identity)
        self.state.parent.mkdir(exist_ok=True)

    def save(self, state: dict[str, Any], done: int) -> None:
        """Write a probe's ``state_dict`` and the number of this process's texts that it has seen."""
        arrays = {f"{part}:{name}": value for part in _PARTS for name, value in state[part].items()}
        head = json.dumps({"done": done, **{name: state[name] for name in _HEAD}})
        with atomic_write(self.state) as temporary, temporary.open("wb") as file:
            np.savez(file, head=np.array(head), **arrays)

    def load(self) -> tuple[dict[str, Any] | None, int]:
        """Return the last saved state, or None, and the number of texts that it has seen."""
        if not self.state.is_file():
            return None, 0
        try:
            with np.load(self.state, allow_pickle=False) as file:
                head = json.loads(str(file["head"]))
                state: dict[str, Any] = {**{name: head[name] for name in _HEAD}, **{part: {} for part in _PARTS}}
                for name in file.files:
                    part, colon, key = name.partition(":")
                    if colon:
                        state[part][key] = file[name]
                return state, int(head["done"])
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise AttnExtError(
                f"state {str(self.state)!r} is damaged ({short(str(error))}); delete the folder to start anew"
            ) from error
