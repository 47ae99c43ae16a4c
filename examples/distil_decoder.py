"""Distil a decoder to linear attention without any text: it writes its own, and its kernels learn from softmax.

    python examples/distil_decoder.py                                   # a GPT-2 of microbiomes, 1 minute on two cores
    python examples/distil_decoder.py --model gpt2 --samples 512 --steps 300

``make assets`` fetches the default model. ``--data FOLDER`` takes texts instead: ``train.jsonl``, ``validation.jsonl``
and ``test.jsonl`` with the field ``text``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_attn_ext.training import distill, results_table


def write_samples(name: str, folder: Path, count: int) -> None:
    """Sample texts from the model, without a prompt, into three files."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(name).eval(), AutoTokenizer.from_pretrained(name)
    start = torch.full((count, 1), tokenizer.bos_token_id)
    ids = model.generate(start, attention_mask=torch.ones_like(start), do_sample=True, top_k=0, max_length=96)
    texts = [text for text in tokenizer.batch_decode(ids, skip_special_tokens=True) if text.strip()]
    eighth = max(1, len(texts) // 8)
    parts = {"test": texts[:eighth], "validation": texts[eighth : 2 * eighth], "train": texts[2 * eighth :]}
    folder.mkdir(parents=True, exist_ok=True)
    for split, members in parts.items():
        lines = "".join(json.dumps({"text": text}) + "\n" for text in members)
        (folder / f"{split}.jsonl").write_text(lines, encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Parse the options and run the example."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=".assets/mgm", help="a folder or a hub id of a causal language model")
    parser.add_argument("--data", type=Path, help="a folder with texts; default: the model writes them")
    parser.add_argument("--samples", type=int, default=128, help="texts that the model writes")
    parser.add_argument("--steps", type=int, default=40, help="of stage 1, which trains the kernels alone")
    parser.add_argument("--num-features", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("runs/distil_decoder"))
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    data = options.data or options.out / "samples"
    if not data.is_dir():
        write_samples(options.model, data, options.samples)
    result = distill(
        {
            "model": {"name": options.model, "dropout": 0.0},
            "data": {
                "task": "language_modeling",
                "path": str(data),
                **{split: f"{split}.jsonl" for split in ("train", "validation", "test")},
                "max_length": 96,
                "packing": False,
            },
            "kernel": {"num_features": options.num_features},
            "teacher": {"steps": 0},
            "stage1": {"steps": options.steps, "batch_size": 8, "lr": 2e-2, "eval_sequences": 16},
            "stage2": {"steps": 0},
            "measure": ["teacher", "converted", "stage1"],
            "output": {"folder": str(options.out / "run"), "progress": False},
        }
    )
    Console(width=120).print(results_table(result.results))

    model = AutoModelForCausalLM.from_pretrained(result.model_folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(result.model_folder)
    start = torch.full((1, 1), tokenizer.bos_token_id)
    # generate() keeps a state of constant size instead of keys and values that grow with the text.
    ids = model.generate(start, attention_mask=torch.ones_like(start), max_new_tokens=12, do_sample=False)
    print(f"model: {result.model_folder}; it writes: {tokenizer.decode(ids[0], skip_special_tokens=True)}")


if __name__ == "__main__":
    main()
