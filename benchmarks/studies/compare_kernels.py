"""The honest comparison: every kernel, equal features, steps and data, on films that no kernel has seen.

    python -m benchmarks.studies.compare_kernels                          # 128 and 512 tokens, three seeds: hours
    python -m benchmarks.studies.compare_kernels --lengths 128 --seeds 0  # a part of it

The task: a sentence of a review, followed by a page of other sentences about the same film; predict the valence (-4 to
4, rated by people) of the sentence. Attention has to keep the rest of the page out of it. Pages are split by film, and
hold up to 128 or 512 tokens.

For each length: one teacher (MiniLM, fine-tuned) and one control without attention. For each kernel that has something
to train, the learning rate of stage 1 is chosen on the validation films, over the same grid for all, on pages of 128
tokens; then, for each seed, stage 1 and stage 2. Reported on the test films: output error (relative squared error of a
head's output; next to it, the same without the square), KL to softmax, and the task's Pearson correlation after each
stage. Means and standard deviations over seeds.

To continue a stopped comparison, repeat the command. Writes OUT/comparison.json, .md and .png.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from transformers import AutoTokenizer

from benchmarks.assets import ensure
from benchmarks.studies.common.options import known_names, make_parser, numbers_of, report_errors, say, seeds_of
from benchmarks.studies.common.results import BLUE, GREEN, GREY, OURS, RED, markdown, new_figure, shown, write_results
from benchmarks.studies.common.texts import read_reviews
from hf_attn_ext._util.files import atomic_write
from hf_attn_ext.training import DistillConfig, distill

# name: (num_features for 128 features, or 136; learning rates of stage 1 to choose from)
GRID = (1e-2, 2e-2, 4e-2, 8e-2)
KERNELS: dict[str, tuple[int, tuple[float, ...]]] = {
    "flexformer_p": (64, GRID),
    "hedgehog": (64, GRID),
    "flexformer_sq": (8, GRID),
    "flexformer_n": (64, GRID),
    "flexformer_s": (64, GRID),
    "performer": (128, ()),
}
TASK = {"batch_size": 16, "warmup": 0.1, "group_by_length": True}
TEACHER = {**TASK, "lr": 1e-4}
STAGE2 = {**TASK, "lr": 3e-5, "feature_map_lr": 3e-4}  # of all kernels and of the control
# of each length: pages to train on, teacher's, stage 1's and stage 2's steps, sequences a step in stage 1, test
# pages, and of these the ones that output error and KL are measured on
BUDGETS = {
    128: {"pages": 4000, "teacher": 60, "stage1": 300, "batch": 3, "stage2": 24, "test": 300, "measured": 64},
    512: {"pages": 1600, "teacher": 40, "stage1": 160, "batch": 2, "stage2": 6, "test": 120, "measured": 20},
}
QUERIES = 32  # of each sequence enter the loss of stage 1, drawn anew each time


def write_pages(folder: Path, length: int, budget: dict[str, int]) -> None:
    """Write ``train.csv``, ``validation.csv`` and ``test.csv`` of pages with about ``length`` tokens to ``folder``."""
    tokenizer = AutoTokenizer.from_pretrained(ensure("minilm"))
    for split, size in (("train", budget["pages"]), ("validation", 200), ("test", budget["test"])):
        target = folder / f"{split}.csv"
        if target.is_file():
            continue
        rows = read_reviews(split)
        lengths = [len(ids) for ids in tokenizer([row["text"] for row in rows], add_special_tokens=False)["input_ids"]]
        films: dict[str, list[int]] = {}
        for index, row in enumerate(rows):
            films.setdefault(row["movie"], []).append(index)
        generator = np.random.default_rng([length, len(rows)])
        pages = []
        for index in generator.permutation(len(rows)):
            row, total, sentences = rows[index], lengths[index], []
            for other in generator.permutation(films[row["movie"]]):
                if other != index and total < length:
                    sentences.append(rows[other]["text"])
                    total += lengths[other]
            if sentences and total >= 0.75 * length:  # films with few sentences make no full page
                pages.append({**row, "page": " ".join(sentences)})
            if len(pages) == size:
                break
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(target) as temporary_path, open(temporary_path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["text", "page", "label", "movie"])
            writer.writeheader()
            writer.writerows(pages)


class Comparison:
    """All runs of one page length, each a resumable distillation of the library's."""

    def __init__(self, length: int, options: argparse.Namespace, tuner: Comparison | None = None):
        self.length, self.options = length, options
        self.tuner = tuner or self  # whose pages choose the learning rates
        self.budget = {name: max(1, round(value * options.scale)) for name, value in BUDGETS[length].items()}
        self.budget["batch"] = BUDGETS[length]["batch"]
        self.folder = Path(options.out) / str(length)
        self.pages = self.folder / "pages"
        write_pages(self.pages, length, self.budget)

    def run(self, name: str, kernel: str, seed: int, **settings: Any) -> dict[str, Any]:
        """Run one distillation in its own folder; return its results."""
        num_features = KERNELS[kernel][0] if kernel in KERNELS else 1
        config = {
            "model": {"name": str(self.folder / "teacher" / "teacher")},
            "data": self.data(),
            "kernel": {"kernel": kernel, "num_features": num_features},
            "output": {"folder": str(self.folder / name), "progress": self.options.progress},
            "seed": seed,
            "mixed_precision": self.options.precision,
            "measure": ["stage1", "stage2"],
            "stage1": {"steps": 0, "eval_sequences": 8},
            "stage2": {"steps": 0},
        } | settings
        return distill(DistillConfig.from_dict(config, where="comparison")).results

    def data(self) -> dict[str, Any]:
        """Return the data section of a configuration."""
        return {
            "path": str(self.pages),
            **{split: f"{split}.csv" for split in ("train", "validation", "test")},
            "text_pair_column": "page",
            "group_column": "movie",
            "max_length": self.length,
            "task": "regression",
        }

    def stage1(self, lr: float) -> dict[str, Any]:
        """Return the section of stage 1."""
        return {
            "steps": self.budget["stage1"],
            "batch_size": self.budget["batch"],
            "queries_per_sequence": QUERIES,
            "lr": lr,
            "evaluate_every": self.budget["stage1"],
            "eval_sequences": self.budget["measured"],
        }

    def stage2(self) -> dict[str, Any]:
        """Return the section of stage 2."""
        steps = self.budget["stage2"]
        return {**STAGE2, "steps": steps, "evaluate_every": steps}

    def baselines(self) -> dict[str, Any]:
        """The teacher's scores, and the control's after the same stage 2.

        The teacher learns the task on single sentences first, which is cheap, then on pages of 128, then of 512.
        """
        if self.tuner is self:
            first = max(1, round(240 * self.options.scale))
            sentences = {**TEACHER, "batch_size": 32, "steps": first, "evaluate_every": first}
            reviews = {**self.data(), "path": str(ensure("reviews")), "text_pair_column": None, "max_length": 64}
            self.run(
                "../sentences",
                "uniform",
                0,
                model={"name": str(ensure("minilm"))},
                data={**reviews, "max_eval_examples": 500},
                teacher=sentences,
                measure=[],
            )
            before = self.folder.parent / "sentences"
        else:
            before = self.tuner.folder / "teacher"
        steps = self.budget["teacher"]
        results = self.run(
            "teacher",
            "uniform",
            0,
            model={"name": str(before / "teacher")},
            teacher={**TEACHER, "steps": steps, "evaluate_every": steps},
            stage2=self.stage2(),
            measure=["teacher", "stage2"],
        )
        return {
            "teacher": results["scores"]["teacher"]["pearson"],
            "teacher_error": results["standard_errors"]["teacher"]["pearson"],
            "control": results["scores"]["stage2"]["pearson"],
            "control_error": results["standard_errors"]["stage2"]["pearson"],
            "versions": results["versions"],
        }

    def choose_lr(self, kernel: str) -> tuple[float, dict[str, float]]:
        """The learning rate of stage 1 with the least loss on the validation films, after half the steps, seed 0."""
        losses = {}
        for lr in KERNELS[kernel][1]:
            stage1 = self.stage1(lr)
            steps = max(1, stage1["steps"] // 2)
            few = {"max_eval_examples": 48}  # no task score is needed here
            stage1 = {**stage1, "steps": steps, "evaluate_every": steps}
            results = self.run(
                f"{kernel}/lr-{lr:g}", kernel, 0, stage1=stage1, data={**self.data(), **few}, measure=["stage1"]
            )
            transfer = results["transfer"]["stage1"]
            losses[f"{lr:g}"] = transfer["kl"] + transfer["output_error"]
        return float(min(losses, key=losses.get)) if losses else 0.0, losses

    def kernel(self, kernel: str, seeds: list[int]) -> dict[str, Any]:
        """Return the results of one kernel over the seeds."""
        lr, losses = self.tuner.choose_lr(kernel)
        # stage 1 is measured on the validation split: here these are the test films, which chose nothing
        test = {**self.data(), "validation": "test.csv"}
        rows = []
        for seed in seeds:
            results = self.run(
                f"{kernel}/seed-{seed}", kernel, seed, stage1=self.stage1(lr), stage2=self.stage2(), data=test
            )
            transfer = results["transfer"]["stage1"]
            rows.append(
                {
                    "output error": transfer["output_error"],
                    "root": transfer["root_output_error"],
                    "KL": transfer["kl"],
                    "stage 1": results["scores"]["stage1"]["pearson"],
                    "stage 2": results["scores"]["stage2"]["pearson"],
                }
            )
        return {"feature_dim": results["feature_dim"], "lr": lr, "lr_losses": losses, "seeds": seeds, "runs": rows}


COLUMNS = ("output error", "root", "KL", "stage 1", "stage 2")


def lines(length: int, report: dict[str, Any]) -> list[str]:
    """The table of one length as Markdown."""
    base = report["baselines"]
    head = ["kernel", "features", "lr", "output error", "without the square", "KL (nats)"]
    rows = []
    for kernel, row in report["kernels"].items():
        cells = [shown([run[column] for run in row["runs"]]) for column in COLUMNS]
        rows.append([kernel, str(row["feature_dim"]), f"{row['lr']:g}" if row["lr"] else "-", *cells])
    out = [
        f"{length} tokens; Pearson of the teacher {base['teacher']:.3f} ± {base['teacher_error']:.3f}, of the control "
        f"without attention {base['control']:.3f} ± {base['control_error']:.3f} (standard errors over test pages)",
        "",
        *markdown([*head, "Pearson, stage 1", "Pearson, stage 2"], rows),
    ]
    kernels = report["kernels"]
    if "hedgehog" in kernels and len(kernels) > 1:
        mean = {name: {c: np.mean([run[c] for run in row["runs"]]) for c in COLUMNS} for name, row in kernels.items()}
        best = min((name for name in mean if name != "hedgehog"), key=lambda name: mean[name]["output error"])
        parts = [f"{column} {mean[best][column] / mean['hedgehog'][column] - 1:+.1%}" for column in COLUMNS[:3]]
        parts += [f"{column} {mean[best][column] - mean['hedgehog'][column]:+.3f}" for column in COLUMNS[3:]]
        out += ["", f"{best} against hedgehog: {', '.join(parts)}"]
    return out


def draw(report: dict[str, Any]) -> Figure:
    """Return bars of output error, KL and score, a panel each, for each length."""
    figure = new_figure(13, 0.6 + 2.9 * len(report))
    axes = figure.subplots(len(report), 3, squeeze=False)
    for row, (length, part) in zip(axes, report.items(), strict=True):
        names = list(part["kernels"])
        places = np.arange(len(names))
        for axis, column, title in zip(
            row,
            ("output error", "KL", "stage 2"),
            ("output error (lower is better)", "KL to softmax, nats (lower is better)", "Pearson after stage 2"),
            strict=True,
        ):
            values = [[run[column] for run in part["kernels"][name]["runs"]] for name in names]
            means = [np.mean(v) for v in values]
            spread = [np.std(v, ddof=1) if len(v) > 1 else 0 for v in values]
            axis.barh(places, means, xerr=spread, color=[GREEN if name.startswith(OURS) else GREY for name in names])
            axis.set_yticks(places, names)
            axis.invert_yaxis()
            axis.set_title(f"{length} tokens: {title}", fontsize=10)
            if column == "stage 2":
                base = part["baselines"]
                axis.axvline(base["teacher"], color=BLUE, linestyle="--", label="teacher")
                axis.axvline(base["control"], color=RED, linestyle=":", label="control")
                axis.set_xlim(left=min(0, *means))
                axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2, frameon=False)
    return figure


