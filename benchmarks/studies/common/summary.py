"""Numbers of several seeds, and files of a report."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

OURS = "flexformer"
COLORS = ["#1f4fa3", "#2a7f62", "#b23b3b", "#8a6d3b", "#6b4fa3", "#8a8f98"]


def mean_loss(losses: np.ndarray) -> dict[str, float]:
    """Nats a token of losses (S, L), and the bootstrap standard error over sequences."""
    from hf_attn_ext.training import metrics

    counted = ~np.isnan(losses)
    rows = np.stack([np.nansum(losses, 1), counted.sum(1)], 1)
    rows = rows[rows[:, 1] > 0]
    errors = metrics.standard_errors(None, rows, "language_modeling")
    loss = float(rows[:, 0].sum() / rows[:, 1].sum())
    return {"loss": loss, "standard_error": errors["loss"], "tokens": int(rows[:, 1].sum())}


def over_seeds(values: list[float], error: float | None = None) -> tuple[float, float | None]:
    """Mean, and standard deviation over seeds; of one seed its own standard error."""
    if len(values) > 1:
        return float(np.mean(values)), float(np.std(values, ddof=1))
    return values[0], error


def shown(values: list[float], error: float | None = None, digits: int = 3) -> str:
    mean, spread = over_seeds(values, error)
    return f"{mean:.{digits}f}" + ("" if spread is None else f" ± {spread:.{digits}f}")


def perplexity_shown(losses: list[float], error: float) -> str:
    """Exp of each seed's loss, and its spread."""
    values = [math.exp(loss) for loss in losses]
    return shown(values, values[0] * error, digits=2)


def markdown(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def emphasised(name: str) -> str:
    return f"**{name}**" if name.startswith(OURS) else name


def write_report(
    out: Path, content: dict[str, Any], lines: list[str], draw: Callable[[Any], Any], title: str, texts: Any
) -> None:
    """Write OUT/results.json, .md and .png, and print the table with data, steps and versions.

    Args:
        out: the folder.
        content: of the JSON file, with ``settings``.
        lines: the table and its legend.
        draw: makes a figure with matplotlib's pyplot.
        title: of the printed lines.
        texts: what was read.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from hf_attn_ext._util.files import atomic_write, write_json, write_text
    from hf_attn_ext.training.results import versions

    found = versions()
    write_json(out / "results.json", {**content, "texts": str(texts), "versions": found})
    write_text(out / "results.md", "\n".join(lines) + "\n")
    figure = draw(plt)
    with atomic_write(out / "results.png") as beside:
        figure.savefig(beside, format="png", dpi=130)
    plt.close(figure)
    print(f"{title}: {texts}")
    print("\n".join(lines))
    print("versions: " + ", ".join(f"{name} {version}" for name, version in found.items()))
    print(f"written: {out}/results.json, .md, .png")
