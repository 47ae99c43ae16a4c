"""A small GPT trained on real English from scratch: softmax, every kernel, and a control that sees the last 8 tokens.

    python -m benchmarks.studies.train_sotu_gpt                                       # one seed of everything
    python -m benchmarks.studies.train_sotu_gpt --seeds 0,1,2 --once performer,rfa    # three seeds; of these two one

The text: the State of the Union addresses, 1790 to 2026, split by year (``benchmarks/assets/``). A byte-level BPE
vocabulary is trained on the training years. Every run has the same data in the same order, the same steps, the same
initial weights and the same number of parameters: what a kernel's feature maps hold is taken off the MLPs' width.

``softmax`` is the plain model, rotary positions and every second layer with a window of 4 tokens (the Qwen2
classes): such layers learn quickly what stands nearby, and leave the rest to the others. They keep softmax in every
model; the others are what is compared. ``last-8`` has windows in those too, so narrow that a
prediction depends on the last 8 tokens and on nothing before them. What softmax gains over it is what looking back is
worth here, and a kernel shall keep it. The linear models are converted before training (``hf_attn_ext.convert``) and
trained whole; their maps may learn faster (``--map-lr-factor``). ``--local-window 0`` has no local layers (Llama), and
``--positions learned`` is GPT-2, which has none either: with ``--kernels none`` one sees how softmax does there.

The library's training loop (``hf_attn_ext.training``) runs all of it. To continue a stopped run, repeat the command;
finished runs are read. Writes OUT/results.json, .md and .png; the models are in
OUT/NAME/seed-SEED/model.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator

import hf_attn_ext as hax
from benchmarks.assets import ensure
from benchmarks.studies.common.folders import claim, settings_of, tidy
from benchmarks.studies.common.options import check_sizes, make_parser, report_errors, say, seeds_of
from benchmarks.studies.common.texts import Texts, documents, load
from benchmarks.studies.common.vocabulary import train_tokenizer
from hf_attn_ext._util.files import new_folder, read_json, write_json
from hf_attn_ext.attention import list_kernels
from hf_attn_ext.cli.models import quiet
from hf_attn_ext.errors import AttnExtError, suggest
from hf_attn_ext.training import Stage2Config, metrics
from hf_attn_ext.training.data.encoding import Collator
from hf_attn_ext.training.journal import Journal
from hf_attn_ext.training.loop import train
from hf_attn_ext.training.stages.finetune import TaskStage, predict, score_logits

from .control import control_name, local_layers, windows
from .models import build_model
from .report import report

KERNELS = ["flexformer_p", "hedgehog", "elu", "flexformer_n", "flexformer_s", "flexformer_sq", "performer", "rfa"]
KERNELS += ["cosformer", "polaformer"]

CHOSEN = ("kernels", "once")  # which runs there are; everything else is a setting of them all


def run(name: str, seed: int, options: argparse.Namespace, texts: Texts, accelerator: Any) -> dict[str, Any]:
    """Train one model and measure it on the test addresses; a finished run is read from its file."""
    folder = Path(options.out) / name / f"seed-{seed}"
    settings = settings_of(options, CHOSEN)
    claim(folder, settings)
    if (folder / "result.json").is_file():
        return read_json(folder / "result.json")

    model = build_model(name, options, len(texts.tokenizer), texts.tokenizer.eos_token_id, seed)
    layers, collate = hax.converted_layers(model), Collator(texts.tokenizer, "language_modeling")
    config = Stage2Config(
        steps=options.steps,
        batch_size=options.batch_size,
        lr=options.lr,
        feature_map_lr=options.lr * options.map_lr_factor,
        weight_decay=options.weight_decay,
        beta2=0.95,
        schedule="cosine",
        warmup=0.1,
        max_grad_norm=1.0,
        evaluate_every=math.ceil(options.steps / 4),
    )
    stage = TaskStage(
        name,
        model,
        config,
        "language_modeling",
        "perplexity",
        texts.validation,
        collate,
        accelerator,
        feature_maps=[parameter for layer in layers for parameter in layer.feature_map.parameters()],
    )
    start = time.perf_counter()
    validation = train(
        stage,
        config,
        texts.train,
        collate,
        accelerator,
        steps=options.steps,
        folder=folder / "checkpoints",
        journal=Journal(folder / "metrics.jsonl", accelerator),
        seed=seed,
        log_every=max(1, options.steps // 40),
        progress=True,
    )
    seconds = time.perf_counter() - start
    model, _ = stage.release()
    rows = predict(model, texts.test, collate, accelerator, task="language_modeling")
    result = {
        "name": name,
        "seed": seed,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "feature_dim": layers[0].feature_map.feature_dim if layers else None,
        "scores": score_logits(rows, None, "language_modeling"),
        "standard_errors": metrics.standard_errors(None, rows, "language_modeling"),
        "validation": validation,
        "seconds": round(seconds, 1),
        "settings": settings,
    }
    if name != control_name(options):  # its folder would open as plain softmax: windows are no part of a GPT-2
        with new_folder(folder / "model") as target:
            model.save_pretrained(target)
            texts.tokenizer.save_pretrained(target)
    np.save(folder / "losses.npy", rows)
    write_json(folder / "result.json", result)
    tidy(folder)
    return result


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the study's options."""
    parser = make_parser(__doc__)
    parser.add_argument("--kernels", default=",".join(KERNELS), help="with commas; none: the two baselines alone")
    parser.add_argument("--seeds", default="0", help="with commas; each is a run of every model")
    parser.add_argument("--once", default="", help="kernels that get the first seed alone, with commas")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument(
        "--positions",
        default="rotary",
        choices=("learned", "rotary"),
        help="GPT-2, or Qwen2 (Llama without local layers)",
    )
    parser.add_argument("--local-window", type=int, default=4, help="of every second layer in all models; 0: none")
    parser.add_argument("--context", type=int, default=256, help="tokens of a sequence")
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--feature-dim", type=int, default=64, help="features of a head; some kernels have their own")
    parser.add_argument("--window", type=int, default=8, help="tokens that the control sees")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument(
        "--batch-size", type=int, default=4, help="small: a young model learns from the number of steps"
    )
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--initializer-range", type=float, default=0.05, help="of rotary models; they are narrow")
    parser.add_argument("--map-lr-factor", type=float, default=1.0, help="learning rate of the feature maps, over --lr")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--validation-sequences", type=int, default=128, help="they choose the checkpoint")
    parser.add_argument("--test-sequences", type=int, default=None, help="default: all")
    parser.add_argument("--precision", default="no", choices=("no", "bf16"))
    parser.add_argument("--out", default="runs/sotu")
    return parser


