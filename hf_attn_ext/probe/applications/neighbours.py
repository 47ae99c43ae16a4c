"""How much of a head's attention goes to the nearest tokens, which a kernel of contents cannot tell apart by place."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from hf_attn_ext.integration.base_models.readable_layers import capturable_layers
from hf_attn_ext.integration.capture.attention_maps import attention_map, visible_keys
from hf_attn_ext.integration.capture.capture import capture
from hf_attn_ext.integration.capture.head_outputs import HeadOutputs
from hf_attn_ext.probe.streaming.feeding import read

NEAREST = 2


def neighbour_attention(
    model: nn.Module, batches: Iterable[dict[str, Tensor]], nearest: int = NEAREST
) -> dict[int, np.ndarray]:
    """The share of attention on the tokens at distance 1 to ``nearest``, less their share of what a query sees.

    Mean over all real tokens as queries, special ones included; 0 is a head that does not care for nearness.

    Args:
        model: in evaluation mode.
        batches: ``input_ids`` and ``attention_mask`` (B, N).
        nearest: in tokens, on both sides where both are seen.

    Returns:
        By layer, (H,) float64.

    Raises:
        AttnExtError: a model that cannot be captured, or whose attention maps do not follow from what is captured.

    Example:
        >>> neighbour_attention(model, batches)[0].shape  # doctest: +SKIP
        (12,)
    """
    sums = {layer.index: np.zeros(layer.num_heads) for layer in capturable_layers(model)}
    queries = 0

    def count(call: HeadOutputs) -> None:
        length = call.query.shape[2]
        place = torch.arange(length, device=call.query.device)
        near = (place[:, None] - place).abs()
        near = (near > 0) & (near <= nearest)
        for row, real in enumerate(call.forward.attention_mask.to(near.device)):
            seen = visible_keys(call, row)  # padding is never seen
            by_chance = (seen & near).sum(-1).double() / seen.sum(-1).clamp_min(1)
            share = (attention_map(call, row) * near).sum(-1).double()
            sums[call.layer.index] += (share - by_chance)[:, real].sum(1).cpu().numpy()

    with capture(model, count):
        for batch in batches:
            queries += int(batch["attention_mask"].sum())
            read(model, **batch)
    return {layer: total / queries for layer, total in sums.items()}
