"""``hf-attn-ext probe``: the context similarity of every head, over files of texts, as tables, figures and a report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from hf_attn_ext.errors import AttnExtError


def probe(
    model: Annotated[
        str | None, typer.Argument(help="A model's folder, converted or not, or a hub id; or set in the YAML file.")
    ] = None,
    more: Annotated[list[str] | None, typer.Argument(metavar="[FILE]...", help="More files of texts.")] = None,
    texts: Annotated[
        list[str] | None,
        typer.Option(
            "--texts", help="A file of texts: txt (one text per line), json, jsonl, csv, tsv, parquet; repeatable."
        ),
    ] = None,
    out: Annotated[str | None, typer.Option("--out", help="The folder that all results are written to.")] = None,
    config: Annotated[Path | None, typer.Option("--config", help="A YAML file, see configs/probe/.")] = None,
    words: Annotated[int | None, typer.Option("--words", help="Cut documents into texts of this many words.")] = None,
    tokens: Annotated[
        int | None, typer.Option("--tokens", help="Cut documents into texts of exactly this many tokens.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Probe a random sample of this many texts.")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="Texts per forward pass; default 8.")] = None,
    max_length: Annotated[
        int | None, typer.Option("--max-length", help="Most tokens per text; default: what the model takes.")
    ] = None,
    truncation: Annotated[
        bool | None, typer.Option("--truncation/--no-truncation", help="Cut longer texts instead of stopping.")
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option("--layers", help="Layer numbers or module name patterns, separated by commas; default: all."),
    ] = None,
    heads: Annotated[
        str | None, typer.Option("--heads", help="Head numbers, separated by commas; default: all.")
    ] = None,
    projections: Annotated[
        str | None,
        typer.Option(
            "--projections",
            help="For a model outside the attention interface: patterns of its output projections.",
        ),
    ] = None,
    num_heads: Annotated[
        int | None,
        typer.Option("--num-heads", help="Heads per layer, for --projections, if the configuration does not say."),
    ] = None,
    percents: Annotated[
        str | None,
        typer.Option("--percents", help="Percentages of pairs that count as high, separated by commas; default 1,2,5."),
    ] = None,
    sample: Annotated[
        float | None, typer.Option("--sample", help="Share of texts for controls and attention maps; default 1/16.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the random samples; default 0.")] = None,
    browse: Annotated[int | None, typer.Option("--browse", help="Texts in the head browser; default 3.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="field=value, overrides the YAML file; repeatable.")
    ] = None,
) -> None:
    """Measure the context similarity of every attention head over a corpus.

    Writes statistics.json, statistics.parquet, figures/ and report.html. To continue a stopped run, repeat the command.
    Two processes on a CPU:
    ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 -m hf_attn_ext.cli probe ...
    """
    from hf_attn_ext.probe.config import load_probe_config

    given: dict[str, Any] = {
        "model": model,
        "texts": [*(texts or []), *(more or [])] or None,
        "out": out,
        "words": words,
        "tokens": tokens,
        "limit": limit,
        "batch_size": batch_size,
        "max_length": max_length,
        "truncation": truncation,
        "layers": _parts(layers, _number_or_name),
        "heads": _parts(heads, lambda part: _number("--heads", int, part)),
        "projections": _parts(projections, str),
        "num_heads": num_heads,
        "percents": _parts(percents, lambda part: _number("--percents", float, part)),
        "sample": sample,
        "seed": seed,
        "browse": browse,
    }
    chosen = load_probe_config(config, settings or [], {n: v for n, v in given.items() if v is not None})

    from hf_attn_ext.cli.models import load_any, load_tokenizer, quiet

    quiet()
    loaded = load_any(chosen.model, head=False)
    tokenizer = load_tokenizer(chosen.model)

    from hf_attn_ext.probe import run_probe
    from hf_attn_ext.probe.report.findings import VERDICTS, findings, gaps

    run = run_probe(loaded, tokenizer, chosen)
    if int(os.environ.get("RANK", "0")):
        return
    counts = run.statistics.counts
    typer.echo(f"{counts['texts']:,} texts, {counts['tokens']:,} tokens, {counts['pairs']:,} pairs")
    for finding in findings(run.statistics):
        typer.echo(f"- {finding.text} [{VERDICTS[finding.verdict]}]")
    for note in gaps(run.statistics):
        typer.echo(f"note: {note}")
    typer.echo(f"report: {run.report}")


def _parts(text: str | None, read: Any) -> list[Any] | None:
    return None if text is None else [read(part.strip()) for part in text.split(",")]


def _number_or_name(part: str) -> int | str:
    return int(part) if part.isdecimal() else part


def _number(option: str, kind: type, part: str) -> Any:
    try:
        return kind(part)
    except ValueError:
        raise AttnExtError(f"{option} must be numbers with commas, got {part!r}") from None
