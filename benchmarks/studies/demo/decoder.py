"""The main job for decoders, end to end, on real text, or on a real GPT-2 without any text.

    python -m benchmarks.studies.demo.decoder                # make demo-gpt: a small GPT, State of the Union addresses
    python -m benchmarks.studies.demo.decoder --model mgm    # a real GPT-2 (microbiome), on texts that it wrote itself
    python -m benchmarks.studies.demo.decoder --model gpt2 --data Salesforce/wikitext/wikitext-2-raw-v1    # needs a hub

Trains the teacher (``sotu``: a BPE vocabulary and a GPT of 1.1 million parameters, from scratch; the others are taken
as they are), converts every layer to linear attention, trains the kernels on the softmax stream (stage 1) and then the
model on its text and its teacher's predictions (stage 2). The perplexity is measured at every step, as is that of a
control without attention, whose every token is the mean of those before it. The result is saved and opened again by a
fresh process with plain ``AutoModelForCausalLM``. Its weights and buffers must equal the saved ones bit for bit, its
logits and losses those of the run within a tolerance. It also writes a few words with ``generate()``, with a
constant-size state in place of a cache. All of it is the library's: ``hf_attn_ext.training.distill`` and
``hf_attn_ext.hub.card``.

To continue a stopped run, repeat the command.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.assets import ensure
from benchmarks.studies.common.options import make_parser, report_errors
from hf_attn_ext.errors import AttnExtError

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
# the evaluation made, because sums in another order may differ in the last bit.
RELOAD = """
import sys
import numpy as np, torch
import hf_attn_ext
from torch.nn.functional import cross_entropy, pad
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, task, out = sys.argv[1:]
task = np.load(task)
torch.set_num_threads(int(task["threads"]))
device = str(task["device"])
model = AutoModelForCausalLM.from_pretrained(folder).to(device).eval()
tokenizer = AutoTokenizer.from_pretrained(folder)
losses, logits = [], None
with torch.no_grad():
    for i in range(int(task["batches"])):
        ids, mask = (torch.from_numpy(task[f"{name}{i}"]).to(device) for name in ("ids", "mask"))
        found = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        logits = found[:2].cpu().numpy() if logits is None else logits
        targets = pad(ids[:, 1:], (0, 1)).masked_fill(pad(mask[:, 1:], (0, 1)) == 0, -100)
        row = cross_entropy(found.flatten(0, 1).float(), targets.flatten(), reduction="none").view(targets.shape)
        losses.append(row.cpu().double().sum(1).numpy())
    prompt = tokenizer(str(task["prompt"]), add_special_tokens=False, return_tensors="pt").to(device)
    words = dict(max_new_tokens=24, do_sample=False, pad_token_id=model.config.eos_token_id)
    kept, anew = (model.generate(**prompt, **words, use_cache=cache)[0].tolist() for cache in (True, False))
text = tokenizer.decode(kept, skip_special_tokens=True)
tensors = json.dumps(tensor_digests(model.state_dict()))
np.savez(out, losses=np.concatenate(losses), logits=logits, tensors=tensors, text=text, same_words=kept == anew)
"""
BEGINNINGS = {"sotu": "The people of the United States", "mgm": "<bos> g__Bacteroides"}


# -- what is distilled ---------------------------------------------------------------------------------------------


def configuration(options: argparse.Namespace) -> Any:
    """The run's :class:`DistillConfig`."""
    from hf_attn_ext._util.settings import apply_overrides
    from hf_attn_ext.training import DistillConfig

    make = {"sotu": sotu_settings, "mgm": mgm_settings}.get(options.model, other_settings)
    settings = make(options)
    data = {"task": "language_modeling", **settings.pop("data")}
    settings = {
        **settings,
        "data": data,
        "kernel": {"kernel": options.kernel, "num_features": options.num_features},
        "output": {"folder": options.out},
        "seed": options.seed,
        "control": True,
    }
    return DistillConfig.from_dict(apply_overrides(settings, options.set), where="demo")


