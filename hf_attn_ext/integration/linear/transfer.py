"""Attention transfer: train each layer's feature map on that layer's softmax attention.

The hidden states stay those of the softmax model, so the layers' losses are independent of each other. Each loss and
its backward pass run inside the attention call, where queries, keys and values are available: no second model, no
backward pass through the network, and memory for one layer's attention matrices.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hf_attn_ext.attention.losses import attention_backward
from hf_attn_ext.integration.base_models.evaluation import evaluating
from hf_attn_ext.integration.base_models.families import is_causal, stock_type, supported_model_types
from hf_attn_ext.integration.kernel_modules.layers import converted_layers

from .softmax_stream import AttentionCall, softmax_stream

MODEL_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_BETAS, _MAX_NORM = (0.9, 0.95), 1.0


class _StreamDone(Exception):
    """Ends a forward pass after the last converted layer's attention; later layers change no loss."""


def run_softmax_stream(
    model: nn.Module,
    batch: Mapping[str, Tensor],
    on_layer: Callable[[AttentionCall], object],
    autocast: contextlib.AbstractContextManager[object] | None = None,
) -> None:
    """Run a model without its head in :func:`.softmax_stream`, in evaluation mode, up to its last converted layer.

    ``batch`` holds :data:`MODEL_INPUTS` (B, N); further entries are ignored. ``autocast`` is a context for the pass.
    """
    layers = converted_layers(model)
    last = layers[-1].name
    # A model of another type may use one attention module several times, as ALBERT does: it runs to the end.
    config: Any = model.config
    known = stock_type(config.model_type) in supported_model_types()

    def listen(call: AttentionCall) -> None:
        on_layer(call)
        if known and call.name == last:
            raise _StreamDone

    base = getattr(model, "base_model", model)
    device = next(base.parameters()).device
    inputs = {name: batch[name].to(device) for name in MODEL_INPUTS if name in batch}
    options = {"use_cache": False} if any(is_causal(layer.module) for layer in layers) else {}
    with (
        evaluating(model),
        contextlib.suppress(_StreamDone),
        softmax_stream(model, listen),
        autocast or contextlib.nullcontext(),
    ):
        base(**inputs, **options)


def transfer_backward(
    call: AttentionCall,
    cross_entropy: float,
    output_error: Tensor,
    scale: float | Tensor,
    query_index: Tensor | None = None,
    query_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor] | None:
    """Add the gradients of one layer's transfer loss to its feature map, in float32 at least.

    Args:
        call: the layer's attention call.
        cross_entropy: factor of the cross-entropy between softmax and kernel weights.
        output_error: (H,), factor of each head's squared output error.
        scale: factor of the gradients.
        query_index, query_mask: (B, Q), the queries to learn from; None for all real tokens.

    Returns:
        Sums over the queries per head (H,): the cross-entropy and the squared error, without factors. None for a
        feature map without trainable parameters.
    """
    if not any(parameter.requires_grad for parameter in call.feature_map.parameters()):
        return None
    with torch.autocast(call.query.device.type, enabled=False):
        return attention_backward(
            call.query,
            call.key,
            call.value,
            call.feature_map,
            call.scaling,
            call.key_padding_mask,
            query_index,
            query_mask,
            cross_entropy=cross_entropy,
            output_error=output_error,
            scale=scale,
            causal=call.causal,
        )


@torch.inference_mode(False)
def transfer(model: nn.Module, batches: Sequence[Mapping[str, Tensor]], steps: int, lr: float = 2e-2) -> list[float]:
    """Train the feature maps of a converted model for a few steps of attention transfer, one batch per step, in turn.

    The loss per query is the cross-entropy between softmax and kernel weights plus each head's squared output error
    over its mean squared output. The optimizer is AdamW with a learning rate that falls linearly from ``lr``; other
    parameters get no gradient. Returns the loss of each step, mean over layers and heads; empty if there is nothing to
    train.
    """
    parameters = [parameter for layer in converted_layers(model) for parameter in layer.feature_map.parameters()]
    if not parameters or not steps:
        return []
    optimizer = torch.optim.AdamW(parameters, lr=lr, betas=_BETAS, weight_decay=0.0)
    losses: list[float] = []
    heads: list[Tensor] = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * (1 - step / steps)
        optimizer.zero_grad()
        heads.clear()
        with torch.no_grad():
            run_softmax_stream(model, batches[step % len(batches)], lambda call: heads.extend(_learn(call)))
        nn.utils.clip_grad_norm_(parameters, _MAX_NORM)
        optimizer.step()
        losses.append(float(torch.cat(heads).mean()))
    optimizer.zero_grad()
    return losses


def _learn(call: AttentionCall) -> list[Tensor]:
    """Add one layer's gradients, with errors relative to the batch's own outputs; return its loss per head, (H,)."""
    squared = call.output.square().sum(-1, dtype=torch.promote_types(call.output.dtype, torch.float32))
    if call.key_padding_mask is not None:
        squared = squared.masked_fill(~call.key_padding_mask[:, None], 0.0)
    queries = squared[:, 0].numel() if call.key_padding_mask is None else call.key_padding_mask.sum()
    output_error = queries / squared.sum((0, 2)).clamp_min(1e-12)
    sums = transfer_backward(call, 1.0, output_error, 1 / queries)
    return [] if sums is None else [(sums[0] + output_error * sums[1]) / queries]
