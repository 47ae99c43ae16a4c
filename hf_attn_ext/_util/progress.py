"""A progress bar on stderr, disabled when stderr is not a terminal."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress


class Progress:
    """The progress of one stage: steps, losses, time left.

    Args:
        name: of the stage.
        total: number of steps.
        done: steps that are done already.
        shown: False on all processes but one.
    """

    def __init__(self, name: str, total: int, done: int = 0, shown: bool = True):
        self.bar = RichProgress(
            TextColumn("{task.description:<10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
            disable=not (shown and sys.stderr.isatty()),
        )
        self.task = self.bar.add_task(name, total=total, completed=done, note="")

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.bar.stop()

    def advance(self) -> None:
        self.bar.advance(self.task)

    def note(self, text: str) -> None:
        self.bar.update(self.task, note=text)

    def losses(self, values: dict[str, float]) -> None:
        self.note("  ".join(f"{name} {value:.4g}" for name, value in values.items()))