def stage(steps: int, batch_size: int, lr: float, **others: Any) -> dict[str, Any]:
    """One stage's section, evaluated at its end only: every evaluation costs seconds of the eight minutes."""
    return {"steps": steps, "batch_size": batch_size, "lr": lr, "evaluate_every": max(1, steps), **others}


def sotu_settings(options: argparse.Namespace) -> dict[str, Any]:
    """A small GPT from scratch on the addresses; the teacher's steps make up most of the time."""
    folder = ensure("sotu")
    training = {"schedule": "cosine", "warmup": 0.1, "weight_decay": 0.1, "beta2": 0.95}
    return {
        "model": {"name": str(start_sotu(Path(f"{options.out}-start"), folder, options.seed))},
        "data": {
            "path": str(folder),
            **{split: f"{split}.jsonl" for split in ("train", "validation", "test")},
            "max_length": 128,
            "max_eval_examples": 4,
        },
        # Many small steps: a young model learns from their number, not from their size.
        "teacher": stage(1600, 8, 2e-3, **training),
        "stage1": stage(200, 8, 2e-2, eval_sequences=128),
        "stage2": stage(300, 8, 5e-4, **training, feature_map_lr=1e-3, distillation=0.5, temperature=1.0),
    }


def start_sotu(folder: Path, texts: Path, seed: int) -> Path:
    """Make the untrained GPT and its vocabulary, where they are not made yet; return their folder."""
    from benchmarks.studies.common.vocabulary import train_tokenizer
    from benchmarks.studies.train_sotu_gpt.__main__ import build_parser
    from benchmarks.studies.train_sotu_gpt.models import stock_model
    from hf_attn_ext._util.files import new_folder

    if not folder.is_dir():
        sizes = build_parser().parse_args(["--context", "128", "--local-window", "0", "--initializer-range", "0.02"])
        with open(texts / "train.jsonl", encoding="utf-8") as file:
            train = [json.loads(line)["text"] for line in file]
        with new_folder(folder) as made:
            tokenizer = train_tokenizer(made / "vocabulary", train, sizes.vocabulary)
            stock_model(sizes, len(tokenizer), tokenizer.eos_token_id, seed).save_pretrained(made)
            tokenizer.save_pretrained(made)
    return folder


def mgm_settings(options: argparse.Namespace) -> dict[str, Any]:
    """A real GPT-2 whose training text nobody has: it writes its own, and the student learns its predictions."""
    from benchmarks.studies.common.written_texts import write_samples

    model = ensure("mgm")
    samples = write_samples(model, Path(f"{options.out}-samples"), options.seed, options.samples)
    return {
        "model": {"name": str(model), "dropout": 0.0},
        "data": {
            "path": str(samples),
            **{split: f"{split}.jsonl" for split in ("train", "validation", "test")},
            "max_length": 96,
            "packing": False,  # it has never seen two samples in one sequence
        },
        "teacher": {"steps": 0},
        "stage1": stage(150, 8, 2e-2, eval_sequences=64, group_by_length=True),
        "stage2": stage(
            100, 8, 2e-4, warmup=0.1, feature_map_lr=1e-3, distillation=1.0, temperature=1.0, group_by_length=True
        ),
    }


def other_settings(options: argparse.Namespace) -> dict[str, Any]:
    """A hub model or a folder, on a hub data set or a folder with train.jsonl, validation.jsonl and test.jsonl."""
    if options.data is None:
        raise AttnExtError(f"--model {options.model} needs --data: a hub id, or a folder with train.jsonl and the like")
    data: dict[str, Any] = {"path": options.data, "train": "train", "validation": "validation", "test": "test"}
    if Path(options.data).is_dir():
        data |= {split: f"{split}.jsonl" for split in ("train", "validation", "test")}
    if "wikitext" in options.data:
        data["borders"] = False  # its rows are the lines of one text
    return {
        "model": {"name": options.model},
        "data": {**data, "max_length": 256},
        "teacher": {"steps": 0},
        "stage1": stage(300, 4, 1e-2, eval_sequences=64, queries_per_sequence=64),
        "stage2": stage(300, 4, 2e-5, warmup=0.1, feature_map_lr=1e-3, distillation=0.5, temperature=1.0),
    }


# -- the fresh process ---------------------------------------------------------------------------------------------


