"""``hf-attn-ext distill``: the same run as ``accelerate launch -m hf_attn_ext.distill``, in one process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def distill(
    config: Annotated[Path, typer.Option("--config", help="A YAML file, see configs/distill/.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="section.field=value, wins over the file; repeatable.")
    ] = None,
) -> None:
    """Convert a model and train its kernels: attention transfer, then fine-tuning on the task.

    The model's card is written at the end. To continue a stopped run, repeat the command.
    """
    from hf_attn_ext.training import distill as run
    from hf_attn_ext.training import load_config, results_table

    chosen = load_config(config, settings or [])

    from hf_attn_ext.cli.models import quiet

    quiet()
    result = run(chosen)

    from rich.console import Console

    from hf_attn_ext.hub.card import write_card

    card = write_card(result.model_folder, result.results)
    Console(width=None if sys.stdout.isatty() else 140).print(results_table(result.results))
    typer.echo(f"model: {result.model_folder}\ncard: {card}")
