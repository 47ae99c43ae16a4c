"""Which heads can go? The probe's pruning score against random heads and against the obvious rivals.

    python -m benchmarks.studies.prune_heads                               # MiniLM on pieces of speeches
    python -m benchmarks.studies.prune_heads --corpora speeches,reviews
    python -m benchmarks.studies.prune_heads --model rxnfp                 # 12 layers of 4 heads, on reactions

``pruning_scores`` scores every head of the model on training texts. The heads with the lowest scores are pruned: in the
output projection, their columns are set to zero ("zero"), or to zero with the head's mean output kept in the bias
("mean"). Reported on test texts: the relative squared error of the last hidden states, against the mean of random sets
of as many heads, and against sets by the output's squared length after the projection (magnitude pruning), by the power
alone, by the signal alone, and from the last layer on. In reactions, a molecule takes a sentence's place.

Writes OUT/results.json, .md and .png.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from benchmarks.studies.common.corpora import (
    CORPORA,
    MAX_LENGTH,
    add_options,
    corpora_of,
    limits,
    opened,
    read_texts,
)
from benchmarks.studies.common.folders import make_folder
from benchmarks.studies.common.hidden_states import batches, hidden_states, relative_error
from benchmarks.studies.common.options import check_least, make_parser, report_errors, say
from benchmarks.studies.common.results import new_figure, write_results
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.families import output_projection
from hf_attn_ext.integration.base_models.readable_layers import capturable_layers
from hf_attn_ext.probe import PruningScores, pruning_scores

Head = tuple[int, int]
LABELS = {
    "score": "signal x power",
    "magnitude": "magnitude",
    "power": "power alone",
    "signal": "signal alone",
    "last": "last layers first",
}


@contextlib.contextmanager
@torch.no_grad()
def pruned(model: torch.nn.Module, heads: list[Head], scores: PruningScores, mode: str) -> Iterator[None]:
    """Inside, the output projections have no part of ``heads``; afterwards they are the same bits as before."""
    dense = [output_projection(model, layer.name) for layer in capturable_layers(model)]
    kept = [(each.weight.clone(), each.bias.clone()) for each in dense]
    size = scores.mean_outputs.shape[-1]
    for layer, head in heads:
        columns = slice(head * size, (head + 1) * size)
        if mode == "mean":
            mean = torch.from_numpy(scores.mean_outputs[layer, head]).to(dense[layer].weight.dtype)
            dense[layer].bias += dense[layer].weight[:, columns] @ mean
        dense[layer].weight[:, columns] = 0
    try:
        yield
    finally:
        for each, (weight, bias) in zip(dense, kept, strict=True):
            each.weight.copy_(weight)
            each.bias.copy_(bias)


def measure(corpus: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each way of pruning and each share of heads."""
    its, out = CORPORA[corpus], Path(options.out)
    if its["pruned_test"] is None:
        raise AttnExtError(f"{corpus} have no sentences or segments, which signal needs; give other --corpora")
    model, tokenizer = opened(corpus)
    train = read_texts(corpus, "train", options.texts or its["texts"], options.seed, out)
    test = sorted(read_texts(corpus, "test", options.test or its["pruned_test"], 7, out), key=len)
    settings = {**limits(corpus), "boundaries": its["boundaries"], "seed": options.seed}
    scores = pruning_scores(model, tokenizer, train, **settings)
    shape = scores.score.shape
    every = list(itertools.product(range(shape[0]), range(shape[1])))
    by = {
        "score": scores.score,
        "magnitude": scores.magnitude,
        "power": scores.power,
        "signal": scores.signal,
        "last": np.broadcast_to(-np.arange(shape[0])[:, None], shape),
    }
    data = batches(tokenizer, test, MAX_LENGTH, its["size"])
    expected = hidden_states(model, data)

    def error(heads: list[Head], mode: str) -> float:
        with pruned(model, heads, scores, mode):
            return relative_error(hidden_states(model, data), expected)

    rows = []
    for mode, share in itertools.product(("zero", "mean"), options.shares):
        count = max(1, round(share * len(every)))
        generator = np.random.default_rng([options.seed, count])
        drawn = []
        for _ in range(options.draws):
            drawn.append(error([every[at] for at in generator.permutation(len(every))[:count]], mode))
        row: dict[str, Any] = {"corpus": corpus, "mode": mode, "share": share, "heads": count, "all_random": drawn}
        row |= {"random": float(np.mean(drawn)), "random_sd": float(np.std(drawn, ddof=1)), "best": min(drawn)}
        for name, values in by.items():
            row[name] = error([every[at] for at in np.argsort(values, axis=None, kind="stable")[:count]], mode)
        rows.append(row)
        say("prune", f"{corpus}, {mode}, {count} heads")
    return rows


