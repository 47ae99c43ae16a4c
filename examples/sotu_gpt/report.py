"""The report of all runs: a table, a figure, and the numbers behind them."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from .control import control_name
from .corpus import Corpus

OURS = "flexformer"


@dataclasses.dataclass
class Row:
    """All seeds of one model: their scores, and where their losses of every sequence are."""

    name: str
    runs: list[dict[str, Any]]
    folder: Path

    @property
    def perplexities(self) -> np.ndarray:
        return np.array([run["scores"]["perplexity"] for run in self.runs])

    @property
    def loss(self) -> float:
        return float(np.mean([run["scores"]["loss"] for run in self.runs]))

    @property
    def spread(self) -> float:
        """Standard deviation over seeds; of one seed the bootstrap standard error over sequences."""
        if len(self.runs) > 1:
            return float(self.perplexities.std(ddof=1))
        return self.runs[0]["standard_errors"]["perplexity"]

    def beyond(self, other: Row) -> tuple[float, float, list[float]]:
        """Nats a token more than ``other`` has, on the same tokens, over the seeds that both have.

        Returns:
            The mean, its bootstrap standard error over sequences, and the difference of each seed.
        """
        from hf_attn_ext.training.metrics import difference_error

        seeds = [run["seed"] for run in self.runs if run["seed"] in {run["seed"] for run in other.runs}]
        pairs = [(self.losses(seed), other.losses(seed)) for seed in seeds]
        each = [float(mine[:, 0].sum() / mine[:, 1].sum() - its[:, 0].sum() / its[:, 1].sum()) for mine, its in pairs]
        mine, its = (np.sum(rows, axis=0) for rows in zip(*pairs, strict=True))
        return float(np.mean(each)), difference_error(None, mine, its, "language_modeling", "loss"), each

    def losses(self, seed: int) -> np.ndarray:
        """(S, 2): the summed loss of every test sequence, and its tokens."""
        return np.load(self.folder / self.name / f"seed-{seed}" / "losses.npy")


def table(rows: list[Row], options: argparse.Namespace) -> list[str]:
    """The results as Markdown: softmax, the control, then the kernels from the best."""
    by_name = {row.name: row for row in rows}
    softmax, control = by_name["softmax"], by_name[control_name(options)]
    gap = control.loss - softmax.loss
    out = [
        "| model | features | parameters | perplexity | against softmax | nats beyond softmax | of the gap | seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        first, mean = row.runs[0], row.perplexities.mean()
        closed = f"{(control.loss - row.loss) / gap:.0%}" if gap > 0 else "-"
        cells = [
            f"**{row.name}**" if row.name.startswith(OURS) else row.name,
            str(first["feature_dim"] or "-"),
            f"{first['parameters']:,}",
            f"{mean:.2f} ± {row.spread:.2f}",
            f"{mean / softmax.perplexities.mean() - 1:+.1%}",
            "-" if row is softmax else "{:+.4f} ± {:.4f}".format(*row.beyond(softmax)[:2]),
            closed,
            str(len(row.runs)),
        ]
        out.append(f"| {' | '.join(cells)} |")
    out += [
        "",
        "Test addresses. ±: standard deviation over seeds, or for one seed the bootstrap standard error over sequences "
        "(the runs share the text, so their differences are surer than that). Nats beyond softmax: over the seeds of "
        "both, ± the bootstrap standard error over sequences, on which both are measured. The gap is that in loss "
        f"between {control.name} and softmax: {gap:.3f} nats a token.",
    ]
    return out + duel([row for row in rows if row not in (softmax, control)])


def duel(kernels: list[Row]) -> list[str]:
    """The best of our kernels beside the best of the others that has as many seeds, on the same tokens."""
    most = max((len(row.runs) for row in kernels), default=0)
    ranked = sorted((row for row in kernels if len(row.runs) == most), key=lambda row: row.loss)
    best = next((row for row in ranked if row.name.startswith(OURS)), None)
    other = next((row for row in ranked if not row.name.startswith(OURS)), None)
    if best is None or other is None:
        return []
    mean, error, each = best.beyond(other)
    seeds = ", ".join(f"{value:+.4f}" for value in each)
    return ["", f"{best.name} beyond {other.name}: {mean:+.4f} ± {error:.4f} nats a token; by seed {seeds}."]


def draw(rows: list[Row], options: argparse.Namespace, path: Path) -> None:
    """Bars of the perplexity, softmax and the control as lines."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from hf_attn_ext.files import written_beside

    lines = {"softmax": ("#1f4fa3", "--"), control_name(options): ("#b23b3b", ":")}
    bars = [row for row in rows if row.name not in lines]
    figure, axis = plt.subplots(figsize=(8, 1.4 + 0.34 * max(1, len(bars))), layout="constrained")
    means = [row.perplexities.mean() for row in bars]
    colors = ["#2a7f62" if row.name.startswith(OURS) else "#8a8f98" for row in bars]
    axis.barh(range(len(bars)), means, xerr=[row.spread for row in bars], color=colors)
    axis.set_yticks(range(len(bars)), [row.name for row in bars])
    axis.invert_yaxis()
    for row in rows:
        if row.name in lines:
            color, style = lines[row.name]
            axis.axvline(row.perplexities.mean(), color=color, linestyle=style, label=row.name)
    everything = [row.perplexities.mean() for row in rows]
    margin = 0.15 * (max(everything) - min(everything)) + 0.5
    axis.set_xlim(min(everything) - margin, max(everything) + margin)
    axis.set_xlabel("perplexity on the test addresses (the axis does not begin at 0)")
    axis.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    with written_beside(path) as beside:
        figure.savefig(beside, format="png", dpi=130)
    plt.close(figure)


def report(
    results: list[dict[str, Any]], options: argparse.Namespace, settings: dict[str, Any], corpus: Corpus
) -> None:
    """Write and print what the runs came to."""
    from hf_attn_ext.files import write_text
    from hf_attn_ext.training.files import write_json
    from hf_attn_ext.training.results import versions

    names = list(dict.fromkeys(result["name"] for result in results))
    out = Path(options.out)
    rows = [Row(name, [result for result in results if result["name"] == name], out) for name in names]
    rows[2:] = sorted(rows[2:], key=lambda row: row.loss)
    lines = table(rows, options)
    content = {"settings": settings, "corpus": str(corpus), "runs": results, "versions": versions()}
    write_json(out / "results.json", content)
    write_text(out / "results.md", "\n".join(lines) + "\n")
    draw(rows, options, out / "results.png")
    print(f"sotu: {corpus}")
    print("\n".join(lines))
    print(f"written: {out}/results.json, .md, .png")
