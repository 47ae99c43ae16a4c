"""A mask of ``set_mask`` as a linear layer takes it: causal, everything, or an order."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec
from hf_attn_ext.integration.base_models.families import layer_number
from hf_attn_ext.integration.masking.call import MaskCall
from hf_attn_ext.integration.masking.linear_masks import check_linear_mask

from .cache import KernelStateLayer


def order_of(
    call: MaskCall, module: nn.Module, causal: bool, key: Tensor, layer: KernelStateLayer | None
) -> tuple[bool, MaskSpec | list[MaskSpec] | None, Tensor | None]:
    """What a mask is to a linear layer: whether it is causal, else its order; and the padding mask. Causal, without
    padding, where the call's streams say it all.

    Raises:
        AttnExtError: a cache, and an order that is not the causal one.
    """
    mask = call.layer(module)
    padding = call.padding
    if mask is None:
        return causal, None, padding
    check_linear_mask(mask, layer_number(module) or 0)
    if layer is not None and call.streams is not None:
        return True, None, None
    given = call.given is not None
    kind = "other" if given or (mask.fixed and call.q_offset) else mask.kind(call.stop)
    if layer is not None and kind == "full" and call.stop == 1:
        kind = "causal"  # of one position they are the same; what follows shows which it is
    if layer is not None and kind != "causal":
        raise AttnExtError(
            f"a linear layer keeps a state, which has no order but the causal one, and the mask is {mask.title}; pass "
            "use_cache=False"
        )
    if given:
        return False, call.given_orders(), None
    if kind == "other":
        return False, mask.of_length(key.shape[2]), padding
    return kind == "causal", None, padding


def dense_order(order: MaskSpec | list[MaskSpec], device: torch.device) -> Tensor:
    """What the rows of a linear layer see by its order, themselves included: bool (N, N), or (B, N, N)."""
    if isinstance(order, list):
        return torch.stack([dense_order(one, device) for one in order])
    return (order.dense() | torch.eye(len(order), dtype=torch.bool)).to(device)
