"""``hf-attn-ext list``: the kernels, masks, statistics and model types that this installation knows."""

from __future__ import annotations

from typing import Annotated

import typer

from hf_attn_ext.errors import AttnExtError, suggest

TOPICS = ("kernels", "masks", "statistics", "models")


def list_names(
    topic: Annotated[str | None, typer.Argument(help="kernels, masks, statistics or models; default: all.")] = None,
) -> None:
    """List the kernels, the masks, the probe's statistics and the model types, one per line."""
    if topic is not None and topic not in TOPICS:
        near = suggest(topic, TOPICS)
        raise AttnExtError(f"there is nothing to list under {topic!r}: kernels, masks, statistics or models.{near}")
    if topic in (None, "kernels"):
        from hf_attn_ext.attention import list_kernels

        _print("kernels", list_kernels(), heading=topic is None)
    if topic in (None, "masks"):
        from hf_attn_ext.hasse.masks import list_masks

        _print("masks", list_masks(), heading=topic is None)
    if topic in (None, "statistics"):
        from hf_attn_ext.probe.statistics import list_statistics

        _print("statistics", list_statistics(), heading=topic is None)
    if topic in (None, "models"):
        from hf_attn_ext.integration import supported_model_types

        _print("models", supported_model_types(), heading=topic is None)


def _print(title: str, names: list[str], heading: bool) -> None:
    if heading:
        typer.echo(f"{title}:")
    for name in names:
        typer.echo(f"  {name}" if heading else name)
