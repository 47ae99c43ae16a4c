"""Operations of a training step, counted, not timed: the same on every machine."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.studies.common.training import predictions


def step_operations(model: Any, batch: Any) -> int:
    """Floating-point operations of matrix products in one forward and backward pass (a multiplication and an addition).

    By torch's counter, which sees nothing of fused attention on a CPU: the model's attention must be eager, which
    computes the same products. Attention counts as it is computed: all pairs, whether the mask shows them or not.
    """
    model.train()
    with FlopCounterMode(display=False) as counter:
        logits, labels = predictions(model, batch)
        nn.functional.cross_entropy(logits, labels).backward()
    model.zero_grad(set_to_none=True)
    return counter.get_total_flops()
