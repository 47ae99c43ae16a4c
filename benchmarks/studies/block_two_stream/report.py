"""The report of ``block_two_stream.py``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies.common.results import (
    COLORS,
    emphasised,
    markdown,
    mean_loss,
    new_figure,
    over_seeds,
    shown,
    write_results,
)
from benchmarks.studies.common.texts import unigram_losses

TITLES = {"start": "before fine-tuning", "next": "next token"}
HEAD = ["attention", "trained for", "rate", "nats a token, as trained", "of a block's first token", "next token, nats"]
HEAD += ["tokens a second", "against generate()", "seeds"]


def report(results: list[dict[str, Any]], options: argparse.Namespace, settings: dict[str, Any], texts: Any) -> None:
    """Write and print what the runs came to."""
    control = unigram_losses(texts, len(texts.tokenizer))
    control[:, 0] = np.nan  # as for the others
    unigram = mean_loss(control)
    groups = grouped(results)
    legend = (
        f"Held-out text ({options.model}), {options.steps} steps of {options.batch_size} sequences each. "
        f"Rate: the best of {options.lr} for softmax on validation texts, after {options.tune_share:.0%} of the steps. "
        "±: standard deviation over seeds, or for one seed the bootstrap standard error over sequences (the runs share "
        "the text, so their differences are surer than that). The loss of blocks is over all tokens of a block, of "
        "which only the first is predicted from all that came before. Tokens a second: one text, by the clock, the "
        f"fastest of {options.repeats}; `block_generate`, or `generate()` with its cache."
    )
    write_results(
        Path(options.out),
        {"settings": settings, "unigram": unigram, "runs": results, "texts": str(texts)},
        [f"blocks: {texts}", "", *table(groups, unigram), "", legend],
        draw(groups, unigram["loss"]),
    )


def grouped(results: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """All seeds of each run, in order of attention."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for attention in dict.fromkeys(result["attention"] for result in results):
        for result in results:
            if result["attention"] == attention:
                groups.setdefault((attention, result["training"]), []).append(result)
    return groups


def losses_of(runs: list[dict[str, Any]], name: str) -> list[float]:
    """Return the loss of each run."""
    return [run[name]["loss"] for run in runs]


def table(groups: dict[tuple[str, str], list[dict[str, Any]]], unigram: dict[str, Any]) -> list[str]:
    """A row for each attention and training, and the control's."""
    rows = []
    for (attention, training), runs in groups.items():
        first, speeds = runs[0], [run.get("tokens_per_second") for run in runs]
        base = [run["tokens_per_second"] for run in groups[attention, "next"]]
        places = [run["by_place"][0] for run in runs]
        size = first["block_size"]
        rows.append(
            [
                emphasised(attention),
                TITLES.get(training) or f"blocks of {size}",
                "-" if first["rate"] is None else f"{first['rate']:g}",
                shown(losses_of(runs, "as_trained"), first["as_trained"]["standard_error"]),
                "-" if size is None or None in places else f"{np.mean(places):.3f}",
                shown(losses_of(runs, "next_token"), first["next_token"]["standard_error"]),
                "-" if None in speeds else shown(speeds, digits=1),
                "-" if None in speeds else f"{np.mean(speeds) / np.mean(base):.2f}x",
                str(len(runs)),
            ]
        )
    loss = shown([unigram["loss"]], unigram["standard_error"])
    rows.append(["unigram (control)", "-", "-", loss, "-", loss, "-", "-", "-"])
    return markdown(HEAD, rows)


def draw(groups: dict[tuple[str, str], list[dict[str, Any]]], unigram: float) -> Any:
    """Loss and speed over the block size, where 1 is next-token training and ``generate()``."""
    figure = new_figure(10, 4)
    left, right = figure.subplots(1, 2)
    sizes: set[int] = set()
    for color, attention in zip(COLORS * 9, dict.fromkeys(name for name, _ in groups), strict=False):
        runs = {kind: found for (name, kind), found in groups.items() if name == attention and kind != "start"}
        lines = sorted((found[0]["block_size"] or 1, kind != "next", found) for kind, found in runs.items())
        at = [size for size, _, _ in lines]
        sizes |= set(at)
        spread = [
            over_seeds(losses_of(found, "as_trained"), found[0]["as_trained"]["standard_error"])
            for _, _, found in lines
        ]
        means, errors = zip(*spread, strict=True)
        left.errorbar(at, means, yerr=errors, color=color, marker="o", capsize=3, label=attention)
        firsts = [[run["by_place"][0] for run in found] for _, _, found in lines]
        firsts = [np.nan if None in found else np.mean(found) for found in firsts]
        left.plot(at, firsts, color=color, linestyle=":", marker=".", label=f"{attention}, first of a block")
        speeds = [np.mean([run["tokens_per_second"] for run in found]) for _, _, found in lines]
        right.plot(at, speeds, color=color, marker="o", label=attention)
    left.axhline(unigram, color="#8a8f98", linestyle="--", label="unigram")
    left.set_ylabel("nats a token, as trained")
    right.set_ylabel("tokens a second, one text")
    right.set_ylim(bottom=0)
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set_xticks(sorted(sizes), [str(size) for size in sorted(sizes)])
        axis.set_xlabel("block size (1: next token, generate())")
        axis.legend(fontsize=8)
    return figure
