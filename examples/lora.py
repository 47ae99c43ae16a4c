"""LoRA and feature maps in one adapter: convert, adapt with PEFT, save, reload.

    python examples/lora.py                                           # MiniLM and review sentences, two minutes
    python examples/lora.py --model roberta-base --data reviews.csv   # columns text and label

The base stays frozen. LoRA adapts the query and value projections, and ``modules_to_save`` (from
``hax.peft_modules_to_save``) keeps the feature maps trainable and puts them into the adapter: without it PEFT freezes
them. The adapter folder is small; it opens on the converted base, which is saved next to it.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForSequenceClassification, AutoTokenizer, set_seed

import hf_attn_ext as hax


def read_rows(path: Path, count: int) -> list[tuple[str, float]]:
    """Texts and numbers from a CSV file with the columns text and label."""
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    missing = {"text", "label"} - set(rows[0] if rows else ())
    if missing:
        raise hax.AttnExtError(f"{path} lacks the column {sorted(missing)[0]!r}")
    return [(row["text"], float(row["label"])) for row in rows[:count]]


def encode(tokenizer, rows: list[tuple[str, float]], max_length: int) -> dict[str, torch.Tensor]:
    """One padded batch with labels."""
    texts, labels = zip(*rows, strict=True)
    limits = {"padding": True, "truncation": True, "max_length": max_length, "return_tensors": "pt"}
    return {**tokenizer(list(texts), **limits), "labels": torch.tensor(labels)}


def train(model: torch.nn.Module, tokenizer, rows, options: argparse.Namespace) -> None:
    """A few steps of AdamW on all trainable parameters: the adapter, the head and the feature maps."""
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=options.learning_rate)
    generator = torch.Generator().manual_seed(options.seed)
    model.train()
    for step in range(options.steps):
        chosen = torch.randint(len(rows), (options.batch_size,), generator=generator).tolist()
        loss = model(**encode(tokenizer, [rows[i] for i in chosen], options.max_length)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == options.steps - 1:
            print(f"step {step:4d}: loss {loss.item():.4f}", flush=True)
    model.eval()


def main(arguments: list[str] | None = None) -> int:
    """Parse the options and run the example."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=".assets/minilm-roberta", help="a folder or a hub id")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(".assets/reviews/train.csv"),
        help="a CSV file with the columns text and label (a number)",
    )
    parser.add_argument("--kernel", default="flexformer_p")
    parser.add_argument("--num-features", type=int, default=64)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--max-length", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/peft_lora"))
    options = parser.parse_args(arguments)
    try:
        return run(options)
    except hax.AttnExtError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def run(options: argparse.Namespace) -> int:
    """Convert, adapt, save, and open again."""
    set_seed(options.seed)
    name = options.model
    rows = read_rows(options.data, count=2000)
    tokenizer = AutoTokenizer.from_pretrained(name)
    base = AutoModelForSequenceClassification.from_pretrained(name, num_labels=1, problem_type="regression")
    hax.convert(base, kernel=options.kernel, num_features=options.num_features)
    hax.calibrate(base, [encode(tokenizer, rows[:64], options.max_length)])
    base.save_pretrained(options.out / "base")
    tokenizer.save_pretrained(options.out / "base")

    adapter = LoraConfig(task_type="SEQ_CLS", r=options.rank, modules_to_save=hax.peft_modules_to_save(base))
    model = get_peft_model(base, adapter)
    model.print_trainable_parameters()
    train(model, tokenizer, rows, options)
    model.save_pretrained(options.out / "adapter")

    again = AutoModelForSequenceClassification.from_pretrained(options.out / "base")
    again = PeftModel.from_pretrained(again, options.out / "adapter").eval()
    batch = encode(tokenizer, rows[:8], options.max_length)
    with torch.no_grad():
        difference = (again(**batch).logits - model(**batch).logits).abs().max().item()
    size = sum(file.stat().st_size for file in (options.out / "adapter").iterdir()) / 2**20
    print(f"saved in {options.out} (adapter {size:.1f} MiB); opened again, largest difference {difference}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
