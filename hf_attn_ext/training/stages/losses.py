"""Losses of the second stage. Every one is a *sum* over examples or predicted tokens.

Sums can be added over micro-batches and processes and divided once by the whole number, so accumulation and several
processes give the very gradient of the big batch, whatever the padding. Those of the first: ``attention/losses.py``.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def task_loss(logits: Tensor, labels: Tensor, task: str) -> Tensor:
    """Sum over the batch of the cross-entropy (classification) or the squared error (regression), in float32.

    Args:
        logits: (B, classes), or (B, 1) for regression.
        labels: (B,) int64 classes, or float numbers for regression.
        task: ``classification`` or ``regression``.
    """
    logits = logits.float()
    if task == "regression":
        return (logits.squeeze(-1) - labels.float()).square().sum()
    return functional.cross_entropy(logits, labels, reduction="sum")


def distillation_loss(logits: Tensor, teacher: Tensor, task: str, temperature: float = 1.0) -> Tensor:
    """Sum over the batch of ``T**2 KL(teacher || student)`` at temperature T, or of the squared difference.

    Args:
        logits, teacher: (B, classes), or (B, 1) for regression; (tokens, vocabulary) for language modelling.
        task: ``classification``, ``language_modeling``, or ``regression`` (the temperature plays no part there).
    """
    logits, teacher = logits.float(), teacher.float()
    if task == "regression":
        return (logits - teacher).square().sum()
    student = (logits / temperature).log_softmax(-1)
    target = (teacher / temperature).log_softmax(-1)
    return functional.kl_div(student, target, reduction="sum", log_target=True) * temperature**2


def predicted_tokens(attention_mask: Tensor) -> Tensor:
    """Return where the next token is a real one, (B, N) bool: a real token with a real one behind it."""
    real = attention_mask.bool()
    return real & functional.pad(real[:, 1:], (0, 1))


def language_loss(logits: Tensor, input_ids: Tensor, attention_mask: Tensor, reduction: str = "sum") -> Tensor:
    """Cross-entropy of each next token, in float32; the first token of a sequence is not predicted.

    Args:
        logits: (B, N, vocabulary).
        input_ids: (B, N).
        attention_mask: (B, N), 1 = real token.
        reduction: ``sum`` over all predicted tokens, or ``none``: (B, N), 0 where nothing is predicted.

    Example:
        >>> ids = torch.tensor([[3, 1, 2]])
        >>> float(language_loss(torch.zeros(1, 3, 5), ids, torch.ones_like(ids)) / 2)  # two tokens; log 5 each
        1.6094379425048828
    """
    following = functional.pad(input_ids[:, 1:], (0, 1))
    targets = following.masked_fill(~predicted_tokens(attention_mask), -100)
    losses = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction=reduction)
    return losses.view(targets.shape) if reduction == "none" else losses
