"""Families of tasks stated here once more, apart from the masks' own, so that the two can be compared."""

from __future__ import annotations

import torch

from hf_attn_ext.hasse import Task


def autoregressive_family(tokens: int) -> list[Task]:
    """Task t predicts token t + 1 from the t before it."""
    return [
        Task([(f"w{i}", i) for i in range(1, t + 1)], {t - 1: f"w{t + 1}"}, torch.ones(t, t, dtype=torch.bool).tril())
        for t in range(1, tokens + 1)
    ]


def butterfly_family(tokens: int) -> list[Task]:
    """Task k predicts token k from both sides: a chain from the first token, one from the last, and the prediction."""
    family = []
    for k in range(1, tokens + 1):
        before, after = range(1, k), range(k + 1, tokens + 1)
        inputs = [*((f"w{i}", i) for i in before), *((f"w{i}", i) for i in after), ("mean", k)]
        mask = torch.zeros(tokens, tokens, dtype=torch.bool)
        mask[: k - 1, : k - 1] = torch.ones(k - 1, k - 1).tril()
        mask[k - 1 : -1, k - 1 : -1] = torch.ones(tokens - k, tokens - k).triu()
        mask[-1] = True
        family.append(Task(inputs, {tokens - 1: f"w{k}"}, mask))
    return family
