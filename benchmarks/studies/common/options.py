"""Options that both commands check alike, and the settings that a folder of runs has once and for all."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hf_attn_ext.errors import AttnExtError


def seeds_of(text: str) -> list[int]:
    """Read ``--seeds``: whole numbers with commas, each once."""
    return numbers_of(text, "--seeds")


def numbers_of(text: str, option: str) -> list[int]:
    """Read the value of an option: whole numbers from 0 with commas, each once."""
    parts = text.split(",")
    wrong = next((part for part in parts if not (part.isascii() and part.isdigit())), None)
    if wrong is not None:
        raise AttnExtError(f"{option} takes whole numbers with commas, got {wrong!r}")
    numbers = [int(part) for part in parts]
    twice = next((number for number in numbers if numbers.count(number) > 1), None)
    if twice is not None:
        raise AttnExtError(f"{option} names {twice} twice")
    return numbers


def check_numbers(options: argparse.Namespace) -> None:
    """Raise AttnExtError for a number that is not above 0, naming its option."""
    for name, value in vars(options).items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, int) and value < 1:
            raise AttnExtError(f"{option} must be at least 1, got {value}")
        if isinstance(value, float) and not (0 < value < float("inf") or (name, value) == ("weight_decay", 0)):
            raise AttnExtError(f"{option} must be a number above 0, got {value}")


def check_sizes(options: argparse.Namespace) -> None:
    if options.hidden % options.heads:
        raise AttnExtError(f"--hidden {options.hidden} is no multiple of --heads {options.heads}")
    if options.vocabulary < 300:
        raise AttnExtError(f"--vocabulary {options.vocabulary} is too small: 256 bytes, and some words")


def settings_of(options: argparse.Namespace, chosen: tuple[str, ...]) -> dict[str, Any]:
    """All options but those that only choose which runs are made, and where."""
    return {name: value for name, value in vars(options).items() if name not in (*chosen, "out", "seeds")}


def claim(folder: Path, settings: dict[str, Any]) -> None:
    """Write ``settings.json``; raise AttnExtError where the folder's runs had others, or nothing can be written."""
    from hf_attn_ext._util.files import read_json, write_json

    path = folder / "settings.json"
    known = read_json(path) if path.is_file() else settings
    for field in {**known, **settings}:
        if known.get(field) != settings.get(field):
            raise AttnExtError(
                f"{folder} holds a run with another {field}: {known.get(field)!r}, not {settings.get(field)!r}; "
                "choose another --out"
            )
    try:
        write_json(path, settings)
    except OSError as error:
        raise AttnExtError(f"cannot write into --out, {str(folder)!r}: {error.strerror or error}") from None


def one_process() -> Any:
    """An accelerator in float32, with the host's messages off."""
    from accelerate import Accelerator
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    accelerator = Accelerator(mixed_precision="no")
    if accelerator.num_processes > 1:
        raise AttnExtError(f"this example runs in one process, and {accelerator.num_processes} were started")
    return accelerator
