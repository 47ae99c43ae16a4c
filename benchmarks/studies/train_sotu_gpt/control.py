"""The control: a softmax model whose attention sees only a window of the last few tokens."""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from hf_attn_ext.errors import AttnExtError

WINDOWED = "sotu_windows"  # the attention function of the control


def control_name(options: argparse.Namespace) -> str:
    """Return the name of the control, such as ``last-8``."""
    return f"last-{options.window}"


def local_layers(options: argparse.Namespace) -> list[bool]:
    """Which layers see a window only, in every model: each second one from the first, where there is a window.

    GPT-2 (learned positions) has no such layers.
    """
    some = options.local_window > 0 and options.positions == "rotary"
    return [some and layer % 2 == 0 for layer in range(options.layers)]


def windows(options: argparse.Namespace) -> list[int]:
    """Each layer's window, itself included, such that all together see the last ``options.window`` tokens.

    Local layers keep their window; the others share what is left: [4, 2, 4, 1] for 4 layers, windows of 4, and 8
    tokens; without local layers [3, 3, 3, 2].
    """
    local = local_layers(options)
    left = options.window - 1 - sum(local) * (options.local_window - 1)
    if left < 0:
        raise AttnExtError(f"windows of {options.local_window} in {sum(local)} layers see more than {options.window}")
    others = len(local) - sum(local)
    shares = iter(left // others + (i < left % others) for i in range(others)) if others else iter(())
    return [options.local_window if here else next(shares) + 1 for here in local]


def register_windows() -> None:
    """Register the control's attention function, and its mask function, with Transformers."""
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
