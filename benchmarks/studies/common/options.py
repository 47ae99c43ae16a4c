"""The command line of a study: its parser, lists of numbers and names, bounds, and errors in one line."""

from __future__ import annotations

import argparse
import functools
import math
import sys
from collections.abc import Callable, Collection
from typing import Any

from accelerate import Accelerator

from hf_attn_ext.cli.models import quiet
from hf_attn_ext.errors import AttnExtError, suggest


def make_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser that shows ``description``, the docstring of a study, as it is."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def report_errors(main: Callable[[list[str] | None], int | None]) -> Callable[..., int]:
    """Return ``main`` with an exit code: 0, or what it returns, or 2 after one line on stderr for an AttnExtError."""

    @functools.wraps(main)
    def run(arguments: list[str] | None = None) -> int:
        try:
            return main(arguments) or 0
        except AttnExtError as error:
            print("error: " + " ".join(str(error).split()), file=sys.stderr)
            return 2

    return run


def say(study: str, text: str) -> None:
    """Print a line of progress to stderr."""
    print(f"[{study}] {text}", file=sys.stderr, flush=True)


def seeds_of(text: str) -> list[int]:
    """Read ``--seeds``: whole numbers with commas, each once."""
    return numbers_of(text, "--seeds")


def numbers_of(text: str, option: str) -> list[int]:
    """Read the value of an option: whole numbers from 0 with commas, each once."""
    parts = text.split(",")
    wrong = next((part for part in parts if not (part.isascii() and part.isdigit())), None)
    if wrong is not None:
        raise AttnExtError(f"{option} takes whole numbers with commas, got {wrong!r}")
    return each_once([int(part) for part in parts], option)


def rates_of(text: str) -> list[float]:
    """Read ``--lr``: numbers above 0 with commas, each once."""
    rates = []
    for part in text.split(","):
        try:
            rate = float(part)
        except ValueError:
            rate = math.nan
        if not 0 < rate < math.inf:
            raise AttnExtError(f"--lr takes numbers above 0 with commas, got {part!r}")
        rates.append(rate)
    return each_once(rates, "--lr")


def known_names(names: Collection[Any], known: Collection[Any], what: str) -> list[Any]:
    """Return ``names``; raise AttnExtError for one that is not in ``known``."""
    words = [str(name) for name in known]
    for name in names:
        if name not in known:
            raise AttnExtError(f"unknown {what} {name!r}.{suggest(str(name), words)} Known: {', '.join(words)}")
    return list(names)


def each_once(values: list[Any], option: str) -> list[Any]:
    """Return ``values``; raise AttnExtError for one that comes twice."""
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise AttnExtError(
            f"{option} names {twice:g} twice" if isinstance(twice, float) else f"{option} names {twice} twice"
        )
    return values


def check_least(options: argparse.Namespace, **least: int) -> None:
    """Raise AttnExtError for an option below its bound; None, an option that was not given, has no bound."""
    for name, bound in least.items():
        value = getattr(options, name)
        if value is not None and value < bound:
            raise AttnExtError(f"--{name.replace('_', '-')} must be at least {bound}, got {value}")


def check_numbers(options: argparse.Namespace) -> None:
    """Raise AttnExtError for a number that is not above 0, naming its option."""
    for name, value in vars(options).items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, int) and value < 1:
            raise AttnExtError(f"{option} must be at least 1, got {value}")
        if isinstance(value, float) and not (0 < value < float("inf") or (name, value) == ("weight_decay", 0)):
            raise AttnExtError(f"{option} must be a number above 0, got {value}")
    if getattr(options, "tune_share", 0) > 1:
        raise AttnExtError(f"--tune-share must be at most 1, got {options.tune_share}")


def check_sizes(options: argparse.Namespace) -> None:
    """Raise AttnExtError for sizes of a small model that do not fit together."""
    if options.hidden % options.heads:
        raise AttnExtError(f"--hidden {options.hidden} is no multiple of --heads {options.heads}")
    if options.vocabulary < 300:
        raise AttnExtError(f"--vocabulary {options.vocabulary} is too small: 256 bytes, and some words")


def one_process() -> Any:
    """Return an accelerator in float32, with the messages of Transformers turned off."""
    quiet()
    accelerator = Accelerator(mixed_precision="no")
    if accelerator.num_processes > 1:
        raise AttnExtError(f"this study runs in one process, and {accelerator.num_processes} were started")
    return accelerator
