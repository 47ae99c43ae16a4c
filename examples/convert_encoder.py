"""Convert an encoder to linear attention, measure what changes, save it, open it again, and revert it.

    python examples/convert_encoder.py                                            # MiniLM, 20 seconds on two cores
    python examples/convert_encoder.py --model roberta-base --texts sentences.txt

``make assets`` fetches the default model and texts. The kernels are calibrated here, not trained: see
``examples/distil_decoder.py`` for training them.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

import hf_attn_ext as hax


def read_texts(path: Path, count: int) -> list[str]:
    """Return the first lines of a text file, or of the ``text`` column of a CSV file."""
    with path.open(encoding="utf-8", newline="") as stream:
        lines = (row["text"] for row in csv.DictReader(stream)) if path.suffix == ".csv" else stream
        return [line.strip() for line in lines if line.strip()][:count]


@torch.no_grad()
def hidden_states(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the last hidden states of the real tokens, (tokens, width)."""
    return model.eval()(**batch).last_hidden_state[batch["attention_mask"].bool()]


def main(arguments: list[str] | None = None) -> None:
    """Parse the options and run the example."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=".assets/minilm-roberta", help="a folder or a hub id")
    parser.add_argument("--texts", type=Path, default=Path(".assets/reviews/validation.csv"), help="txt or csv")
    parser.add_argument("--count", type=int, default=64, help="texts to read; half of them calibrate")
    parser.add_argument("--num-features", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("runs/convert_encoder"))
    options = parser.parse_args(arguments)

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModel.from_pretrained(options.model)
    texts = read_texts(options.texts, options.count)
    seen, unseen = (
        dict(tokenizer(texts[start::2], padding=True, truncation=True, max_length=128, return_tensors="pt"))
        for start in (0, 1)
    )
    softmax = hidden_states(model, unseen)

    def error() -> float:
        return ((hidden_states(model, unseen) - softmax).square().sum() / softmax.square().sum()).item()

    # In place: the base weights keep their names and values, each layer gets a feature map.
    hax.convert(model, num_features=options.num_features)
    print(f"{type(model).__name__}: {len(hax.converted_layers(model))} layers with {model.config.attn_ext['kernel']}")
    print(f"relative error of the last hidden states, random kernels: {error():.3f}")
    hax.calibrate(model, [seen])
    print(f"relative error of the last hidden states, calibrated kernels: {error():.3f}")

    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    opened = AutoModel.from_pretrained(options.out)  # needs only `import hf_attn_ext` before it
    difference = (hidden_states(opened, unseen) - hidden_states(model, unseen)).abs().max().item()
    print(f"saved in {options.out}; opened again, largest difference {difference}")

    hax.revert(model)
    difference = (hidden_states(model, unseen) - softmax).abs().max().item()
    print(f"reverted to {type(model).__name__}, largest difference {difference}")


if __name__ == "__main__":
    main()
