"""The attention function and the mask function ``"hasse"``: softmax under the masks of ``set_mask``.

``linear/attention_function.py`` registers both. A row that may see no real key, by its mask or by padding, sees itself.
So every backend gives the same numbers, and none gives NaN.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor, nn

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.families import is_cross_attention
from hf_attn_ext.integration.modifiers import refuse_modifiers
from hf_attn_ext.integration.softmax import dense_attention, sdpa_attention, wants_weights

from .call import MaskCall, mask_call, wrong_mask
from .flex import block_mask, flex_mask_attention
from .layouts import check_inputs
from .recipe import LayerMask

_SDPA = "sdpa (set_mask(..., backend='eager') takes the family's own attention)"


def hasse_mask(**asked: Any) -> MaskCall:
    """The mask function ``"hasse"``: return the masks of this forward pass, at its length."""
    return mask_call(asked)


def hasse_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: MaskCall | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function ``"hasse"`` of Transformers' attention interface; the module's layer selects the mask.

    The arguments are those of ``flexformer_attention`` in ``linear/attention_function.py``, with what
    :func:`hasse_mask` returned as ``attention_mask``. Returns the output (B, Nq, H, d_v) and, from the backend
    ``"eager"`` or where ``output_attentions`` asks for them, the weights (B, H, Nq, Nk).
    """
    if not isinstance(attention_mask, MaskCall):
        if attention_mask is not None:
            raise AttnExtError(wrong_mask(attention_mask))
        raise AttnExtError(
            f"{type(module).__name__} got no mask: its model does not use the mask interface, so a mask cannot be set"
        )
    layer = None if is_cross_attention(module) else attention_mask.layer(module)
    if layer is None:
        return stock_attention(
            module, query, key, value, attention_mask, dropout, scaling, is_causal=is_causal, **kwargs
        )
    return masked_attention(module, query, key, value, attention_mask, layer, dropout, scaling, **kwargs)


def masked_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    call: MaskCall,
    layer: LayerMask,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute softmax under the mask of a layer, by the backend of ``set_mask``."""
    check_inputs(kwargs)
    call.check_sizes(module, query, key)
    backend = call.settings.backend
    if backend == "eager" or wants_weights(module, kwargs):
        mask = call.additive(layer, query.device, query.dtype)
        return eager_attention(module, query, key, value, mask, scaling, dropout, kwargs)
    if backend == "flex":
        tiles = block_mask(call, layer, query.device)
        output = flex_mask_attention(module, query, key, value, tiles, dropout, scaling, kwargs)
        return output.transpose(1, 2).contiguous(), None
    refuse_modifiers(module, kwargs, "sdpa", _SDPA)
    mask, causal = call.allowed(layer, query.device, skip=True)
    return sdpa_attention(module, query, key, value, mask, dropout, scaling, causal, kwargs)


def stock_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    call: MaskCall,
    dropout: float,
    scaling: float | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute a layer without a mask of ``set_mask``, by Transformers; the backend ``"flex"`` uses sdpa here."""
    if call.settings.backend == "eager" or wants_weights(module, kwargs):
        return eager_attention(module, query, key, value, call.stock("eager"), scaling, dropout, kwargs)
    refuse_modifiers(module, kwargs, "sdpa", _SDPA)
    mask, causal = call.stock("sdpa"), kwargs.get("is_causal")
    return sdpa_attention(module, query, key, value, mask, dropout, scaling, causal, kwargs)


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    dropout: float,
    kwargs: dict[str, Any],
) -> tuple[Tensor, Tensor]:
    """Compute the family's own eager attention, in its own precision, or a plain one where the family has none."""
    if getattr(module, "reorder_and_upcast_attn", False):  # an option of GPT-2 for its eager attention only
        gpt2: Any = module
        return gpt2._upcast_and_reordered_attn(query, key, value, mask)
    own = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if own is not None:
        return own(module, query, key, value, mask, scaling=scaling, dropout=dropout, **kwargs)
    refuse_modifiers(module, kwargs, "scores", "the plain eager attention")
    return dense_attention(module, query, key, value, mask, dropout, scaling)
