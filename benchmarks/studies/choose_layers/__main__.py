"""Does the suggestion of which layers keep softmax hold after training? Against every other choice.

    python -m benchmarks.studies.choose_layers                              # MiniLM on review sentences, two seeds
    python -m benchmarks.studies.choose_layers --corpora reviews,speeches   # also on pieces of speeches, 115 tokens
    python -m benchmarks.studies.choose_layers --model rxnfp --keep 1,2,3,4,6 --choices 220   # 12 layers, on reactions
    python -m benchmarks.studies.choose_layers --model mgm                  # a decoder, on its own samples

For each corpus and seed: stage 1 of all layers on the training texts, and ``suggest_layers`` on a few other training
texts, which knows nothing of stage 1. Stage 1 trains every layer's feature map on the softmax stream, so the maps of a
hybrid are those of the converted layers whatever the others are: every choice of layers is only an evaluation. Reported
on test texts: the relative squared error of the last hidden states of the suggested hybrid, of the mean of random draws
of as many layers, of the first and the last layers, of what two other criteria suggest (the error of kernels as they
are initialised, and neighbours), and of every choice there is, or of ``--choices`` drawn ones; and, with all layers
converted, which heads kept their function (``compare``).

To continue a stopped run, repeat the command. Writes OUT/results.json, .md and .png.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import hf_attn_ext as hax
from benchmarks.studies.common.corpora import (
    CORPORA,
    MAX_LENGTH,
    add_options,
    corpora_of,
    limits,
    opened,
    read_texts,
)
from benchmarks.studies.common.hidden_states import batches, hidden_states, relative_error
from benchmarks.studies.common.options import check_least, make_parser, numbers_of, report_errors, say, seeds_of
from benchmarks.studies.common.results import markdown, new_figure, write_results
from hf_attn_ext._util.files import write_text
from hf_attn_ext.probe import compare, suggest_layers

from .stage1 import stage1, trained_maps

# what suggests: the default, and its rivals
CRITERIA: dict[str, dict[str, Any]] = {
    "suggested": {},
    "initialised": {"steps": 0},
    "neighbours": {"criterion": "neighbours"},
}
LABELS = {
    "first": "the first layers",
    "last": "the last layers",
    "initialised": "kernels as initialised",
    "neighbours": "by neighbours",
}


class Hybrids:
    """The errors of hybrids by which layers keep softmax, kept in a file as they come."""

    def __init__(self, path: Path, corpus: str, its: dict[str, Any], maps: dict[int, Any], options: argparse.Namespace):
        self.path, self.maps = path, maps
        self.kernel = {"kernel": options.kernel, "num_features": options.num_features}
        self.errors: dict[str, float] = json.loads(path.read_text()) if path.is_file() else {}
        self.model, self.tokenizer = opened(corpus)
        self.texts = sorted(read_texts(corpus, "test", its["test"], 7, Path(options.out)), key=len)
        self.data = batches(self.tokenizer, self.texts, MAX_LENGTH, its["size"])
        self.expected = hidden_states(self.model, self.data)

    def converted(self, kept: tuple[int, ...]) -> Any:
        """The model with trained maps in all layers but ``kept``, to be reverted."""
        hax.convert(self.model, **self.kernel, layers=[layer for layer in self.maps if layer not in kept])
        for layer in hax.converted_layers(self.model):
            layer.feature_map.load_state_dict(self.maps[layer.layer_idx])
        return self.model

    def error(self, kept: tuple[int, ...]) -> float:
        """Return the relative error of the hybrid whose layers ``kept`` keep softmax."""
        name = ",".join(map(str, sorted(kept)))
        if name not in self.errors:
            self.errors[name] = relative_error(hidden_states(self.converted(kept), self.data), self.expected)
            hax.revert(self.model)
            write_text(self.path, json.dumps(self.errors, indent=1))
        return self.errors[name]


def suggestion(
    folder: Path,
    name: str,
    corpus: str,
    its: dict[str, Any],
    seed: int,
    keep: int,
    options: argparse.Namespace,
) -> list[int]:
    """The order in which layers are suggested to keep softmax; its beginnings are the smaller suggestions."""
    path = folder / f"{name}-{keep}-{its['texts']}.json"
    if not path.is_file():
        texts = read_texts(corpus, "train", its["texts"], seed, Path(options.out))
        settings = {"kernel": options.kernel, "num_features": options.num_features, "seed": seed, **CRITERIA[name]}
        found = suggest_layers(*opened(corpus), texts, keep, **settings, **limits(corpus))
        found.to_json(path)
    return json.loads(path.read_text())["order"]


def compared(folder: Path, corpus: str, its: dict[str, Any], hybrids: Hybrids) -> list[dict[str, Any]]:
    """Return, with all layers converted, how far each layer's heads kept their function; write heads.json and .png."""
    path = folder / f"heads-{its['test']}.json"
    if not path.is_file():
        teacher, model = opened(corpus)[0], hybrids.converted(())
        found = compare(teacher, model, hybrids.tokenizer, hybrids.texts, **limits(corpus))
        hax.revert(model)
        found.figure(path.with_suffix(".png"))
        rows = [
            {
                "layer": layer,
                "score": float(np.nanmean(found.score[i])),
                "lowest": float(np.nanmin(found.score[i])),
                "lowest_head": int(np.nanargmin(found.score[i])),
                "correlation": float(np.nanmean(found.correlation[i])),
                **{kind: sum(at == layer for at, _ in found.heads_with(kind)) for kind in ("kept", "moved", "lost")},
            }
            for i, layer in enumerate(found.layers)
        ]
        write_text(path, json.dumps({"layers": rows, "heads": found.rows()}, indent=1))
    return json.loads(path.read_text())["layers"]


