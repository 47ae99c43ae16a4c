"""Processor time and peak memory of one forward pass of one text: the part of ``long_texts.py`` that runs by itself.

    python -m benchmarks.studies.long_texts.cost SOFTMAX CONVERTED 512,1024 bf16    # two model folders; writes JSON

Memory is what a forward pass needs beyond the model itself, each measured in a fresh process that has read 64 tokens.
For time, the two take turns; it is the processor's, summed over threads, so what else the machine does counts little.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time

import torch
from transformers import AutoModel
from transformers.utils import logging

import hf_attn_ext  # noqa: F401
from benchmarks.speed import measure
from benchmarks.speed.measuring.machine import describe_machine
from benchmarks.speed.measuring.peak_server import peak_of

REPEATS, BUDGET = 7, 5.0  # counted passes at most; seconds of them


def open_model(folder: str) -> torch.nn.Module:
    """Open the encoder of a folder, to be evaluated."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return AutoModel.from_pretrained(folder).eval()  # the softmax model attends with sdpa, the default


def forward(model: torch.nn.Module, length: int, precision: str) -> None:
    """Run one forward pass over ``length`` tokens."""
    vocabulary = model.config.vocab_size
    ids = torch.arange(length)[None] * 7919 % (vocabulary // 2) + vocabulary // 2  # no special tokens there
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        model(input_ids=ids, attention_mask=torch.ones_like(ids))


def peak(folder: str, length: int, precision: str) -> int:
    """Bytes; runs in a process of its own."""
    model = open_model(folder)
    forward(model, 64, precision)
    return peak_of(lambda: forward(model, length, precision))


def main(softmax: str, converted: str, lengths: str, precision: str) -> None:
    """Measure both models at all lengths; print JSON."""
    folders = {"softmax": softmax, "converted": converted}
    # forked before anything is computed here: the children find everything imported
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    peaks = {}
    for length in map(int, lengths.split(",")):
        for name, folder in folders.items():
            with context.Pool(1) as pool:
                peaks[name, length] = pool.apply(peak, (folder, length, precision))
    models, rows = {name: open_model(folder) for name, folder in folders.items()}, []
    for length in map(int, lengths.split(",")):
        calls = {name: lambda m=model, n=length: forward(m, n, precision) for name, model in models.items()}
        timings, _ = measure(calls, REPEATS, BUDGET, clock=time.process_time)
        for name in models:
            seconds = timings[name].as_dict()
            rows.append({"name": name, "length": length, "peak_bytes": peaks[name, length], "seconds": seconds})
    print(json.dumps({"rows": rows, "precision": precision, "machine": describe_machine("cpu")}))


if __name__ == "__main__":
    main(*sys.argv[1:])
