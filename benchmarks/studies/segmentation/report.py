"""The tables and the picture of ``segmentation.py``."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.studies.common.results import new_figure

from .contestants import cut_with

RESAMPLES = 2000
METRICS = ("pk", "windowdiff", "f1")
REFERENCE = "embeddings, scatter"
CONTESTANTS = {  # name: what it is, colour
    "similarity, scatter": ("ours: sentences read one by one", "#2a7f62"),
    "similarity, depth": ("ours: the same, cut by TextTiling's depth score", "#55a384"),
    "similarity, windows": ("ours: read in windows of {window} tokens, as in the source", "#7fbf9f"),
    "separator focus": ("ours: attention on the separator at a sentence's end", "#c9a227"),
    "similarity and focus": ("ours: both", "#1d5a45"),
    "random weights": ("control: ours, of an untrained model", "#b23b3b"),
    "embeddings, scatter": ("MiniLM's sentence embeddings, cut the same way", "#1f4fa3"),
    "embeddings, depth": ("the same, cut by TextTiling's depth score", "#7d9bd1"),
    "TextTiling": ("nltk, words alone", "#7a5aa6"),
    "equal lengths": ("no look at the text", "#8a8a8a"),
    "chance": ("borders anywhere", "#bdbdbd"),
}


def summarised(scores: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return the mean of each metric over documents, by contestant, with a bootstrap interval of 95 %.

    ``difference`` is the mean difference of Pk from the reference, with the same draws for both.
    """
    count = len(next(iter(scores.values())))
    draws = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
    values = {name: {m: np.array([row[m] for row in rows]) for m in METRICS} for name, rows in scores.items()}
    found: dict[str, dict[str, Any]] = {}
    for name, of_metric in values.items():
        found[name] = {metric: _interval(each, draws) for metric, each in of_metric.items()}
        found[name]["difference"] = _interval(of_metric["pk"] - values[REFERENCE]["pk"], draws)
        found[name]["borders"] = float(np.mean([len(row["borders"]) for row in scores[name]]))
    return found


def _interval(values: np.ndarray, draws: np.ndarray) -> dict[str, float]:
    low, high = np.quantile(values[draws].mean(1), (0.025, 0.975))
    return {"mean": float(values.mean()), "low": float(low), "high": float(high)}


def tables(report: dict[str, Any]) -> list[str]:
    """Return the lines of a table for each corpus and setting, and of what was chosen."""
    lines: list[str] = []
    for corpus in report["settings"]["known"]["corpora"]:
        for setting, of_setting in report["settings"].items():
            lines += [*_table(report, corpus, setting, of_setting["corpora"][corpus]), ""]
    lines += ["Pk on the addresses by seed of the concatenation:", ""]
    for setting, of_setting in report["settings"].items():
        for name in ("similarity, scatter", REFERENCE):
            means = ", ".join(f"{mean:.3f}" for mean in of_setting["by_seed"][name])
            lines.append(f"- {setting} number, {name}: {means}")
    lines += ["", "What each chose on the training documents, and its Pk there:", ""]
    for setting, of_setting in report["settings"].items():
        for name, row in of_setting["tuned"].items():
            chosen = ", ".join(f"{key} {_shown(value)}" for key, value in row["options"].items() if value is not None)
            lines.append(f"- {setting} number, {name}: {chosen or 'nothing'} ({row['training_pk']:.3f})")
    return lines


def _shown(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _table(report: dict[str, Any], corpus: str, setting: str, rows: dict[str, Any]) -> list[str]:
    size = report["sizes"][corpus]
    held = "from other years" if corpus == "addresses" else "for which nothing was chosen"
    lines = [
        f"**{corpus.capitalize()}, number of pieces {setting}**: {size['documents']} documents {held}, of "
        f"{report['options']['pieces']} pieces and {size['sentences']:.0f} sentences (mean); means with bootstrap "
        f"intervals of 95 % over documents; the last column is Pk less that of {REFERENCE}",
        "",
        "| | Pk | WindowDiff | F1 | borders | difference |",
        "|---|---|---|---|---|---|",
    ]
    for name, (what, _) in CONTESTANTS.items():
        row = rows[name]
        cells = [f"{row[m]['mean']:.3f} [{row[m]['low']:.3f}, {row[m]['high']:.3f}]" for m in METRICS]
        gap = row["difference"]
        difference = f"{gap['mean']:+.3f} [{gap['low']:+.3f}, {gap['high']:+.3f}]" if name != REFERENCE else ""
        label = f"{name} ({what.format(window=report['options']['window'])})"
        lines.append(f"| {label} | {' | '.join(cells)} | {row['borders']:.1f} | {difference} |")
    return lines


def draw(report: dict[str, Any], example: Any) -> Figure:
    """Return the scores along one document with its true and found borders, and bars of Pk."""
    corpora = list(report["settings"]["known"]["corpora"])
    figure = new_figure(13, 8.2)
    grid = figure.add_gridspec(2, 2 * len(corpora), height_ratios=[1, 1.25])
    axis = figure.add_subplot(grid[0, :])
    option = report["settings"]["known"]["tuned"]["similarity, scatter"]["options"]
    found, scores = cut_with(example, option, True)
    gaps = np.arange(1, example.count)
    for border in example.document.borders:
        axis.axvline(border, color="#444444", linewidth=1, linestyle=":", zorder=0)
    axis.axhline(0, color="#bbbbbb", linewidth=0.8)
    axis.plot(
        gaps, scores, color=CONTESTANTS["similarity, scatter"][1], linewidth=1.5, label="what a cut before it brings"
    )
    axis.plot(found, scores[np.array(found) - 1], "o", color=CONTESTANTS["similarity, scatter"][1], label="found")
    axis.plot([], [], color="#444444", linestyle=":", label="true")
    axis.set_title("Context similarity along one held-out document (number of pieces known)")
    axis.set_xlabel("sentence")
    axis.set_ylabel("less scatter")
    axis.set_xlim(0, example.count)
    axis.legend(fontsize=8, frameon=False, loc="upper right", ncols=3)
    panels = [(corpus, setting) for corpus in corpora for setting in report["settings"]]
    names = list(CONTESTANTS)[::-1]
    for place, (corpus, setting) in enumerate(panels):
        bars = figure.add_subplot(grid[1, place])
        rows = [report["settings"][setting]["corpora"][corpus][name]["pk"] for name in names]
        means = np.array([row["mean"] for row in rows])
        spread = np.abs(np.array([[row["low"], row["high"]] for row in rows]).T - means)
        bars.barh(names, means, xerr=spread, color=[CONTESTANTS[name][1] for name in names], error_kw={"linewidth": 1})
        bars.set_title(f"Pk, {corpus}, number {setting}", fontsize=10)
        bars.set_xlim(0, 0.7)
        bars.grid(axis="x", alpha=0.25)
        bars.tick_params(labelsize=8, labelleft=place == 0)
    return figure