def lines(rows: list[dict[str, Any]], draws: int) -> list[str]:
    """The table as Markdown."""
    out = [
        f"| corpus | pruned heads are | heads | random, mean of {draws} (sd), best | {' | '.join(LABELS.values())} |",
        f"|---|---|---|---|{'---|' * len(LABELS)}",
    ]
    for row in rows:
        cells = " | ".join(f"{row[name]:.3f}" for name in LABELS)
        mode = {"zero": "zero", "mean": "their mean"}[row["mode"]]
        out.append(
            f"| {row['corpus']} | {mode} | {row['heads']} ({100 * row['share']:g}%) | {row['random']:.3f} "
            f"({row['random_sd']:.3f}), {row['best']:.3f} | {cells} |"
        )
    counts = {}
    for name in ("random", "magnitude", "power"):
        counts[name] = sum(row["score"] < row[name] for row in rows)
    said = ", ".join(f"than {'the mean of random sets' if n == 'random' else n} {c}" for n, c in counts.items())
    return [*out, "", f"signal x power is better, of {len(rows)} times: {said}"]


def draw(rows: list[dict[str, Any]]) -> Figure:
    """Return a row per corpus with a panel per way of pruning: errors over the share of pruned heads."""
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    runs = list(dict.fromkeys((row["corpus"], row["mode"]) for row in rows))
    corpora = len({corpus for corpus, _ in runs})
    figure = new_figure(7.6, 0.6 + 3.2 * corpora)
    axes = figure.subplots(corpora, 2, squeeze=False, sharey="row").ravel()
    colours = dict(zip(LABELS, ("#0b6e4f", "#30459c", "#5a8fd6", "#d1853b", "#8a8f98"), strict=True))
    for axis, (corpus, mode) in zip(axes, runs, strict=True):
        its = [row for row in rows if (row["corpus"], row["mode"]) == (corpus, mode)]
        shares = [100 * row["share"] for row in its]
        for row, share in zip(its, shares, strict=True):
            axis.scatter([share] * len(row["all_random"]), row["all_random"], s=10, color="#e0a0a0", zorder=1)
        axis.plot(
            shares, [row["random"] for row in its], color="#b23b3b", marker="_", label="mean of random sets (dots)"
        )
        for name, label in LABELS.items():
            look = {"lw": 3.6} if name == "score" else {"lw": 1.1, "ls": "--" if name == "power" else "-"}
            look |= {"color": colours[name], "marker": "o", "markersize": 3, "label": label}
            axis.plot(shares, [row[name] for row in its], **look)  # the score is wide: power often lies on it
        axis.set_yscale("log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(ScalarFormatter())
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.set_xticks(shares, [f"{share:g}" for share in shares])
        axis.set_xlabel("% of heads pruned")
        axis.set_title(f"{corpus}, replaced by {'zero' if mode == 'zero' else 'their mean'}", fontsize=10)
        axis.grid(True, axis="y", color="#e6e6e6", linewidth=0.6)
    for axis in axes[::2]:
        axis.set_ylabel("relative error of the last hidden states", fontsize=9)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


@report_errors
def main(arguments: list[str] | None = None) -> int:
    """Parse the options and run the study."""
    parser = make_parser(__doc__)
    add_options(parser, "speeches")
    parser.add_argument("--shares", default="0.1,0.25,0.5", help="of heads to prune, with commas")
    parser.add_argument("--draws", type=int, default=10, help="random sets of heads")
    parser.add_argument("--texts", type=int, help="for the scores; default: by corpus")
    parser.add_argument("--test", type=int, help="texts that errors are measured on; default: by corpus")
    parser.add_argument("--seed", type=int, default=0, help="of the texts for the scores, and of the random sets")
    parser.add_argument("--out", default="runs/prune-heads")
    options = parser.parse_args(arguments)
    return run(options)


def run(options: argparse.Namespace) -> int:
    """Run the study with parsed options."""
    try:
        shares = [float(part) for part in options.shares.split(",")]
    except ValueError:
        shares = []
    if not shares or not all(0 < share < 1 for share in shares):
        raise AttnExtError(f"--shares takes numbers between 0 and 1 with commas, got {options.shares!r}")
    options.shares = shares
    check_least(options, draws=2)
    corpora = corpora_of(options.model, options.corpora, "speeches")
    rows = [row for corpus in corpora for row in measure(corpus, options)]
    content = {"settings": vars(options), "rows": rows}
    write_results(make_folder(Path(options.out)), content, lines(rows, options.draws), draw(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
