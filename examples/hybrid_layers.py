"""Which layers should keep softmax? Let the probe suggest them, convert the others: a hybrid, saved and opened again.

    python examples/hybrid_layers.py                                     # MiniLM and review sentences
    python examples/hybrid_layers.py --model roberta-base --texts my_sentences.txt --keep 4

The probe's ``suggest_layers`` names the layers that need softmax most, from half of the texts. The others are
converted, their feature maps initialised from the same half (``hax.calibrate``, no training), and the change of the
model's last hidden states measured on the other half, as is that of converting all layers. The hybrid is saved with
``--out``.
"""

from __future__ import annotations

import argparse
import csv
import sys
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

import hf_attn_ext as hax
from hf_attn_ext.probe import suggest_layers


def read_texts(path: Path, count: int) -> list[str]:
    """Lines of a text file, or the ``text`` column of a CSV file."""
    with path.open(encoding="utf-8", newline="") as stream:
        if path.suffix == ".csv":
            texts = [row["text"] for row in csv.DictReader(stream)]
        else:
            texts = [line.strip() for line in stream if line.strip()]
    if len(texts[:count]) < 4:
        raise hax.AttnExtError(
            f"{len(texts[:count])} texts are too few: from one half layers are chosen, on the other they are measured; "
            "give 4"
        )
    return texts[:count]


def batches(tokenizer, texts: list[str], max_length: int, size: int = 32) -> list[dict[str, torch.Tensor]]:
    """Tokenised, padded batches."""
    limits = {"padding": True, "truncation": True, "max_length": max_length, "return_tensors": "pt"}
    return [dict(tokenizer(texts[start : start + size], **limits)) for start in range(0, len(texts), size)]


@torch.no_grad()
def hidden_states(model: torch.nn.Module, data: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    """Last hidden states of all real tokens, (tokens, width)."""
    model.eval()
    found = [model(**batch).last_hidden_state[batch["attention_mask"].bool()] for batch in data]
    return torch.cat(found)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Squared distance over the squared length, summed over all tokens."""
    return ((found - expected).square().sum() / expected.square().sum()).item()


def main(arguments: list[str] | None = None) -> int:
    """Parse the options and run the example."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=".assets/minilm-roberta", help="a folder or a hub id")
    parser.add_argument(
        "--texts",
        type=Path,
        default=Path(".assets/reviews/validation.csv"),
        help="a text file, a sentence a line, or a CSV file with a text column",
    )
    parser.add_argument("--kernel", default="flexformer_p")
    parser.add_argument("--num-features", type=int, default=64)
    parser.add_argument("--keep", type=int, default=2, help="layers that keep softmax in the hybrid")
    parser.add_argument("--count", type=int, default=128, help="texts to read; half of them choose and initialise")
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--out", type=Path, help="folder to save the hybrid in")
    options = parser.parse_args(arguments)
    try:
        return run(options)
    except hax.AttnExtError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def run(options: argparse.Namespace) -> int:
    """Suggest layers, convert the others, measure, and save."""
    name = options.model
    model, tokenizer = AutoModel.from_pretrained(name), AutoTokenizer.from_pretrained(name)
    texts = read_texts(options.texts, options.count)
    settings = {"kernel": options.kernel, "num_features": options.num_features}
    limits = {"truncation": True, "max_length": options.max_length}
    found = suggest_layers(model, tokenizer, texts[::2], options.keep, **settings, **limits)
    for layer in sorted(found.reasons):
        print(found.reasons[layer])

    seen, unseen = (batches(tokenizer, texts[start::2], options.max_length) for start in (0, 1))
    expected = hidden_states(model, unseen)
    for name, layers in (("all layers converted", None), (f"hybrid, softmax kept in {found.keep}", found.convert)):
        if hax.is_converted(model):
            hax.revert(model)
        hax.convert(model, **settings, layers=layers)
        hax.calibrate(model, seen)
        print(f"{name}: relative error {relative_error(hidden_states(model, unseen), expected):.4f}")
    if options.out is not None:
        model.save_pretrained(options.out)
        tokenizer.save_pretrained(options.out)
        again = AutoModel.from_pretrained(options.out)
        difference = (hidden_states(again, unseen) - hidden_states(model, unseen)).abs().max().item()
        print(f"saved in {options.out}; opened again, largest difference {difference}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
