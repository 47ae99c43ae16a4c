"""``hf-attn-ext card``: write a converted model's card from what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def card(
    folder: Annotated[Path, typer.Argument(help="A converted model's folder.")],
    results: Annotated[
        Path | None,
        typer.Option("--results", help="results.json of a run; default: the one in the folder or above it."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Where to write; default: README.md in the folder.")] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the card; write nothing.")] = False,
) -> None:
    """Write the model card: base model, kernel, measured numbers, how to load it, limits."""
    from hf_attn_ext._util.files import read_json_object
    from hf_attn_ext.hub.card import render_card, write_card
    from hf_attn_ext.hub.files import check_folder

    path, config = check_folder(folder)
    # A run keeps its model in RUN/model and its results in RUN/results.json.
    near = [path / "results.json", path.resolve().parent / "results.json"]
    source = results or next((file for file in near if file.is_file()), None)
    measured = read_json_object(source) if source else {}
    if show:
        typer.echo(render_card(config, measured))
        return
    written = write_card(path, measured, out=out)
    typer.echo(f"{written}{'' if measured else ' (without measured numbers: no results.json was given)'}")
