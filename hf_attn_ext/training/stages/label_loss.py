"""The loss of labels that stand where the prediction is made, for loops that compute it outside the model."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from hf_attn_ext.errors import AttnExtError, short
from hf_attn_ext.integration.masking.layouts import IGNORED


@dataclasses.dataclass(frozen=True)
class LabelLoss:
    """Cross-entropy of the logits with labels that are not shifted, as the collators here lay them out.

    For ``Trainer(compute_loss_func=...)``. Transformers' own ``label_smoothing_factor`` shifts the labels of a causal
    language model, whatever the batch says; use this instead.

    Args:
        label_smoothing: the part of every target that is spread evenly over the vocabulary, from 0 to below 1.

    Raises:
        AttnExtError: ``label_smoothing`` out of range.

    Example:
        >>> Trainer(model, args, data_collator=collator, compute_loss_func=LabelLoss(0.1), ...)  # doctest: +SKIP
    """

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        value = self.label_smoothing
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise AttnExtError(f"label_smoothing must be a number from 0 to below 1, got {short(value)}")

    def __call__(self, outputs: Any, labels: Tensor | None, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Return the mean over the labels, or their sum over ``num_items_in_batch``.

        Args:
            outputs: of the model; their ``logits`` are (B, N, V).
            labels: int64 (B, N), -100 where there is none.
            num_items_in_batch: labels in all micro-batches and processes together.

        Raises:
            AttnExtError: no labels, or of another shape than the logits.
        """
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs[0]
        if labels is None or labels.shape != logits.shape[:-1]:
            found = None if labels is None else tuple(labels.shape)
            raise AttnExtError(f"labels must be as the logits, {tuple(logits.shape[:-1])}, got {found}")
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)).flatten(0, -2)
        labels = labels.to(logits.device).flatten()
        total = cross_entropy(
            logits, labels, reduction="sum", label_smoothing=self.label_smoothing, ignore_index=IGNORED
        )
        count = (labels != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        return total / (count.to(total.device) if torch.is_tensor(count) else count)