def measure(corpus: str, seed: int, options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """One row for each number of layers that keep softmax, and one for each layer's heads."""
    folder = Path(options.out) / f"{corpus}-{seed}"
    maps = trained_maps(stage1(folder / "stage1", corpus, seed, options), corpus)
    layers, keeps = sorted(maps), options.keep
    if not keeps or min(keeps) < 1 or max(keeps) >= len(layers):
        raise hax.AttnExtError(f"--keep takes numbers from 1 to {len(layers) - 1}, got {options.keep!r}")
    its = {**CORPORA[corpus], **{name: n for name in ("texts", "test") if (n := getattr(options, name)) is not None}}
    orders = {name: suggestion(folder, name, corpus, its, seed, max(keeps), options) for name in CRITERIA}
    hybrids = Hybrids(folder / f"errors-{its['test']}.json", corpus, its, maps, options)
    rows = []
    for keep in keeps:
        subsets = list(itertools.combinations(layers, keep))
        generator = np.random.default_rng([seed, keep])
        drawn = [subsets[at] for at in generator.integers(0, len(subsets), options.draws)]
        some = generator.permutation(len(subsets))[: options.choices]
        choices = [subsets[at] for at in sorted(some)]
        named = {"first": tuple(layers[:keep]), "last": tuple(layers[-keep:])}
        named |= {name: tuple(sorted(order[:keep])) for name, order in orders.items()}
        errors = {subset: hybrids.error(subset) for subset in dict.fromkeys([*choices, *drawn, *named.values()])}
        ranked = sorted(errors, key=errors.__getitem__)
        chosen, random = named["suggested"], [errors[one] for one in drawn]
        rows.append(
            {
                "corpus": corpus,
                "seed": seed,
                "keep": keep,
                "suggested": list(chosen),
                "error": errors[chosen],
                **{name: errors[named[name]] for name in LABELS},
                **{f"{name}_layers": list(named[name]) for name in LABELS},
                "random": float(np.mean(random)),
                "random_sd": float(np.std(random, ddof=1)) if len(random) > 1 else 0.0,
                "best": errors[ranked[0]],
                "best_layers": list(ranked[0]),
                "worst": errors[ranked[-1]],
                "rank": 1 + sum(errors[one] < errors[chosen] for one in choices),
                "choices": len({*choices, chosen}),
                "there_are": len(subsets),
                "none_kept": hybrids.error(()),
                "all": sorted(errors[one] for one in choices),
            }
        )
    heads = [{"corpus": corpus, "seed": seed, **row} for row in compared(folder, corpus, its, hybrids)]
    return rows, heads


def head_lines(heads: list[dict[str, Any]]) -> list[str]:
    """The heads' table as Markdown."""
    head = ["corpus", "seed", "layer", "mean score", "lowest (head)", "rank correlation", "heads kept, moved, lost"]
    rows = [
        [
            row["corpus"],
            str(row["seed"]),
            str(row["layer"]),
            f"{row['score']:.2f}",
            f"{row['lowest']:.2f} ({row['lowest_head']})",
            f"{row['correlation']:.2f}",
            f"{row['kept']}, {row['moved']}, {row['lost']}",
        ]
        for row in heads
    ]
    return markdown(head, rows)


def lines(rows: list[dict[str, Any]], draws: int) -> list[str]:
    """The table as Markdown."""
    out = [
        "| corpus | seed | softmax kept in | error | "
        f"random, mean of {draws} (sd) | first | last | as initialised | by neighbours | best choice | rank "
        "| none kept |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        best = f"{row['best']:.3f} {row['best_layers']}"
        part = "" if row["choices"] == row["there_are"] else f", of {row['there_are']}"
        out.append(
            f"| {row['corpus']} | {row['seed']} | {row['suggested']} | {row['error']:.3f} | {row['random']:.3f} "
            f"({row['random_sd']:.3f}) | {row['first']:.3f} | {row['last']:.3f} "
            f"| {row['initialised']:.3f} {row['initialised_layers']} "
            f"| {row['neighbours']:.3f} {row['neighbours_layers']} | {best} "
            f"| {row['rank']} of {row['choices']}{part} | {row['none_kept']:.3f} |"
        )
    for name, label in (("error", ""), ("initialised", "as initialised, "), ("neighbours", "by neighbours, ")):
        better = sum(row[name] < row["random"] for row in rows)
        ratio = np.mean([row[name] / row["random"] for row in rows])
        over = f"{better} of {len(rows)}; error over theirs, mean {ratio:.2f}"
        out += ["", f"{label}better than the mean of random draws: {over}"]
    for name, label in LABELS.items():
        signs = [np.sign(row["error"] - row[name]) for row in rows]
        out += ["", f"against {label}: better {signs.count(-1)}, the same {signs.count(0)}, worse {signs.count(1)}"]
    return out


def draw(rows: list[dict[str, Any]]) -> Figure:
    """Return a panel per corpus and seed: all choices as dots, the suggestion and the random mean among them."""
    runs = list(dict.fromkeys((row["corpus"], row["seed"]) for row in rows))
    figure = new_figure(1.2 + 3.0 * len(runs), 3.6)
    axes = figure.subplots(1, len(runs), squeeze=False)[0]
    every = all(row["choices"] == row["there_are"] for row in rows)
    measured = "every choice" if every else f"choices, at most {max(len(row['all']) for row in rows)} of each number"
    for axis, run in zip(axes, runs, strict=True):
        its = [row for row in rows if (row["corpus"], row["seed"]) == run]
        for row in its:
            spread = np.linspace(-0.15, 0.15, len(row["all"]))
            axis.scatter(row["keep"] + spread, row["all"], s=12, color="#b5b9bf", label=measured)
        for name, marker, colour in (
            ("random", "_", "#b23b3b"),
            ("first", "^", "#d1853b"),
            ("last", "v", "#30459c"),
            ("initialised", "+", "#8e44ad"),
            ("neighbours", "x", "#1f2328"),
            ("error", "o", "#0b6e4f"),
        ):
            label = {"random": "mean of random draws", "error": "suggested", **LABELS}[name]
            size = 160 if marker == "_" else 34
            places = [row["keep"] for row in its]
            axis.scatter(places, [row[name] for row in its], s=size, marker=marker, color=colour, label=label, zorder=3)
        axis.set_xticks([row["keep"] for row in its])
        axis.set_ylim(bottom=0)
        axis.set_xlabel("layers that keep softmax")
        axis.set_title(f"{run[0]}, seed {run[1]}", fontsize=10)
        axis.grid(True, axis="y", color="#e6e6e6", linewidth=0.6)
        axis.set_axisbelow(True)
    axes[0].set_ylabel("relative error of the last hidden states")
    handles, labels = axes[0].get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend(unique.values(), unique.keys(), loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    return figure


@report_errors
def main(arguments: list[str] | None = None) -> int:
    """Parse the options and run the study."""
    parser = make_parser(__doc__)
    add_options(parser, "reviews")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--keep", default="1,2,3", help="how many layers keep softmax, with commas")
    parser.add_argument("--choices", type=int, help="of each number of layers, measure so many; default: every one")
    parser.add_argument("--draws", type=int, default=10, help="random choices of layers")
    parser.add_argument("--steps", type=int, default=300, help="of stage 1")
    parser.add_argument("--texts", type=int, help="for the suggestion; default: by corpus")
    parser.add_argument("--test", type=int, help="texts that hybrids are measured on; default: by corpus")
    parser.add_argument("--kernel", default="flexformer_p")
    parser.add_argument("--num-features", type=int, default=64)
    parser.add_argument("--out", default="runs/choose-layers")
    parser.add_argument("--progress", action="store_true", help="show stage 1's progress bar")
    options = parser.parse_args(arguments)
    return run(options)


def run(options: argparse.Namespace) -> int:
    """Run the study with parsed options."""
    corpora = corpora_of(options.model, options.corpora, "reviews")
    options.keep = numbers_of(options.keep, "--keep")
    check_least(options, draws=1, choices=1)
    rows, heads = [], []
    for corpus, seed in itertools.product(corpora, seeds_of(options.seeds)):
        say("layers", f"{corpus}, seed {seed}")
        of_layers, of_heads = measure(corpus, seed, options)
        rows, heads = rows + of_layers, heads + of_heads
    out = Path(options.out)
    tables = [*lines(rows, options.draws), "", *head_lines(heads)]
    write_results(out, {"settings": vars(options), "rows": rows, "heads": heads}, tables, draw(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
