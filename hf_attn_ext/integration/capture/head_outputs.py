"""The outputs of all heads of one layer, as a capture hands them on."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.readable_layers import Layer

from .passes import ForwardPass


@dataclasses.dataclass
class HeadOutputs:
    """The head outputs of one layer in one call. The tensors are detached views, not copies.

    Attributes:
        layer: the layer.
        forward: the pass that the call belongs to.
        output: (B, H, N, d_v), the heads' outputs before the output projection.
        query, key: (B, H, N, d) and (B, H or fewer, N, d), as passed to the attention function; None if the heads are
            read at the projection.
        attention_mask: as passed to the attention function, in the form of its backend.
        scaling: the factor of ``q . k``.
        causal: query i attends to the keys 0..i only, where ``attention_mask`` does not say what it attends to.
        modifiers: keywords of the attention function that change the weights and that :func:`.attention_map` does not
            follow.
    """

    layer: Layer
    forward: ForwardPass
    output: Tensor
    query: Tensor | None = None
    key: Tensor | None = None
    attention_mask: Any = None
    scaling: float = 1.0
    causal: bool = False
    modifiers: tuple[str, ...] = ()

    def check_single(self, listener: Any) -> None:
        """Check that ``listener`` gets this layer for the first time in the pass."""
        seen = self.forward.notes.setdefault((listener, "layers"), set())
        if self.layer.index in seen:
            raise AttnExtError(
                f"{self.layer.name} ran more than once in a pass, and layers that share weights cannot be told apart"
            )
        seen.add(self.layer.index)
