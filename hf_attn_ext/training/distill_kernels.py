"""Stage 1 in one call: train the kernels of a model on a list of texts or batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_attn_ext.config import AttnExtConfig
from hf_attn_ext.errors import AttnExtError, short
from hf_attn_ext.integration import calibrate, convert, is_converted
from hf_attn_ext.integration.linear.transfer import transfer

_CALIBRATION_BATCHES = 8


@dataclasses.dataclass(frozen=True)
class KernelDistillation:
    """The result of :func:`distill_kernels`.

    Attributes:
        model: the converted model with trained kernels.
        losses: the loss of each step; see :func:`hf_attn_ext.integration.linear.transfer.transfer`.
    """

    model: PreTrainedModel
    losses: list[float]


def distill_kernels(
    model: PreTrainedModel,
    texts_or_batches: Iterable[str] | Iterable[Mapping[str, Tensor]],
    tokenizer: Any = None,
    steps: int = 100,
    *,
    config: AttnExtConfig | None = None,
    batch_size: int = 8,
    max_length: int | None = None,
    lr: float = 2e-2,
) -> KernelDistillation:
    """Train the kernels of a model on its own softmax attention: stage 1 in one process, without files.

    The kernels are initialised from the first batches (:func:`hf_attn_ext.calibrate`), then trained for ``steps`` steps
    of attention transfer, one batch per step. All other weights stay as they are. For held-out data, checkpoints,
    several processes and the fine-tuning of stage 2, use :func:`hf_attn_ext.distill`.

    Args:
        model: a model, changed in place. It is converted first unless it is converted already.
        texts_or_batches: texts, or dictionaries with ``input_ids`` and ``attention_mask``, int64 (B, N).
        tokenizer: the model's tokenizer; required for texts.
        steps: training steps; the batches repeat if there are fewer.
        config: the conversion of a model that is not converted; None is the default kernel.
        batch_size: texts per batch.
        max_length: longer texts are cut to this number of tokens; None is the tokenizer's limit.
        lr: learning rate of the first step; it falls linearly.

    Returns:
        :class:`KernelDistillation`: the model and the loss of each step.

    Raises:
        AttnExtError: no texts or batches, texts without a tokenizer, ``config`` for a converted model, or ``steps``
            below 0.

    Example:
        >>> hax.distill_kernels(model, texts, tokenizer, steps=200).losses[-1]  # doctest: +SKIP
        2.07
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise AttnExtError(f"steps must be a whole number of at least 0, got {short(steps)}")
    batches = _batches(texts_or_batches, tokenizer, batch_size, max_length)
    if not is_converted(model):
        convert(model, config or AttnExtConfig())
    elif config is not None:
        raise AttnExtError("the model is converted already; leave config out, or revert the model first")
    calibrate(model, batches[:_CALIBRATION_BATCHES])
    return KernelDistillation(model, transfer(model, batches, steps, lr))


def _batches(given: Any, tokenizer: Any, batch_size: int, max_length: int | None) -> Sequence[Mapping[str, Tensor]]:
    if not isinstance(given, Iterable):
        raise AttnExtError(f"texts_or_batches must be texts, or dictionaries with input_ids, got {short(given)}")
    items: list[Any] = [given] if isinstance(given, (str, Mapping)) else list(given)
    if not items:
        raise AttnExtError("there are no texts or batches to learn from; give at least one")
    if all(isinstance(item, Mapping) and "input_ids" in item for item in items):
        return [{"attention_mask": torch.ones_like(item["input_ids"]), **item} for item in items]
    wrong = next((item for item in items if not isinstance(item, str)), None)
    if wrong is not None:
        raise AttnExtError(f"texts_or_batches must be texts, or dictionaries with input_ids, got {short(wrong)}")
    if tokenizer is None:
        raise AttnExtError("texts need the model's tokenizer; give tokenizer, or batches of token ids")
    if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
        raise AttnExtError(f"batch_size must be a whole number of at least 1, got {short(batch_size)}")
    options = {"padding": True, "truncation": True, "max_length": max_length, "return_tensors": "pt"}
    return [tokenizer(items[at : at + batch_size], **options) for at in range(0, len(items), batch_size)]
