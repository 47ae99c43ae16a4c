"""Every token from both sides: an encoder trained from scratch with butterfly, and masked language modelling.

    python -m benchmarks.studies.butterfly                   # one seed of everything
    python -m benchmarks.studies.butterfly --seeds 0,1,2     # three seeds

The text: the State of the Union addresses, split by year, in a byte-level BPE vocabulary trained on the training
years, cut into pieces of 64 tokens. The models are RoBERTa classes, untrained, of one size; a seed gives all
of them the same initial weights and the same texts in the same order:

butterfly       ``set_mask(model, "butterfly")``: 3n-2 positions for n tokens, each of which is predicted.
mlm             masked language modelling as BERT's, n positions, 15% predicted; as many steps.
mlm, compute    the same, as many steps as have butterfly's operations, which are counted (torch's counter of matrix
                products, forward and backward; the head where a prediction is asked for). The learning rate falls over
                all of them, so it is a run of its own.

Measured on held-out text: the pseudo-perplexity, exp of the mean of -log p(token | all other tokens).
``butterfly_score`` gives it in one pass; masked language modelling needs n, with the mask token in each place once. The
control, ``unigram``, predicts every token by its share in the training text.

``butterfly_score`` is also held against n passes with the same model, each of which has only what one prediction sees:
the largest difference, and how many times less processor time it takes. Against the n passes of masked language
modelling: the rank correlation of the tokens' log-probabilities, and the time.

To continue a stopped run, repeat the command; finished runs are read. Writes OUT/results.json, .md
and .png; the models are in OUT/TRAINING/seed-SEED/model. From the time of single steps, one seed should take some
20 minutes on one or two cores: an estimate, to be checked.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import RobertaConfig, RobertaForMaskedLM

import hf_attn_ext as hax
from benchmarks.assets import ensure
from benchmarks.studies.common.folders import claim, save_array, settings_of, tidy
from benchmarks.studies.common.objectives import BothSides, Masked
from benchmarks.studies.common.options import (
    check_numbers,
    check_sizes,
    make_parser,
    one_process,
    rates_of,
    report_errors,
    say,
    seeds_of,
)
from benchmarks.studies.common.rates import chosen_rate
from benchmarks.studies.common.results import mean_loss
from benchmarks.studies.common.texts import load, matrix, pieces
from benchmarks.studies.common.training import fit
from benchmarks.studies.common.vocabulary import train_tokenizer
from hf_attn_ext._util.files import new_folder, read_json, write_json
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.inference import butterfly_score

from .operations import step_operations
from .report import report
from .scoring import cloze_passes, masked_passes, timed

TRAININGS = ("butterfly", "mlm", "mlm-compute")


def build_model(training: str, options: argparse.Namespace, tokenizer: Any, seed: int, backend: str = "sdpa") -> Any:
    """An untrained encoder: the same weights for every training of a seed."""
    torch.manual_seed(seed)
    config = RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=options.hidden,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        intermediate_size=4 * options.hidden,
        max_position_embeddings=options.context + tokenizer.pad_token_id + 1,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        type_vocab_size=1,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=options.initializer_range,
    )
    model = RobertaForMaskedLM(config)
    model.set_attn_implementation(backend)
    if training == "butterfly":
        hax.set_mask(model, "butterfly", backend=backend)
    return model


def objective(training: str, model: Any, options: argparse.Namespace, tokenizer: Any, seed: int | None = None) -> Any:
    """The collator of a training; with ``seed``, masks that come again."""
    return BothSides(tokenizer, model) if training == "butterfly" else Masked(tokenizer, model, options.share, seed)


def plan(options: argparse.Namespace, texts: Any) -> dict[str, dict[str, Any]]:
    """For every training its steps, and what a step has: operations, and predicted tokens (for MLM, of one draw)."""
    items = [texts.train[row % len(texts.train)] for row in range(options.batch_size)]
    counted = {}
    for training in ("butterfly", "mlm"):
        model = build_model(training, options, texts.tokenizer, 0, backend="eager")
        batch = objective(training, model, options, texts.tokenizer, seed=0)(items)
        counted[training] = {"operations": step_operations(model, batch), "labels": int((batch["labels"] >= 0).sum())}
    ratio = counted["butterfly"]["operations"] / counted["mlm"]["operations"]
    steps = {"butterfly": options.steps, "mlm": options.steps, "mlm-compute": round(options.steps * ratio)}
    return {name: {"steps": steps[name], **counted[name.removesuffix("-compute")]} for name in TRAININGS}


def trained(
    training: str,
    seed: int,
    steps: int,
    lr: float,
    options: argparse.Namespace,
    texts: Any,
    here: Path,
    accelerator: Any,
) -> tuple[Any, float]:
    """A model trained from scratch, and its loss on the validation texts."""
    model = build_model(training, options, texts.tokenizer, seed)
    return fit(
        training,
        model,
        objective(training, model, options, texts.tokenizer),
        texts,
        here,
        accelerator,
        steps=steps,
        batch_size=options.batch_size,
        lr=lr,
        weight_decay=options.weight_decay,
        seed=seed,
        evaluated=objective(training, model, options, texts.tokenizer, seed=0),
    )


def rate_of(training: str, seed: int, options: argparse.Namespace, texts: Any, steps: int, accelerator: Any) -> float:
    """The learning rate of a training, chosen in shorter runs of one seed, whose own rate falls to the end too."""
    short = max(1, round(steps * options.tune_share))

    def loss_at(lr: float, here: Path) -> float:
        return trained(training, seed, short, lr, options, texts, here, accelerator)[1]

    return chosen_rate(rates_of(options.lr), loss_at, Path(options.out) / training / "rates", seed)


def run(
    training: str, seed: int, options: argparse.Namespace, texts: Any, planned: dict[str, Any], accelerator: Any
) -> dict[str, Any]:
    """Train one model and score the held-out texts; a finished run is read from its file."""
    here = Path(options.out) / training / f"seed-{seed}"
    claim(here, {**settings_of(options, ()), **planned})
    if (here / "result.json").is_file():
        tidy(here)
        return read_json(here / "result.json")
    tokenizer = texts.tokenizer
    result: dict[str, Any] = {"training": training, "seed": seed, **planned}
    model, result["validation"] = trained(
        training, seed, planned["steps"], planned["rate"], options, texts, here, accelerator
    )
    with new_folder(here / "model") as target:
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)
    ids = torch.from_numpy(matrix(texts.test)).to(accelerator.device)
    if training == "butterfly":
        scores, result["seconds_a_text"] = timed(butterfly_score, model, ids)
        few = ids[: options.compared_texts]
        same, seconds = timed(cloze_passes, model, few)
        result["passes"] = {
            "texts": len(few),
            "largest_difference": float(np.abs(same - scores[: len(few)]).max()),
            "seconds_a_text": seconds,
        }
    else:
        scores, result["seconds_a_text"] = timed(masked_passes, model, ids, tokenizer.mask_token_id)
    result |= {"pseudo": mean_loss(-scores), "parameters": model.num_parameters()}
    save_array(here / "scores.npy", scores)
    write_json(here / "result.json", result)
    tidy(here)
    return result


def texts_of(options: argparse.Namespace) -> Any:
    """The addresses as pieces of exactly ``--context`` tokens, and the tokenizer, with a mask token."""
    folder = ensure("sotu")
    tokenizer = train_tokenizer(Path(options.out) / "tokenizer", load(folder).train.texts, options.vocabulary)
    tokenizer.add_special_tokens({"mask_token": "<mask>"})
    return pieces(folder, tokenizer, options.context, options.validation_sequences, options.test_sequences)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the study's options."""
    parser = make_parser(__doc__)
    parser.add_argument("--seeds", default="0", help="with commas; each is a run of everything")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--initializer-range", type=float, default=0.02)
    parser.add_argument("--context", type=int, default=64, help="tokens of a piece")
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument(
        "--share", type=float, default=0.15, help="of the tokens that masked language modelling predicts"
    )
    parser.add_argument("--steps", type=int, default=2000, help="of butterfly, and of mlm; mlm-compute has more")
    parser.add_argument("--batch-size", type=int, default=8, help="pieces of a step")
    parser.add_argument("--lr", default="5e-4,1e-3,2e-3,4e-3", help="with commas: the best by held-out loss is taken")
    parser.add_argument("--tune-share", type=float, default=0.25, help="of the steps, to choose the rate by")
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--validation-sequences", type=int, default=128, help="they choose the checkpoint")
    parser.add_argument("--test-sequences", type=int, default=128)
    parser.add_argument(
        "--compared-texts", type=int, default=32, help="of these, that butterfly scores in n passes too"
    )
    parser.add_argument("--out", default="runs/butterfly")
    return parser


