"""Dense softmax under a mask, shared by losses, attention weights and layers that keep softmax."""

from __future__ import annotations

import torch
from torch import Tensor


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Return the softmax of ``scores`` over the keys that a query may attend to.

    Args:
        scores: (..., Nq, Nk).
        mask: bool, True = may attend, or a tensor that is added to the scores; broadcasts to ``scores``. None: all.

    Returns:
        (..., Nq, Nk). Keys that a bool mask hides have weight 0, except in a row that it hides entirely, which is
        uniform.

    Example:
        >>> masked_softmax(torch.zeros(2, 2), torch.ones(2, 2, dtype=torch.bool).tril())
        tensor([[1.0000, 0.0000],
                [0.5000, 0.5000]])
    """
    if mask is not None:
        hidden = mask.dtype == torch.bool
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min) if hidden else scores + mask
    return scores.softmax(-1)
