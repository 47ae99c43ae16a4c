"""Attention to the nearest tokens, which a kernel that depends on content alone cannot follow."""

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
    """Return the share of attention on tokens at distance 1 to ``nearest``, minus their share of the visible keys.

    By layer number, (H,): the mean over all real tokens as queries, special tokens included; 0 means that a head has no
    preference for near tokens.

    Source:
        Ours.
    """
    sums = {layer.index: np.zeros(layer.num_heads) for layer in capturable_layers(model)}
    queries = 0

    def count(call: HeadOutputs) -> None:
        # the capture is at the attention interface, and every batch has a mask
        assert call.query is not None and call.forward.attention_mask is not None
        position = torch.arange(call.query.shape[2], device=call.query.device)
        distance = (position[:, None] - position).abs()
        near = (distance > 0) & (distance <= nearest)
        for row, real in enumerate(call.forward.attention_mask.to(near.device)):
            visible = visible_keys(call, row)  # without padding
            by_chance = (visible & near).sum(-1).double() / visible.sum(-1).clamp_min(1)
            share = (attention_map(call, row) * near).sum(-1).double()
            sums[call.layer.index] += (share - by_chance)[:, real].sum(1).cpu().numpy()

    with capture(model, count):
        for batch in batches:
            queries += int(batch["attention_mask"].sum())
            read(model, batch["input_ids"], batch["attention_mask"])
    return {layer: total / queries for layer, total in sums.items()}
