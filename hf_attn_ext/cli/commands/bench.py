"""``hf-attn-ext bench``: run the speed benchmarks of a source checkout, ``python -m benchmarks.speed``."""

from __future__ import annotations

import importlib
import sys

import typer

from hf_attn_ext.errors import AttnExtError

# All words belong to the benchmarks' own command line, ``--help`` too.
PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


def bench(context: typer.Context) -> None:
    """Measure speed and memory; needs a source checkout, in whose root the command runs.

    The benchmarks are not part of the installed package.
    """
    sys.path.insert(0, "")
    try:
        commands = importlib.import_module("benchmarks.speed.commands")
    except ModuleNotFoundError as error:
        if error.name not in ("benchmarks", "benchmarks.speed", "benchmarks.speed.commands"):
            raise
        raise AttnExtError(
            "the benchmarks are not part of the installed package; run this command in the root of a source checkout"
        ) from None
    finally:
        sys.path.pop(0)
    commands.app(args=context.args, prog_name="hf-attn-ext bench", standalone_mode=False)
