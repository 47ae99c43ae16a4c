"""``accelerate launch -m hf_attn_ext.distill --config FILE``: convert a model and train it.

A thin entry point for :func:`hf_attn_ext.training.distill`. Two processes on CPU:
``ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 -m hf_attn_ext.distill --config FILE``.

The module can also be called like that function: ``hax.distill(config)``.
"""

from __future__ import annotations

import argparse
import os
import sys
import types
from collections.abc import Sequence
from typing import Any

from .errors import AttnExtError


class _CallableModule(types.ModuleType):
    """A module that can be called: the name ``hf_attn_ext.distill`` is both the command and the function."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call :func:`hf_attn_ext.training.distill`."""
        from .training import distill

        return distill(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit code: 0, or 2 for a mistake of the user, with one line on stderr.

    Example:
        >>> main(["--config", "no-such-file.yaml"])  # doctest: +SKIP
        2
    """
    parser = argparse.ArgumentParser(prog="python -m hf_attn_ext.distill", description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, metavar="FILE", help="YAML file, see configs/distill/")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.FIELD=VALUE",
        help="a setting that overrides the file; repeatable",
    )
    options = parser.parse_args(arguments)

    from rich.console import Console

    from .training import distill, load_config, results_table

    try:
        result = distill(load_config(options.config, options.set))
    except AttnExtError as error:
        print("error: " + " ".join(str(error).split()), file=sys.stderr, flush=True)
        return 2
    if os.environ.get("RANK", "0") == "0":
        console = Console(width=None if sys.stdout.isatty() else 140)
        console.print(results_table(result.results))
        console.print(f"model: {result.model_folder}", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
