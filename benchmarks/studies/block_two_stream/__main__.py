"""Blocks of tokens in one pass: a language model fine-tuned with block two-stream, and next-token training.

    python -m benchmarks.studies.block_two_stream                # a small GPT on the State of the Union addresses
    python -m benchmarks.studies.block_two_stream --seeds 0,1,2  # three seeds of everything
    python -m benchmarks.studies.block_two_stream --model mgm    # a real GPT-2 (microbiome), on texts that it wrote

Every model of a seed starts from the same weights and sees the same texts in the same order, for the same number of
steps. ``sotu`` first trains a small GPT (rotary positions) for the next token; ``mgm`` is a checkpoint of others, whose
training texts nobody has: its own samples stand in for them. Each kernel's model is the base model converted, with
its feature maps trained on the softmax stream (stage 1). Then each is trained on for the next token, or under
``set_mask(model, "block_two_stream", block_size=l)``, where a step has twice as many positions for as many predictions.

Measured on held-out text, in nats a token, over the same tokens for all (a sequence's first is left out):

- as trained: the next token's loss, or that of blocks, which start at multiples of the block size. The first token of
  a block is predicted from all that came before, as a next token is; the others from ever less.
- next token: the loss of the plain causal model with those weights, which block training does not look after.
- tokens per second of one text: ``block_generate`` and ``generate()`` with its cache, by the clock.

The control, ``unigram``, predicts every token by its share in the training text. A model that predicts a block without
seeing its context has mask tokens and positions to go by and could do little better.

To continue a stopped run, repeat the command; finished runs are read. Writes OUT/results.json, .md
and .png; the models are in OUT/ATTENTION/TRAINING/seed-SEED/model. From the time of single steps, one seed of either
model should take some 20 minutes on one or two cores: an estimate, to be checked.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

import hf_attn_ext as hax
from benchmarks.studies.common.folders import claim, settings_of, tidy, whole_file
from benchmarks.studies.common.objectives import Blocks, NextToken
from benchmarks.studies.common.options import (
    check_numbers,
    check_sizes,
    each_once,
    make_parser,
    one_process,
    rates_of,
    report_errors,
    say,
    seeds_of,
)
from benchmarks.studies.common.rates import chosen_rate
from benchmarks.studies.common.results import mean_loss
from benchmarks.studies.common.training import fit, token_losses
from hf_attn_ext._util.files import new_folder, read_json, write_json
from hf_attn_ext.attention import list_kernels
from hf_attn_ext.errors import AttnExtError, suggest

from .generation import prompt_of, tokens_per_second, write_blocks, write_tokens
from .report import report
from .start import converted_folder, open_model, stock_folder, texts_of

CHOSEN = ("attention", "blocks")  # which runs there are; everything else is a setting of them all
SIZES: dict[str, dict[str, Any]] = {
    "sotu": {"context": 128, "steps": 400, "batch_size": 8, "lr": "5e-4,1e-3,2e-3", "test_sequences": 256},
    "mgm": {"context": 96, "steps": 80, "batch_size": 8, "lr": "2e-4,5e-4,1e-3", "test_sequences": 128},
}


def trained(
    training: str,
    seed: int,
    steps: int,
    lr: float,
    folder: Path,
    options: argparse.Namespace,
    texts: Any,
    here: Path,
    accelerator: Any,
) -> tuple[Any, Any, float]:
    """The model of ``folder`` trained on, what made its batches, and its loss on the validation texts."""
    model, collate = opened(training, folder, texts.tokenizer)
    model, loss = fit(
        training,
        model.to(accelerator.device),
        collate,
        texts,
        here,
        accelerator,
        steps=steps,
        batch_size=options.batch_size,
        lr=lr,
        weight_decay=options.weight_decay,
        seed=seed,
    )
    return model, collate, loss


def opened(training: str, folder: Path, tokenizer: Any) -> tuple[Any, Any]:
    """The model of ``folder`` under the mask of a training, and what makes its batches."""
    model = open_model(folder, tokenizer).eval()
    if not block_of(training):
        return model, NextToken(tokenizer)
    hax.set_mask(model, "block_two_stream", block_size=block_of(training))
    return model, Blocks(tokenizer, model)


def block_of(training: str) -> int | None:
    """The block size of ``block-4`` and the like."""
    return int(training.removeprefix("block-")) if training.startswith("block-") else None


def run_folder(options: argparse.Namespace, attention: str, training: str, seed: int) -> Path:
    """Return the folder of one run."""
    return Path(options.out) / attention / training / f"seed-{seed}"


def rate_of(
    training: str, seed: int, folder: Path, options: argparse.Namespace, texts: Any, accelerator: Any
) -> float | None:
    """The learning rate of a training, chosen in shorter runs of one seed, whose own rate falls to the end too."""
    if training == "start":
        return None

    def loss_at(lr: float, here: Path) -> float:
        steps = max(1, round(options.steps * options.tune_share))
        return trained(training, seed, steps, lr, folder, options, texts, here, accelerator)[2]

    return chosen_rate(rates_of(options.lr), loss_at, Path(options.out) / "rates" / training, seed)


def run(
    attention: str,
    training: str,
    seed: int,
    lr: float | None,
    folder: Path,
    options: argparse.Namespace,
    texts: Any,
    accelerator: Any,
) -> dict[str, Any]:
    """Train one model from ``folder`` and measure it; a finished run is read from its file.

    Args:
        attention: ``softmax``, or a kernel.
        training: ``start`` (none), ``next``, or ``block-4`` and the like.
        lr: the learning rate; None for ``start``.
    """
    here = run_folder(options, attention, training, seed)
    claim(here, {**settings_of(options, CHOSEN), "rate": lr})
    if (here / "result.json").is_file():
        tidy(here)
        return read_json(here / "result.json")
    tokenizer, block = texts.tokenizer, block_of(training)
    result: dict[str, Any] = {"attention": attention, "training": training, "seed": seed}
    result |= {"block_size": block, "rate": lr}
    if lr is None:
        model, collate = opened(training, folder, tokenizer)
        model.to(accelerator.device)
    else:
        model, collate, result["validation"] = trained(
            training, seed, options.steps, lr, folder, options, texts, here, accelerator
        )
        with new_folder(here / "model") as target:
            model.save_pretrained(target)
            tokenizer.save_pretrained(target)
    own = token_losses(model, texts.test, collate, accelerator.device)
    result |= {"as_trained": mean_loss(own), "by_place": by_place(own, block or 1)}
    following = own
    if block:
        hax.set_mask(model, None)
        following = token_losses(model, texts.test, NextToken(tokenizer), accelerator.device)
    result |= {"next_token": mean_loss(following), "parameters": model.num_parameters()}
    with whole_file(here / "losses.npz") as file:
        np.savez(file, as_trained=own, next_token=following)
    write_json(here / "result.json", result)
    tidy(here)
    return result


def with_speeds(
    results: list[dict[str, Any]], options: argparse.Namespace, texts: Any, accelerator: Any
) -> list[dict[str, Any]]:
    """The results with the tokens that each trained model writes in a second.

    Measured once all models are trained, in one stretch of time; read where all were measured before.
    """
    folders = {
        index: run_folder(options, result["attention"], result["training"], result["seed"])
        for index, result in enumerate(results)
        if result["training"] != "start"
    }
    if not all((folder / "speed.json").is_file() for folder in folders.values()):
        prompt, numbers = prompt_of(texts.test, options.prompt_tokens), (options.new_tokens, options.repeats)
        for index, folder in folders.items():
            training = results[index]["training"]
            model, _ = opened(training, folder / "model", texts.tokenizer)
            write = write_blocks if block_of(training) else write_tokens
            speed = tokens_per_second(write, model.to(accelerator.device), texts.tokenizer, prompt, *numbers)
            write_json(folder / "speed.json", {"tokens_per_second": speed})
    return [
        result | (read_json(folders[index] / "speed.json") if index in folders else {})
        for index, result in enumerate(results)
    ]


def by_place(losses: np.ndarray, block: int) -> list[float | None]:
    """The mean loss of each place of a block; None where only a sequence's first token has it."""
    places = np.arange(losses.shape[1]) % block
    parts = [losses[:, places == place] for place in range(block)]
    return [None if np.isnan(part).all() else float(np.nanmean(part)) for part in parts]


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the study's options."""
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="sotu", choices=tuple(SIZES))
    parser.add_argument("--attention", default="softmax,flexformer_p", help="softmax and kernels, with commas")
    parser.add_argument("--blocks", default="2,4,8", help="block sizes, with commas")
    parser.add_argument("--seeds", default="0", help="with commas; each is a run of everything")
    parser.add_argument("--context", type=int, default=None, help="tokens of a sequence; default: 128, mgm 96")
    parser.add_argument("--steps", type=int, default=None, help="of every fine-tuning; default: 400, mgm 80")
    parser.add_argument("--batch-size", type=int, default=None, help="sequences of a step; default: 8")
    parser.add_argument(
        "--lr", default=None, help="with commas; default: 5e-4,1e-3,2e-3, mgm 2e-4,5e-4,1e-3: the best by held-out loss"
    )
    parser.add_argument("--tune-share", type=float, default=0.5, help="of the steps, to choose the rate by")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--num-features", type=int, default=32, help="of a kernel")
    parser.add_argument("--stage1-steps", type=int, default=100, help="of a kernel's maps, before fine-tuning")
    parser.add_argument("--validation-sequences", type=int, default=64, help="they choose the checkpoint")
    parser.add_argument("--test-sequences", type=int, default=None, help="default: 256, mgm 128")
    parser.add_argument("--prompt-tokens", type=int, default=32, help="of the text that is written on")
    parser.add_argument("--new-tokens", type=int, default=64, help="that are written to take the time")
    parser.add_argument("--repeats", type=int, default=5, help="of that; the fastest counts")
    parser.add_argument("--samples", type=int, default=1024, help="texts that mgm writes")
    sotu = parser.add_argument_group("sotu: the small GPT")
    sotu.add_argument("--layers", type=int, default=4)
    sotu.add_argument("--heads", type=int, default=4)
    sotu.add_argument("--hidden", type=int, default=128)
    sotu.add_argument("--vocabulary", type=int, default=2048)
    sotu.add_argument("--pretrain-steps", type=int, default=1500, help="for the next token, before everything")
    sotu.add_argument("--pretrain-lr", type=float, default=2e-3)
    parser.add_argument("--out", default=None, help="default: runs/blocks-MODEL")
    return parser