def check(options: argparse.Namespace) -> list[int]:
    """Return the seeds; raise AttnExtError for what does not fit."""
    check_numbers(options)
    check_sizes(options)
    if options.context < 2:
        raise AttnExtError("--context 1 leaves nothing to predict a token from; give at least 2")
    if options.share >= 1:
        raise AttnExtError(f"--share must be below 1, got {options.share}")
    rates_of(options.lr)
    return seeds_of(options.seeds)


@report_errors
def main(arguments: list[str] | None = None) -> None:
    """Parse the options and run the study."""
    options = build_parser().parse_args(arguments)
    seeds = check(options)

    accelerator = one_process()
    claim(Path(options.out), settings_of(options, ()))
    texts = texts_of(options)
    planned = plan(options, texts)
    for training in TRAININGS:
        rate = rate_of(training, seeds[0], options, texts, planned[training]["steps"], accelerator)
        planned[training]["rate"] = rate
    results = []
    for seed in seeds:
        for training in TRAININGS:
            result = run(training, seed, options, texts, planned[training], accelerator)
            loss, steps = result["pseudo"]["loss"], result["steps"]
            say("butterfly", f"{training} seed {seed}: {loss:.3f} after {steps} steps")
            results.append(result)
    report(results, options, settings_of(options, ()), texts)


if __name__ == "__main__":
    sys.exit(main())
