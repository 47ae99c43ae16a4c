"""Results as people read them: numbers of several seeds, Markdown tables, figures, and the files of a report."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_attn_ext._util.files import atomic_write, write_text
from hf_attn_ext._util.versions import versions
from hf_attn_ext.training import metrics
from hf_attn_ext.training.results import PACKAGES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS = "flexformer"
COLORS = ["#1f4fa3", "#2a7f62", "#b23b3b", "#8a6d3b", "#6b4fa3", "#8a8f98"]
BLUE, GREEN, RED, _, _, GREY = COLORS


def mean_loss(losses: np.ndarray) -> dict[str, float]:
    """Return the nats per token of losses (S, L), and the bootstrap standard error over sequences."""
    counted = ~np.isnan(losses)
    rows = np.stack([np.nansum(losses, 1), counted.sum(1)], 1)
    rows = rows[rows[:, 1] > 0]
    errors = metrics.standard_errors(None, rows, "language_modeling")
    loss = float(rows[:, 0].sum() / rows[:, 1].sum())
    return {"loss": loss, "standard_error": errors["loss"], "tokens": int(rows[:, 1].sum())}


def over_seeds(values: list[float], error: float | None = None) -> tuple[float, float | None]:
    """Return the mean and the standard deviation over seeds; for one seed its own standard error ``error``."""
    if len(values) > 1:
        return float(np.mean(values)), float(np.std(values, ddof=1))
    return values[0], error


def shown(values: list[float], error: float | None = None, digits: int = 3) -> str:
    """Return mean and spread of :func:`over_seeds` as text."""
    mean, spread = over_seeds(values, error)
    return f"{mean:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")


def perplexity_shown(losses: list[float], error: float) -> str:
    """Return exp of the loss of each seed, and its spread, as text."""
    values = [math.exp(loss) for loss in losses]
    return shown(values, values[0] * error, digits=2)


def group_draws(groups: np.ndarray, resamples: int) -> Iterator[np.ndarray]:
    """Yield the rows of bootstrap draws over groups: as many groups as there are, each with all of its rows."""
    names, indices = np.unique(groups, return_inverse=True)
    members = [np.flatnonzero(indices == group) for group in range(len(names))]
    generator = np.random.default_rng(0)
    for _ in range(resamples):
        yield np.concatenate([members[group] for group in generator.integers(len(members), size=len(members))])


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    head = list(head)
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]


def emphasised(name: str) -> str:
    """Return the name of a kernel, in bold where it is a Flexformer kernel."""
    return f"**{name}**" if name.startswith(OURS) else name


def new_figure(width: float, height: float) -> Figure:
    """Return an empty matplotlib figure of that size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, path: Path, dpi: int = 130) -> None:
    """Write a figure as PNG, the same bytes for the same figure; the file appears when it is written completely."""
    with atomic_write(path) as temporary_path:
        figure.savefig(temporary_path, format="png", dpi=dpi, metadata={"Software": None})


def write_results(out: Path, content: dict[str, Any], lines: list[str], figure: Figure, name: str = "results") -> None:
    """Write OUT/NAME.json with the versions of the libraries, .md and .png, and print the lines.

    Args:
        out: the folder.
        content: of the JSON file.
        lines: of the Markdown file.
        figure: of the PNG file.
        name: of the three files.
    """
    made_with, text = versions(*PACKAGES), "\n".join(lines) + "\n"
    write_text(out / f"{name}.json", json.dumps({**content, "versions": made_with}, indent=1, ensure_ascii=False))
    write_text(out / f"{name}.md", text)
    save_figure(figure, out / f"{name}.png")
    print(text + "versions: " + ", ".join(f"{library} {version}" for library, version in made_with.items()))
    print(f"written: {out}/{name}.json, .md, .png")