def check(options: argparse.Namespace) -> tuple[list[str], list[int], list[int]]:
    """Fill in what depends on the model; return attentions, block sizes, and seeds.

    Raises:
        AttnExtError: for what does not fit.
    """
    for name, value in SIZES[options.model].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.out = options.out or f"runs/blocks-{options.model}"
    check_numbers(options)
    check_sizes(options)
    attentions = options.attention.split(",")
    known = ["softmax", *list_kernels()]
    for name in attentions:
        if name not in known:
            raise AttnExtError(
                f"--attention names {name!r}, which is neither softmax nor a kernel.{suggest(name, known)}"
            )
    each_once(attentions, "--attention")
    blocks = []
    for text in options.blocks.split(","):
        if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= options.context:
            raise AttnExtError(f"--blocks takes whole numbers from 1 to --context {options.context}, got {text!r}")
        blocks.append(int(text))
    each_once(blocks, "--blocks")
    if options.prompt_tokens + options.new_tokens > options.context:
        raise AttnExtError(
            f"--prompt-tokens {options.prompt_tokens} and --new-tokens {options.new_tokens} are more than the "
            f"{options.context} tokens of --context"
        )
    rates_of(options.lr)
    return attentions, blocks, seeds_of(options.seeds)


@report_errors
def main(arguments: list[str] | None = None) -> None:
    """Parse the options and run the study."""
    options = build_parser().parse_args(arguments)
    attentions, blocks, seeds = check(options)

    accelerator = one_process()
    settings = settings_of(options, CHOSEN)
    claim(Path(options.out), settings)
    data, texts = texts_of(options)
    if int(texts.test.lengths.max()) < options.prompt_tokens:
        raise AttnExtError(f"no held-out text has the {options.prompt_tokens} tokens of --prompt-tokens")
    trainings = ("start", "next", *(f"block-{size}" for size in blocks))
    rates, results = {}, []
    for seed in seeds:
        stock = stock_folder(options, seed, texts, settings, accelerator)
        for training in trainings:
            if training not in rates:
                rates[training] = rate_of(training, seed, stock, options, texts, accelerator)
        for attention in attentions:
            start = stock
            if attention != "softmax":
                start = converted_folder(options, attention, seed, stock, data)
            for training in trainings:
                lr = rates[training]
                result = run(attention, training, seed, lr, start, options, texts, accelerator)
                loss = result["as_trained"]["loss"]
                say("blocks", f"{attention} {training} seed {seed}: {loss:.3f}")
                results.append(result)
    report(with_speeds(results, options, texts, accelerator), options, settings, texts)


if __name__ == "__main__":
    sys.exit(main())
