"""Check that a linear layer supports a mask of ``set_mask``."""

from __future__ import annotations

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import information_flow
from hf_attn_ext.hasse.registry import kept_by_name

from .recipe import LayerMask


@kept_by_name(maxsize=64)
def check_linear_mask(layer: LayerMask | None, number: int) -> None:
    """Check that a linear layer can honour a mask: a single one, and a dense one.

    A row of a mask that is not dense is reached by a position that it does not see, which linear attention would let it
    see. ``number`` is the layer's, for the message.
    """
    if layer is None:
        return
    if isinstance(layer, tuple):
        raise AttnExtError(
            f"layer {number} is linear, and linear attention has one mask for all heads; give the layer a single mask, "
            "or leave it softmax (convert with layers=...)"
        )
    for spec in layer.examples(beyond=True):
        missing = (information_flow(spec) & ~spec.dense()).nonzero()
        if len(missing):
            row, column = missing[0].tolist()
            what = f"is reached by {spec.names[column]} without seeing it" if row != column else "does not see itself"
            raise AttnExtError(
                f"layer {number} is linear, and the mask {layer.title} is not dense: {spec.names[row]} {what}, here "
                f"with {len(spec)} positions; "
                "densify it (MaskSpec.densify()), or leave the layer softmax (convert with layers=...)"
            )
