"""The report of all runs: a table, a figure, and the numbers behind them."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.studies.common.results import (
    BLUE,
    GREEN,
    GREY,
    OURS,
    RED,
    emphasised,
    markdown,
    new_figure,
    write_results,
)
from hf_attn_ext.training.metrics import difference_error

from .control import control_name


@dataclasses.dataclass
class Difference:
    """Nats a token between two models by seed, and the bootstrap standard error of the mean over sequences."""

    by_seed: dict[int, float]
    error: float

    @property
    def mean(self) -> float:
        """Return the mean over seeds."""
        return float(np.mean(list(self.by_seed.values())))

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ± {self.error:.4f}"


@dataclasses.dataclass
class Row:
    """All seeds of one model: their scores, and where their losses of every sequence are."""

    name: str
    runs: list[dict[str, Any]]
    folder: Path

    @property
    def perplexities(self) -> np.ndarray:
        """Return the perplexity of each seed."""
        return np.array([run["scores"]["perplexity"] for run in self.runs])

    @property
    def loss(self) -> float:
        """Return the mean loss over seeds."""
        return float(np.mean([run["scores"]["loss"] for run in self.runs]))

    @property
    def spread(self) -> float:
        """Standard deviation over seeds; of one seed the bootstrap standard error over sequences."""
        if len(self.runs) > 1:
            return float(self.perplexities.std(ddof=1))
        return self.runs[0]["standard_errors"]["perplexity"]

    def beyond(self, other: Row, seeds: Iterable[int] | None = None) -> Difference:
        """Nats a token more than ``other`` has, on the same tokens, over ``seeds``; None: those that both have."""
        if seeds is None:
            theirs = {run["seed"] for run in other.runs}
            seeds = [run["seed"] for run in self.runs if run["seed"] in theirs]
        pairs = {seed: (self.losses(seed), other.losses(seed)) for seed in seeds}
        by_seed = {
            seed: float(mine[:, 0].sum() / mine[:, 1].sum() - its[:, 0].sum() / its[:, 1].sum())
            for seed, (mine, its) in pairs.items()
        }
        mine, its = (np.sum(rows, axis=0) for rows in zip(*pairs.values(), strict=True))
        return Difference(by_seed, difference_error(None, mine, its, "language_modeling", "loss"))

    def losses(self, seed: int) -> np.ndarray:
        """(S, 2): the summed loss of every test sequence, and its tokens."""
        return np.load(self.folder / self.name / f"seed-{seed}" / "losses.npy")


def table(rows: list[Row], options: argparse.Namespace) -> list[str]:
    """The results as Markdown: softmax, the control, then the kernels from the best."""
    by_name = {row.name: row for row in rows}
    softmax, control = by_name["softmax"], by_name[control_name(options)]
    head = ["model", "features", "parameters", "perplexity", "against softmax", "nats beyond softmax", "of the gap"]
    cells = []
    for row in rows:
        first, beyond = row.runs[0], row.beyond(softmax)
        gap = control.beyond(softmax, beyond.by_seed)
        closed = f"{1 - beyond.mean / gap.mean:.0%}" if gap.mean > 0 else "-"
        cells.append(
            [
                emphasised(row.name),
                str(first["feature_dim"] or "-"),
                f"{first['parameters']:,}",
                f"{row.perplexities.mean():.2f} ± {row.spread:.2f}",
                "-" if row is softmax else f"{math.exp(beyond.mean) - 1:+.1%}",
                "-" if row is softmax else str(beyond),
                closed,
                str(len(row.runs)),
            ]
        )
    out = [
        *markdown([*head, "seeds"], cells),
        "",
        "Test addresses. ±: standard deviation over seeds, or for one seed the bootstrap standard error over sequences "
        "(the runs share the text, so their differences are surer than that). The columns that compare with softmax do "
        "so seed by seed, over the seeds that the model has; ± there: the bootstrap standard error over sequences. The "
        f"gap is what {control.name} has beyond softmax.",
    ]
    return out + duel([row for row in rows if row not in (softmax, control)])


def duel(kernels: list[Row]) -> list[str]:
    """Compare the best of our kernels with the best of the others that has as many seeds, on the same tokens."""
    most = max((len(row.runs) for row in kernels), default=0)
    ranked = sorted((row for row in kernels if len(row.runs) == most), key=lambda row: row.loss)
    best = next((row for row in ranked if row.name.startswith(OURS)), None)
    other = next((row for row in ranked if not row.name.startswith(OURS)), None)
    if best is None or other is None:
        return []
    beyond = best.beyond(other)
    seeds = ", ".join(f"{value:+.4f}" for value in beyond.by_seed.values())
    return ["", f"{best.name} beyond {other.name}: {beyond} nats a token; by seed {seeds}."]


def draw(rows: list[Row], options: argparse.Namespace) -> Figure:
    """Return bars of how far each kernel is beyond softmax, and the control as a line."""
    by_name = {row.name: row for row in rows}
    softmax, control = by_name["softmax"], by_name[control_name(options)]
    bars = [row for row in rows if row not in (softmax, control)]
    beyond = [row.beyond(softmax) for row in bars]
    figure = new_figure(8, 1.4 + 0.34 * max(1, len(bars)))
    axis = figure.subplots()
    colors = [GREEN if row.name.startswith(OURS) else GREY for row in bars]
    errors = [each.error for each in beyond]
    axis.barh(range(len(bars)), [each.mean for each in beyond], xerr=errors, color=colors, capsize=2)
    names = [row.name + (f" ({len(row.runs)} seeds)" if len(row.runs) > 1 else "") for row in bars]
    axis.set_yticks(range(len(bars)), names)
    axis.invert_yaxis()
    axis.axvline(0, color=BLUE, label="softmax")
    axis.axvline(control.beyond(softmax).mean, color=RED, linestyle=":", label=control.name)
    axis.set_xlabel("nats a token beyond softmax on the test addresses, same seeds")
    axis.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    return figure


def report(results: list[dict[str, Any]], options: argparse.Namespace, settings: dict[str, Any], texts: Any) -> None:
    """Write and print what the runs came to."""
    names = list(dict.fromkeys(result["name"] for result in results))
    out = Path(options.out)
    rows = [Row(name, [result for result in results if result["name"] == name], out) for name in names]
    rows[2:] = sorted(rows[2:], key=lambda row: row.beyond(rows[0]).mean)
    content = {"settings": settings, "texts": str(texts), "runs": results}
    write_results(out, content, [f"sotu: {texts}", "", *table(rows, options)], draw(rows, options))
