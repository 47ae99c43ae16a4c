"""The main job, end to end, on real weights and real text.

    python -m benchmarks.studies.demo.encoder    # make demo: MiniLM, review sentences, 8 minutes on two cores
    python -m benchmarks.studies.demo.encoder --model roberta-base --data glue/sst2    # hub ids

Fine-tunes the teacher, converts every layer to linear attention, trains the kernels (stage 1) and then the model on its
task (stage 2), and measures at every step, together with a control without attention. The result is saved, opened again
by a fresh process with plain ``AutoModelForSequenceClassification``, and its model card written. The weights and
buffers that the process opened must equal the saved ones bit for bit, its logits those of the run within a tolerance.
All of it is the library's: ``hf_attn_ext.training.distill`` and ``hf_attn_ext.hub.card``.

The default task is regression: the valence, from -4 to 4, that people gave to sentences of film reviews, split by
film. To continue a stopped run, repeat the command.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.assets import ensure
from benchmarks.studies.common.options import make_parser, report_errors
from benchmarks.studies.common.results import group_draws

from .fresh_process import (
    add_set_option,
    check_reopened,
    peak_memory,
    print_ending,
    print_table,
    reopen,
    silence_transformers,
)

START = time.perf_counter()

# What the fresh process runs: transformers and `import hf_attn_ext`, nothing else of ours. It makes the batches that
# the evaluation made (longest first, 64 at a time), because sums in another order may differ in the last bit.
RELOAD = """
import sys
import numpy as np, torch
import hf_attn_ext
from transformers import AutoModelForSequenceClassification, AutoTokenizer

folder, task, out = sys.argv[1:]
task = np.load(task)
torch.set_num_threads(int(task["threads"]))
device = str(task["device"])
model = AutoModelForSequenceClassification.from_pretrained(folder).to(device).eval()
tokenizer = AutoTokenizer.from_pretrained(folder)
columns = [[str(text) for text in task[name]] for name in ("texts", "pairs") if name in task]
logits = []
with torch.no_grad():
    for rows in np.split(task["rows"], task["cuts"]):
        texts = [[column[row] for row in rows] for column in columns]
        limits = dict(truncation=True, max_length=int(task["max_length"]))
        batch = tokenizer(*texts, **limits, padding=True, return_tensors="pt").to(device)
        logits.append(model(**batch).logits.cpu().numpy())
np.savez(out, logits=np.concatenate(logits), tensors=json.dumps(tensor_digests(model.state_dict())))
"""


def configuration(options: argparse.Namespace) -> Any:
    """The run's :class:`DistillConfig`: the embedded default, or general settings for another model or data set."""
    from hf_attn_ext._util.settings import apply_overrides
    from hf_attn_ext.training import DistillConfig

    embedded = options.data == "reviews"
    data: dict[str, Any] = {"path": options.data, "max_length": 128}
    if embedded or Path(options.data).is_dir():
        folder = ensure("reviews") if embedded else Path(options.data)
        files = {split: f"{split}.csv" for split in ("train", "validation", "test")}
        data = {"path": str(folder), **files, "max_length": 64}
        if embedded:
            data["group_column"] = "movie"
    # Little more than one pass over the data: dropout has nothing to prevent. Larger models want smaller steps. Stage 2
    # mends what stage 1 left, and large steps undo it (Pearson on the validation films: 0.771 at 1e-4, 0.783 at 3e-5).
    model, teacher_lr, lr = {"name": options.model}, 3e-5, 1e-5
    if options.model == "minilm":
        model, teacher_lr, lr = {"name": str(ensure("minilm")), "dropout": 0.0}, 2e-4, 3e-5
    settings: dict[str, Any] = {
        "model": model,
        "data": data,
        "kernel": {"kernel": options.kernel, "num_features": options.num_features},
        "output": {"folder": options.out},
        "seed": options.seed,
        "control": True,
        # Evaluated at the end of each stage only: every evaluation costs seconds of the eight minutes.
        "teacher": {**TASK, "steps": 300, "lr": teacher_lr, "evaluate_every": 300},
        "stage1": {
            "steps": 300,
            "batch_size": 12,
            "lr": 3e-2,
            "evaluate_every": 300,
            "eval_sequences": 256,
            "group_by_length": True,
        },
        "stage2": {**TASK, "steps": 100, "lr": lr, "feature_map_lr": 3e-4, "evaluate_every": 100},
    }
    return DistillConfig.from_dict(apply_overrides(settings, options.set), where="demo")