def check(options: argparse.Namespace) -> list[tuple[str, int]]:
    """Return the runs, pairs of a model's name and a seed; raise AttnExtError for what does not fit."""
    kernels = [name for name in options.kernels.split(",") if name and name != "none"]
    once = [name for name in options.once.split(",") if name]
    for name in kernels:
        if name not in list_kernels():
            raise AttnExtError(f"unknown kernel {name!r}.{suggest(name, list_kernels())}")
    for name in once:
        if name not in kernels:
            raise AttnExtError(f"--once names {name!r}, which is not in --kernels.{suggest(name, kernels)}")
    seeds = seeds_of(options.seeds)
    for name, value in vars(options).items():
        if isinstance(value, int) and value < 1 and (name, value) != ("local_window", 0):
            raise AttnExtError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    if any(local_layers(options)) and options.layers < 2:
        raise AttnExtError("--layers 1 leaves only local layers; give more, or --local-window 0")
    check_sizes(options)
    windows(options)
    names = ["softmax", control_name(options), *kernels]
    return [(name, seed) for name in names for seed in (seeds[:1] if name in once else seeds)]


@report_errors
def main(arguments: list[str] | None = None) -> None:
    """Parse the options and run the study."""
    options = build_parser().parse_args(arguments)
    runs = check(options)

    quiet()
    accelerator = Accelerator(mixed_precision=options.precision)
    folder, sizes = ensure("sotu"), (options.validation_sequences, options.test_sequences)
    tokenizer_folder = Path(options.out) / f"tokenizer-{options.vocabulary}"
    tokenizer = train_tokenizer(tokenizer_folder, load(folder).train.texts, options.vocabulary)
    texts = documents(folder, tokenizer, options.context, True, *sizes)
    results = []
    for name, seed in runs:
        result = run(name, seed, options, texts, accelerator)
        perplexity, minutes = result["scores"]["perplexity"], result["seconds"] / 60
        say("sotu", f"{name} seed {seed}: {perplexity:.2f}, {minutes:.1f} min")
        results.append(result)
    report(results, options, settings_of(options, CHOSEN), texts)


if __name__ == "__main__":
    sys.exit(main())
