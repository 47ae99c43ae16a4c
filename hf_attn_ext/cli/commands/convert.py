"""``hf-attn-ext convert``: swap the attention of a model and save the result."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from hf_attn_ext.errors import AttnExtError


def convert(
    model: Annotated[str, typer.Argument(help="A model's folder, or its hub id.")],
    out: Annotated[Path, typer.Option("--out", help="The folder to write; must not exist, or be empty.")],
    kernel: Annotated[str, typer.Option("--kernel", help="See `hf-attn-ext list kernels`.")] = "flexformer_p",
    num_features: Annotated[int, typer.Option("--num-features", help="Frequencies or projections per head.")] = 64,
    options: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="An option of the kernel's class; repeatable."),
    ] = None,
    layers: Annotated[str, typer.Option("--layers", help="`all`, or numbers from 0: `0,2`.")] = "all",
    seed: Annotated[int, typer.Option("--seed", help="Determines the kernels' initial values.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace a converted model at --out.")] = False,
) -> None:
    """Swap a model's softmax attention for a linear kernel and save it.

    The kernels are untrained afterwards: train them with `hf-attn-ext distill`.
    """
    from hf_attn_ext._util.files import new_folder
    from hf_attn_ext.cli.output import check_output

    chosen = parse_layers(layers)
    check_output(out, force)

    from hf_attn_ext._util.settings import apply_overrides
    from hf_attn_ext.config import AttnExtConfig

    kernel_options = apply_overrides({}, options or (), flag="--option", form="NAME=VALUE")
    config = AttnExtConfig(
        kernel=kernel, num_features=num_features, layers=chosen, seed=seed, kernel_options=kernel_options
    )

    from hf_attn_ext.cli.models import load_model, load_tokenizer, quiet, read_config
    from hf_attn_ext.hub.card import write_card
    from hf_attn_ext.integration import convert as swap
    from hf_attn_ext.integration import converted_layers

    quiet()
    before = getattr(read_config(model), "attn_ext", None)
    if isinstance(before, dict):
        raise AttnExtError(
            f"{model!r} is converted already (kernel {before.get('kernel')!r}, layers "
            f"{before.get('layers') or 'all'}); convert the base model instead"
        )
    loaded, missing = load_model(model)
    tokenizer = load_tokenizer(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        converted = swap(loaded, config)
    count = len(converted_layers(converted))
    with new_folder(out) as folder:
        converted.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        write_card(folder, {}, base_model=model)
    for warning in caught:
        if issubclass(warning.category, UserWarning):
            typer.echo(f"note: {warning.message}", err=True)
    if missing:
        typer.echo(f"note: {len(missing)} parameters are not in {model!r} and are new: {missing[0]}, ...", err=True)
    if tokenizer is None:
        typer.echo(f"note: {model!r} has no tokenizer", err=True)
    typer.echo(f"{out}: {type(converted).__name__}, {count} layers with {kernel}, {num_features} features, untrained")


def parse_layers(text: str) -> list[int] | None:
    """Return the layer numbers in ``"0,2"``, or None for ``"all"``.

    Raises:
        AttnExtError: anything else.
    """
    if text.strip().casefold() == "all":
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise AttnExtError(f"--layers must be 'all' or whole numbers such as '0,2', got {text!r}") from None