TASK = {"batch_size": 32, "warmup": 0.1, "group_by_length": True}


def reopened(folder: Path, model: Path, config: Any) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Open ``model`` in a fresh process.

    Returns:
        What the process wrote, and the logits that the run wrote for the same texts when it measured the model.
    """
    from hf_attn_ext.training.data.encoding import Collator, encode, evaluation_batches
    from hf_attn_ext.training.data.loading import load_task_data
    from hf_attn_ext.training.stages.teacher import load_tokenizer

    split, tokenizer = load_task_data(config.data).test, load_tokenizer(config.model)
    encoded = encode(split, tokenizer, config.data.max_length)
    batches = [batch["index"].numpy() for batch in evaluation_batches(encoded, Collator(tokenizer), 64)]
    batches = batches[:: max(1, len(batches) // 8)]  # eight of them tell as much as all
    rows = np.concatenate(batches)
    task = {"texts": np.array(split.texts), "rows": rows, "cuts": np.cumsum([len(b) for b in batches])[:-1]}
    if split.pairs is not None:
        task["pairs"] = np.array(split.pairs)
    fresh = reopen(RELOAD, model, {**task, "max_length": config.data.max_length})
    return fresh, np.load(folder / "logits" / "stage2.npy")[rows]


def gap_closed_error(folder: Path, config: Any, metric: str, resamples: int = 200) -> float:
    """Standard error of the share of the gap that is closed: bootstrap over films (or over examples)."""
    from hf_attn_ext.training import metrics
    from hf_attn_ext.training.data.loading import load_task_data

    data = load_task_data(config.data)
    labels, task = data.test.labels, data.labels.task
    function = metrics.metrics_of(task)[metric]
    logits = [np.load(folder / "logits" / f"{name}.npy") for name in ("teacher", "control", "stage2")]
    predictions = [metrics.predictions_of(values, task) for values in logits]
    groups = np.arange(len(labels)) if data.test.groups is None else np.asarray(data.test.groups)
    shares = []
    for rows in group_draws(groups, resamples):
        teacher, control, student = (function(labels[rows], values[rows]) for values in predictions)
        shares.append((student - control) / (teacher - control) if teacher != control else np.nan)
    return float(np.nanstd(shares, ddof=1))


def run(options: argparse.Namespace) -> int:
    """Distil, reopen in a fresh process, and print; return 0, or 1 where the opened model differs."""
    from hf_attn_ext.hub.card import write_card
    from hf_attn_ext.training import distill

    silence_transformers()
    config = configuration(options)
    result = distill(config)
    fresh, logits = reopened(result.folder, result.model_folder, config)

    results = dict(result.results)
    share = ""
    if results.get("gap_closed") is not None:
        results["gap_closed_standard_error"] = gap_closed_error(result.folder, config, results["metric"])
        share = (
            f"gap closed: {results['gap_closed']:.1%} ± {results['gap_closed_standard_error']:.1%}; the gap between "
        )
        share += (
            f"teacher and control is {results['gap']:.4f} ± {results['gap_standard_error']:.4f} {results['metric']}"
        )
    results["peak_memory_mb"] = round(peak_memory())
    known = {}
    if options.model == "minilm":  # the folder's weights are this hub model's, unchanged
        known = {"base_model": "sentence-transformers/all-MiniLM-L6-v2", "license": "apache-2.0", "language": "en"}
    card = write_card(result.model_folder, results, **known)

    console = print_table(results)
    if share:
        console.print(share)
    same = check_reopened(console, result.model_folder, fresh, {"logits": logits})
    print_ending(console, results, result.model_folder, card, START)
    return 0 if same else 1


@report_errors
def main(arguments: list[str] | None = None) -> int:
    """Parse the options and run the demo."""
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="minilm", help="minilm (embedded), a folder, or a hub id")
    parser.add_argument(
        "--data",
        default="reviews",
        help="reviews (embedded), a folder with train.csv, validation.csv and test.csv, or a hub id such as glue/sst2",
    )
    parser.add_argument("--kernel", default="flexformer_p", help="see hf-attn-ext list")
    parser.add_argument("--num-features", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default=None, help="the run's folder; default runs/demo-MODEL-DATA-KERNEL-SEED")
    add_set_option(parser)
    options = parser.parse_args(arguments)
    if options.out is None:
        names = [options.model, options.data, options.kernel, str(options.seed)]
        options.out = str(Path("runs") / "-".join(["demo", *(name.strip("./").replace("/", "-") for name in names)]))
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
