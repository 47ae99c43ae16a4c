"""A few steps of attention transfer, so that a kernel's errors are of the kind that stage 1 leaves (ours)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hf_attn_ext.attention.losses import attention_backward
from hf_attn_ext.integration import AttentionCall, converted_layers, softmax_stream
from hf_attn_ext.probe.streaming.feeding import read

# As stage 1 has them, but for the learning rate's fall, which is linear, and one rate for all of a map's parameters.
_LR, _BETAS, _MAX_NORM = 2e-2, (0.9, 0.95), 1.0


@torch.inference_mode(False)
def short_transfer(model: nn.Module, batches: Sequence[dict[str, Tensor]], steps: int) -> None:
    """Train the feature maps alone, each on its layer's softmax attention, a batch a step, in turn.

    The loss is that of stage 1: the cross-entropy of the weights, and each head's squared error over its mean squared
    output. Maps without parameters stay as they are.

    Args:
        model: converted, in evaluation mode; its other parameters get no gradient.
        batches: ``input_ids`` and ``attention_mask`` (B, N).
        steps: 0 changes nothing.

    Example:
        >>> short_transfer(hybrid, batches, steps=10)  # doctest: +SKIP
    """
    parameters = [parameter for layer in converted_layers(model) for parameter in layer.feature_map.parameters()]
    if not parameters or not steps:
        return
    optimizer = torch.optim.AdamW(parameters, lr=_LR, betas=_BETAS, weight_decay=0.0)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = _LR * (1 - step / steps)
        optimizer.zero_grad()
        with softmax_stream(model, _learn):
            read(model, **batches[step % len(batches)])
        nn.utils.clip_grad_norm_(parameters, _MAX_NORM)
        optimizer.step()
    optimizer.zero_grad()


def _learn(call: AttentionCall) -> None:
    if not any(parameter.requires_grad for parameter in call.feature_map.parameters()):
        return
    squared = call.output.detach().square().sum(-1, dtype=torch.promote_types(call.output.dtype, torch.float32))
    if call.key_padding_mask is not None:
        squared = squared.masked_fill(~call.key_padding_mask[:, None], 0.0)
    queries = squared[:, 0].numel() if call.key_padding_mask is None else call.key_padding_mask.sum()
    attention_backward(
        call.query,
        call.key,
        call.value,
        call.feature_map,
        call.scaling,
        call.key_padding_mask,
        output_error=queries / squared.sum((0, 2)).clamp_min(1e-12),
        scale=1 / queries,
        causal=call.causal,
    )
