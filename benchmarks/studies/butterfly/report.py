"""The report of ``butterfly.py``."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.studies.common.results import (
    COLORS,
    markdown,
    mean_loss,
    new_figure,
    over_seeds,
    perplexity_shown,
    shown,
    write_results,
)
from benchmarks.studies.common.texts import unigram_losses

TITLES = {
    "butterfly": "butterfly",
    "mlm": "masked, equal steps",
    "mlm-compute": "masked, equal operations",
}
HEAD = ["training", "rate", "steps", "operations", "predicted tokens", "pseudo-perplexity", "nats a token", "scored in"]
HEAD += ["seconds a text", "seeds"]


def report(results: list[dict[str, Any]], options: argparse.Namespace, settings: dict[str, Any], texts: Any) -> None:
    """Write and print what the runs came to."""
    unigram = mean_loss(unigram_losses(texts, len(texts.tokenizer)))
    groups = {name: [run for run in results if run["training"] == name] for name in TITLES}
    compared = comparison(groups, Path(options.out))
    write_results(
        Path(options.out),
        {"settings": settings, "unigram": unigram, "compared": compared, "runs": results, "texts": str(texts)},
        [f"butterfly: {texts}", "", *table(groups, unigram, options.context), "", *legend(compared, groups, options)],
        draw(groups, unigram["loss"]),
    )


def comparison(groups: dict[str, list[dict[str, Any]]], out: Path) -> dict[str, Any]:
    """Compare ``butterfly_score``, per seed, with n passes of the same model and of masked language modelling."""
    found: dict[str, Any] = {"largest_difference": [], "times_faster": [], "masked": {}}
    for run in groups["butterfly"]:
        found["largest_difference"].append(run["passes"]["largest_difference"])
        found["times_faster"].append(run["passes"]["seconds_a_text"] / run["seconds_a_text"])
    for name in ("mlm", "mlm-compute"):
        entry: dict[str, list[float]] = {"rank_correlation": [], "times_faster": []}
        for ours, theirs in zip(groups["butterfly"], groups[name], strict=True):
            scores = [np.load(out / run["training"] / f"seed-{run['seed']}" / "scores.npy") for run in (ours, theirs)]
            entry["rank_correlation"].append(float(stats.spearmanr(*(x.ravel() for x in scores)).statistic))
            entry["times_faster"].append(theirs["seconds_a_text"] / ours["seconds_a_text"])
        found["masked"][name] = entry
    return found


def losses_of(runs: list[dict[str, Any]]) -> list[float]:
    """Return the loss of each run."""
    return [run["pseudo"]["loss"] for run in runs]


def table(groups: dict[str, list[dict[str, Any]]], unigram: dict[str, Any], tokens: int) -> list[str]:
    """A row for each training, and the control's."""
    rows = []
    for name, runs in groups.items():
        first = runs[0]
        error, labels = first["pseudo"]["standard_error"], first["labels"] * first["steps"]
        rows.append(
            [
                TITLES[name],
                f"{first['rate']:g}",
                f"{first['steps']:,}",
                f"{first['operations'] * first['steps']:.2e}",
                f"{labels:,}" if name == "butterfly" else f"about {labels:,}",
                perplexity_shown(losses_of(runs), error),
                shown(losses_of(runs), error),
                "1 pass" if name == "butterfly" else f"{tokens} passes",
                f"{np.mean([run['seconds_a_text'] for run in runs]):.4f}",
                str(len(runs)),
            ]
        )
    loss, error = [unigram["loss"]], unigram["standard_error"]
    rows.append(["unigram (control)", *4 * "-", perplexity_shown(loss, error), shown(loss, error), "-", "-", "-"])
    return markdown(HEAD, rows)


def legend(compared: dict[str, Any], groups: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> list[str]:
    """Return the lines below the table."""
    few = groups["butterfly"][0]["passes"]["texts"]
    lines = [
        f"Held-out pieces of {options.context} tokens; batches of {options.batch_size}. Rate: the best of "
        f"{options.lr} on validation texts, after {options.tune_share:.0%} of the steps. ±: standard deviation over "
        "seeds, or for one seed the bootstrap standard error over pieces (the runs share the text, so their "
        "differences are surer than that). Operations: matrix products of training, forward and backward, counted. "
        "Seconds: processor time of scoring, all cores; of the clock on a GPU.",
        "",
        f"`butterfly_score` against {options.context} passes of the same model ({few} texts): largest difference "
        f"{max(compared['largest_difference']):.1e} nats, {shown(compared['times_faster'], digits=1)} times less time.",
    ]
    for name, entry in compared["masked"].items():
        lines.append(
            f"Against the passes of {TITLES[name]}: rank correlation of the tokens' log-probabilities "
            f"{shown(entry['rank_correlation'])}, {shown(entry['times_faster'], digits=1)} times less time."
        )
    return lines


def draw(groups: dict[str, list[dict[str, Any]]], unigram: float) -> Any:
    """Bars: the pseudo-perplexity, and the time to score a text."""
    figure = new_figure(10, 3)
    left, right = figure.subplots(1, 2)
    names = [TITLES[name] for name in groups]
    means, errors = [], []
    for runs in groups.values():
        values = [math.exp(loss) for loss in losses_of(runs)]
        mean, spread = over_seeds(values, values[0] * runs[0]["pseudo"]["standard_error"])
        means.append(mean)
        errors.append(spread)
    places = range(len(names))
    left.barh(places, means, xerr=errors, color=COLORS[: len(names)], capsize=3)
    left.axvline(math.exp(unigram), color="#8a8f98", linestyle="--", label="unigram")
    left.set_xlabel("pseudo-perplexity of held-out text")
    left.legend(fontsize=8)
    right.barh(places, [np.mean([run["seconds_a_text"] for run in runs]) for runs in groups.values()], color=COLORS[5])
    right.set_xlabel("seconds to score a text")
    left.set_yticks(places, names)
    right.set_yticks(places, [""] * len(names))
    for axis in (left, right):
        axis.invert_yaxis()
    return figure
