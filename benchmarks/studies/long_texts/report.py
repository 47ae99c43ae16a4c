"""The tables and the picture of ``long_texts.py``, from what it measured."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.studies.common.results import BLUE, GREEN, RED, new_figure

CONTESTANTS = {  # name: what it is, colour, line
    "bag of words": ("no network: which words come how often", "#9a9a9a", ":"),
    "no attention": ("control: plain averaging in every layer", RED, "--"),
    "softmax": ("MiniLM as it is", BLUE, "-"),
    "softmax in windows": (None, BLUE, "--"),
    "converted": ("linear kernel in all layers", GREEN, "-"),
}
MIB = 2**20


def tables(report: dict[str, Any]) -> list[str]:
    """Return the lines of three tables: long documents, short texts, cost."""
    return [*_long(report), "", *_short(report["short_texts"], report["heads"]), "", *_cost(report)]


def _long(report: dict[str, Any]) -> list[str]:
    lengths, years, window = [report["short"], *report["lengths"]], report["years"], report["window"]
    kernel, seeds = report["kernel"], report["options"]["seeds"]
    settings = [kernel["kernel"], f"num_features {kernel['num_features']}", report["precision"]]
    settings.append(f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}")
    lines = [
        f"The year of an address: root mean square error in years, {report['documents']} addresses by "
        f"{report['presidents']} presidents, each dated by a regression on the others' (standard deviation of "
        f"the years: {report['spread']:.0f}); ± bootstrap standard errors over presidents; {', '.join(settings)}",
        "",
        "| tokens read | " + " | ".join(f"{length:,}" for length in lengths) + " |",
        "|---" * (len(lengths) + 1) + "|",
    ]
    for name, (what, _, _) in CONTESTANTS.items():
        rows = [years.get(f"{name}, {length}") for length in lengths]
        cells = [f"{row['score']:.1f} ± {row['error']:.1f}" if row else "" for row in rows]
        label = f"{name} ({what})" if what else f"softmax in windows of {window}, embeddings averaged"
        lines.append(f"| {label} | {' | '.join(cells)} |")
    longest = lengths[-1]
    references = {"years": f"softmax, {window}", "years_against_converted": f"converted, {longest}"}
    for key, reference in references.items():
        names = [f"converted, {window}", *(f"{kind}, {longest}" for kind in CONTESTANTS)]
        found = [(name, report[key][name]) for name in names if name in years and name != reference]
        found = [(name, f"{row['difference']:+.1f} ± {row['difference_error']:.1f}") for name, row in found]
        lines += ["", f"Years more (+) or less than {reference} tokens, paired:"]
        lines += [f"- {name} tokens: {difference}" for name, difference in found]
    return lines


def _short(report: dict[str, Any], heads: dict[str, list[float]]) -> list[str]:
    valence = report["valence"]
    lines = [
        f"Short texts: the valence of review sentences (Pearson on {report['test']} sentences about other films than "
        f"the {report['train']} fitted on; ± over {report['films']} films)",
        "",
        "| softmax | converted | no attention | converted less softmax |",
        "|---|---|---|---|",
    ]
    cells = [f"{valence[name]['score']:.3f} ± {valence[name]['error']:.3f}" for name in valence]
    row = valence["converted"]
    lines += [f"| {' | '.join(cells)} | {row['difference']:+.3f} ± {row['difference_error']:.3f} |", ""]
    lines.append("Converted embeddings against MiniLM's own: cosine, and rank correlation of the similarities of texts")
    for name, seeds in report["agreement"].items():
        means = [np.mean([seed[key] for seed in seeds]) for key in ("cosine", "ranks")]
        lines.append(f"- {name}: {means[0]:.3f}, {means[1]:.3f}")
    errors = ", ".join(f"{np.mean(found):.3f} at {int(length):,} tokens" for length, found in heads.items())
    lines += ["", f"Relative squared error of the heads' outputs against softmax: {errors}"]
    return lines


def _cost(report: dict[str, Any]) -> list[str]:
    rows = {(row["name"], row["length"]): row for row in report["cost"]["rows"]}
    machine = report["cost"]["machine"]
    lines = [
        f"One document, one forward pass: processor seconds (medians) and peak memory beyond the model; "
        f"{report['precision']}, {machine['processor']}, {machine['threads']} thread"
        f"{'s' if machine['threads'] > 1 else ''}",
        "",
        "| tokens | softmax | converted | | softmax | converted | |",
        "|---|---|---|---|---|---|---|",
    ]
    for length in report["lengths"]:
        soft, ours = rows["softmax", length], rows["converted", length]
        seconds = [row["seconds"]["median"] for row in (soft, ours)]
        memory = [row["peak_bytes"] / MIB for row in (soft, ours)]
        times = " | ".join(f"{value:.2f} s" for value in seconds)
        sizes = " | ".join(f"{value:.0f} MiB" for value in memory)
        share = f"{memory[0] / memory[1]:.1f}x" if memory[1] else ""
        lines.append(f"| {length:,} | {times} | {seconds[0] / seconds[1]:.1f}x | {sizes} | {share} |")
    return lines


def draw(report: dict[str, Any]) -> Figure:
    """Return the figure of error, time and memory over the tokens read."""
    figure = new_figure(13.5, 4.2)
    error, seconds, memory = figure.subplots(1, 3)
    for place, (name, (_, colour, line)) in enumerate(CONTESTANTS.items()):
        found = {
            int(key.rpartition(", ")[2]): row for key, row in report["years"].items() if key.split(", ")[0] == name
        }
        if name == "softmax in windows":  # one window is where both begin
            found[report["window"]] = report["years"][f"softmax, {report['window']}"]
        lengths = sorted(found)
        error.errorbar(
            [length * 1.02 ** (place - 2) for length in lengths],  # side by side, so that no bar hides another
            [found[length]["score"] for length in lengths],
            yerr=[found[length]["error"] for length in lengths],
            color=colour,
            linestyle=line,
            marker="o",
            markersize=4,
            elinewidth=1,
            linewidth=1.6,
            label=name,
        )
    error.set_title(f"Dating {report['documents']} addresses: error in years")
    error.set_ylim(bottom=0)
    error.legend(fontsize=8, frameon=False, loc="lower left")
    for axis, title, value in (
        (seconds, "One document: processor seconds", lambda row: row["seconds"]["median"]),
        (memory, "One document: peak memory, MiB", lambda row: row["peak_bytes"] / MIB),
    ):
        for name in ("softmax", "converted"):
            rows = [row for row in report["cost"]["rows"] if row["name"] == name]
            axis.plot(
                [row["length"] for row in rows],
                [value(row) for row in rows],
                "o-",
                color=CONTESTANTS[name][1],
                label=name,
            )
        axis.set_title(title)
        axis.set_ylim(bottom=0)
        axis.legend(fontsize=8, frameon=False)
    for axis in (error, seconds, memory):
        axis.set_xscale("log", base=2)
        ticks = [report["short"], *report["lengths"]] if axis is error else report["lengths"]
        axis.set_xticks(ticks, [f"{length:,}" for length in ticks])
        axis.set_xlabel("tokens read")
        axis.grid(alpha=0.25)
    return figure
