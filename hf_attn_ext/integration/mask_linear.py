"""A mask of ``set_mask`` as a linear layer takes it: causal, everything, or an order."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import AttnExtError
from ..hasse import MaskSpec, information_flow
from ..hasse.masks.registry import kept_by_name
from .cache import KernelStateLayer
from .mask_call import MaskCall
from .mask_settings import Recipe


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
    check_linear_mask(mask, getattr(module, "layer_idx", 0))
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


@kept_by_name(maxsize=64)
def check_linear_mask(layer: Recipe | tuple[Recipe, ...] | None, number: int) -> None:
    """Raise :class:`AttnExtError` unless a linear layer can honour the mask."""
    if isinstance(layer, tuple):
        raise AttnExtError(
            f"layer {number} is linear, and linear attention has one mask for all heads; give the layer one, or leave "
            "it softmax (convert with layers=...)"
        )
    for spec in [] if layer is None else layer.examples(beyond=True):
        missing = (information_flow(spec) & ~spec.dense()).nonzero()
        if len(missing):
            row, column = missing[0].tolist()
            what = f"is reached by {spec.names[column]} without seeing it" if row != column else "does not see itself"
            raise AttnExtError(
                f"layer {number} is linear, and the mask {layer.title} is not dense: {spec.names[row]} {what}, here "
                f"with {len(spec)} positions; "
                "densify it (MaskSpec.densify()), or leave the layer softmax (convert with layers=...)"
            )
