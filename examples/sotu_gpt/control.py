"""The control: a stock model whose attention has windows, so that it sees the last few tokens and no others."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn

WINDOWED = "sotu_windows"  # the attention function of the control


def control_name(options: argparse.Namespace) -> str:
    return f"last-{options.window}"


def windows(layers: int, sight: int) -> list[int]:
    """Each layer's window, itself included, such that all together see ``sight`` tokens: [3, 3, 3, 2] for 4 and 8."""
    steps = [(sight - 1) // layers + (i < (sight - 1) % layers) for i in range(layers)]
    return [step + 1 for step in steps]


def register_windows() -> None:
    """Enter the control's attention function, and the mask function that has to go with it, in the host's tables."""
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    AttentionInterface.register(WINDOWED, windowed_attention)
    # Padding stands on the right, where no window reaches.
    AttentionMaskInterface.register(WINDOWED, lambda *arguments, **keywords: None)


def windowed_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: None = None, **keywords: Any
) -> tuple[Tensor, None]:
    """Exact softmax over the last few tokens of each query, as many as the layer's window holds."""
    place = torch.arange(query.shape[2], device=query.device)
    age = place[:, None] - place
    band = (age >= 0) & (age < module.config.attention_windows[module.layer_idx])
    out = nn.functional.scaled_dot_product_attention(query, key, value, band, scale=keywords.get("scaling"))
    return out.transpose(1, 2).contiguous(), None