@report_errors
def main(arguments: list[str] | None = None) -> None:
    """Parse the options and run the study."""
    parser = make_parser(__doc__)
    parser.add_argument("--lengths", default="128,512", help="of 128 and 512, with commas")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--kernels", default=",".join(KERNELS))
    parser.add_argument("--scale", type=float, default=1.0, help="factor on pages, steps and test pages")
    parser.add_argument("--precision", default="no", choices=("auto", "bf16", "no"), help="no: float32 throughout")
    parser.add_argument("--out", default="runs/compare")
    parser.add_argument("--progress", action="store_true", help="show each run's progress bars")
    options = parser.parse_args(arguments)
    lengths = known_names(numbers_of(options.lengths, "--lengths"), BUDGETS, "length")
    seeds, kernels = seeds_of(options.seeds), known_names(options.kernels.split(","), KERNELS, "kernel")
    report: dict[str, Any] = {}
    tuner = Comparison(min(BUDGETS), options)
    tuner.baselines()
    for length in lengths:
        comparison = tuner if length == tuner.length else Comparison(length, options, tuner)
        say("compare", f"{length} tokens: teacher and control")
        part = report[str(length)] = {"baselines": comparison.baselines(), "kernels": {}, "budget": comparison.budget}
        for kernel in kernels:
            say("compare", f"{length} tokens: {kernel}")
            part["kernels"][kernel] = comparison.kernel(kernel, seeds)
    tables = "\n\n".join("\n".join(lines(int(length), part)) for length, part in report.items())
    write_results(Path(options.out), report, [tables], draw(report), "comparison")


if __name__ == "__main__":
    sys.exit(main())
