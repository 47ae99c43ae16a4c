"""Processor time and peak memory of one forward pass of one text: the part of ``long_texts.py`` that runs by itself.

    python examples/long_texts_cost.py SOFTMAX CONVERTED 512,1024 bf16     # two model folders; writes JSON to stdout

Memory is what a forward pass needs beyond the model itself, in this process, on text lengths one after the other.
Then all take turns for time; it is the processor's, summed over threads, so what else the machine does counts little.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

import torch  # noqa: E402
from transformers import AutoModel  # noqa: E402
from transformers.utils import logging  # noqa: E402

import hf_attn_ext  # noqa: E402, F401 (registers the converted model types)
from hf_attn_ext.bench import measure  # noqa: E402
from hf_attn_ext.bench.machine import describe_machine  # noqa: E402
from hf_attn_ext.bench.peak_server import peak_of  # noqa: E402

REPEATS, BUDGET = 7, 5.0  # counted passes at most; seconds of them


def main(softmax: str, converted: str, lengths: str, precision: str) -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    models = {
        "softmax": AutoModel.from_pretrained(softmax, attn_implementation="sdpa").eval(),
        "converted": AutoModel.from_pretrained(converted).eval(),
    }
    generator = torch.Generator().manual_seed(0)
    rows = []

    def forward(name: str, length: int) -> None:
        vocabulary = models[name].config.vocab_size
        ids = torch.randint(vocabulary // 2, vocabulary, (1, length), generator=generator)  # no special tokens there
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            models[name](input_ids=ids, attention_mask=torch.ones_like(ids))

    for name in models:
        forward(name, 64)
    for length in map(int, lengths.split(",")):
        peaks = {name: peak_of(lambda name=name, length=length: forward(name, length)) for name in models}
        calls = {name: lambda name=name, length=length: forward(name, length) for name in models}
        timings, _ = measure(calls, REPEATS, BUDGET, clock=time.process_time)
        rows += [
            {"name": name, "length": length, "peak_bytes": peaks[name], "seconds": timings[name].as_dict()}
            for name in models
        ]
    print(json.dumps({"rows": rows, "precision": precision, "machine": describe_machine("cpu")}))


if __name__ == "__main__":
    main(*sys.argv[1:])