def reopened(
    folder: Path, model: Path, config: Any, beginning: str
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Open ``model`` in a fresh process.

    Returns:
        What the process wrote: ``tensors``; ``losses`` of sequences; ``logits`` of some of them; ``text``, which
        continues ``beginning``; and ``same_words``, whether that came out the same with the state as without. And what
        it must equal: the ``losses`` that the run wrote when it measured the model, and the ``logits`` of the same
        model in this process.
    """
    import torch
    from accelerate import PartialState
    from transformers import AutoModelForCausalLM

    from hf_attn_ext.training.data.encoding import Collator, evaluation_batches
    from hf_attn_ext.training.data.inputs import encode_all, load_texts
    from hf_attn_ext.training.stages.finetune import language_batch_size
    from hf_attn_ext.training.stages.teacher import load_tokenizer

    tokenizer = load_tokenizer(config.model)
    encoded = encode_all(config, *load_texts(config), tokenizer).test
    here = AutoModelForCausalLM.from_pretrained(model).to(PartialState().device).eval()
    size = language_batch_size(here, encoded)
    batches = list(evaluation_batches(encoded, Collator(tokenizer, "language_modeling"), size))
    batches = batches[:: max(1, len(batches) // 4)]  # four of them tell as much as all
    rows = np.concatenate([batch["index"].numpy() for batch in batches])
    inputs = {f"ids{i}": batch["input_ids"].numpy() for i, batch in enumerate(batches)}
    inputs |= {f"mask{i}": batch["attention_mask"].numpy() for i, batch in enumerate(batches)}
    with torch.no_grad():
        first = {name: batches[0][name].to(here.device) for name in ("input_ids", "attention_mask")}
        logits = here(**first, use_cache=False).logits[:2].cpu().numpy()
    fresh = reopen(RELOAD, model, {**inputs, "batches": len(batches), "prompt": beginning})
    losses = np.load(folder / "logits" / "stage2.npy")[rows, 0]
    return fresh, {"logits": logits, "losses": losses}


# -- the run -------------------------------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> int:
    """Distil, reopen in a fresh process, and print; return 0, or 1 where the opened model differs."""
    from hf_attn_ext.hub.card import write_card
    from hf_attn_ext.training import distill

    silence_transformers()
    config = configuration(options)
    result = distill(config)
    beginning = options.prompt or BEGINNINGS.get(options.model, "The")
    fresh, outputs = reopened(result.folder, result.model_folder, config, beginning)
    results = {**result.results, "peak_memory_mb": round(peak_memory())}
    card = write_card(result.model_folder, results)

    console = print_table(results)
    if results.get("gap_closed") is not None:
        console.print(
            f"gap closed: {results['gap_closed']:.1%}; the gap between control and teacher is {results['gap']:.4f} ± "
            f"{results['gap_standard_error']:.4f} nats a token"
        )
    same = check_reopened(console, result.model_folder, fresh, outputs)
    words = "the same with its state as without" if fresh["same_words"] else "NOT the same with its state as without"
    console.print(f"generate(), {words}: {str(fresh['text'])!r}", soft_wrap=True, markup=False)
    print_ending(console, results, result.model_folder, card, START)
    return 0 if same else 1


@report_errors
def main(arguments: list[str] | None = None) -> int:
    """Parse the options and run the demo."""
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="sotu", help="sotu or mgm (embedded), a folder, or a hub id")
    parser.add_argument("--data", default=None, help="for another model: a folder with train.jsonl ..., or a hub id")
    parser.add_argument("--kernel", default="flexformer_p", help="see hf-attn-ext list")
    parser.add_argument("--num-features", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=int, default=1024, help="texts that mgm writes")
    parser.add_argument("--prompt", default=None, help="the prompt of generate()")
    parser.add_argument("--out", default=None, help="the run's folder; default runs/demo-gpt-MODEL-KERNEL-SEED")
    add_set_option(parser)
    options = parser.parse_args(arguments)
    if options.out is None:
        names = [options.model.strip("./").replace("/", "-"), options.kernel, str(options.seed)]
        options.out = str(Path("runs") / "-".join(["demo-gpt", *names]))
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
