"""``hf-attn-ext list``: the kernels and model types that this installation knows."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import AttnExtError, suggest

TOPICS = ("kernels", "models")


def list_names(
    topic: Annotated[str | None, typer.Argument(help="`kernels` or `models`; default: both.")] = None,
) -> None:
    """List the kernels and the model types, one a line."""
    if topic is not None and topic not in TOPICS:
        raise AttnExtError(f"there is nothing to list under {topic!r}: kernels or models.{suggest(topic, TOPICS)}")
    if topic != "models":
        from ..attention import list_kernels

        _print("kernels", list_kernels(), heading=topic is None)
    if topic != "kernels":
        from ..integration import supported_model_types

        _print("models", supported_model_types(), heading=topic is None)


def _print(title: str, names: list[str], heading: bool) -> None:
    if heading:
        typer.echo(f"{title}:")
    for name in names:
        typer.echo(f"  {name}" if heading else name)
