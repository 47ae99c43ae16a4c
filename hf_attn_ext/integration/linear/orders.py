"""A mask of ``set_mask`` in the form that a linear layer takes: causal, everything, or an order."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec
from hf_attn_ext.integration.base_models.families import layer_number
from hf_attn_ext.integration.masking.call import MaskCall
from hf_attn_ext.integration.masking.linear_masks import check_linear_mask
from hf_attn_ext.integration.masking.recipe import heads_of

from .cache import KernelStateLayer


def order_of(
    call: MaskCall, module: nn.Module, causal: bool, key: Tensor, layer: KernelStateLayer | None
) -> tuple[bool, MaskSpec | list[MaskSpec] | None, Tensor | None]:
    """Return a mask in the form that a linear layer takes; ``causal`` is for a layer without a mask of ``set_mask``.

    Returns:
        Whether the layer is causal; its order where it is neither causal nor sees everything; and the padding mask. A
        pass with streams is causal without padding here, as its streams hold the padding.
    """
    mask = call.layer(module)
    padding = call.padding
    if mask is None:
        return causal, None, padding
    check_linear_mask(mask, layer_number(module) or 0)
    (mask,) = heads_of(mask)
    if layer is not None and call.streams is not None:
        return True, None, None
    given = call.given is not None
    kind = "other" if given or (mask.fixed and call.q_offset) else mask.kind(call.stop)
    if layer is not None and kind == "full" and call.stop == 1:
        kind = "causal"  # with one position they are the same; the next call shows which it is
    if layer is not None and kind != "causal":
        raise AttnExtError(
            f"a linear layer with a cache can follow only a causal mask, but the mask is {mask.title}; pass "
            "use_cache=False"
        )
    if given:
        return False, call.given_orders(), None
    if kind == "other":
        return False, mask.of_length(key.shape[2]), padding
    return kind == "causal", None, padding


def dense_order(order: MaskSpec | list[MaskSpec], device: torch.device) -> Tensor:
    """Return what each row of a linear layer sees by its order, itself included: bool (N, N), or (B, N, N)."""
    if isinstance(order, list):
        return torch.stack([dense_order(each, device) for each in order])
    return (order.dense() | torch.eye(len(order), dtype=torch.bool)).to(device)
