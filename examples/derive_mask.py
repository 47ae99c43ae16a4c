"""From the tasks that a model shall be trained on to the smallest mask that trains all of them in one pass.

    python examples/derive_mask.py                      # 15 seconds on two cores
    python examples/derive_mask.py --model gpt2

``make assets`` fetches the default model. The tasks: predict each word of a sentence from the words before it
(autoregression), and judge the whole sentence from all words, which may all attend to each other.
"""

from __future__ import annotations

import argparse

import torch
from transformers import AutoModelForCausalLM

import hf_attn_ext as hax
from hf_attn_ext.hasse import MaskSpec, Poset, Task, convergence_depth, information_flow, minimal_joint_task


def sentence_tasks(words: list[str]) -> list[Task]:
    """Return one task per predicted word, and one that reads the whole sentence at once."""
    inputs = [(word, place) for place, word in enumerate(words)]
    tasks = [
        Task(inputs[:n], {n - 1: inputs[n]}, torch.ones(n, n, dtype=torch.bool).tril()) for n in range(1, len(words))
    ]
    reader = [("read", word, place) for place, word in enumerate(words)]  # inputs of its own: other information
    every = torch.ones(len(words), len(words), dtype=torch.bool)
    return [*tasks, Task(reader, {len(words) - 1: "judgement"}, every)]


def main(arguments: list[str] | None = None) -> None:
    """Parse the options and run the example."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--words", default="the cat sat down", help="a sentence")
    parser.add_argument("--model", default=".assets/mgm", help="a decoder that attends by the mask")
    options = parser.parse_args(arguments)

    tasks = sentence_tasks(options.words.split())
    joint = minimal_joint_task(tasks)
    print(f"{len(tasks)} tasks with {sum(map(len, tasks))} positions need {len(joint)} together")
    print(f"minimal, and every task is in it: {bool(joint.verify())}")
    for position, (value, sources) in enumerate(zip(joint.inputs, joint.sources, strict=True)):
        label = joint.labels.get(position, "")
        print(f"  {position}  {value!s:24} predicts {label!s:24} task:position {sources}")

    spec = MaskSpec.from_mask(joint.mask, inputs=joint.inputs, name="sentence")
    order = Poset.from_mask(spec)
    print(f"its order: {len(order.classes)} classes, {len(order.covers)} covers, width {order.width()}")
    print(f"information is complete after {convergence_depth(joint.mask)} layer(s)")
    flow = information_flow(joint.mask, num_layers=2)
    print(f"position {len(joint) - 1} sees {int(flow[-1].sum())} of {len(joint)} positions after two layers")
    for finding in spec.check(num_layers=2):  # leaks, depth, cache
        print(f"  {finding}")

    model = AutoModelForCausalLM.from_pretrained(options.model).eval()
    hax.set_mask(model, spec)
    with torch.no_grad():
        logits = model(torch.arange(10, 10 + len(spec))[None]).logits
    print(f"{type(model).__name__} attends by it: logits {tuple(logits.shape)}")


if __name__ == "__main__":
    main()
