"""Keywords of an attention call that change its result, and which of our computations would leave each out.

Transformers' models pass them to the attention function of the model's choice, and not every function knows every
keyword. A computation that would leave one out raises an error instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import nn

from hf_attn_ext.errors import AttnExtError

# "sdpa": torch's fused softmax. "scores": softmax computed here or by flex_attention. "linear": the kernels.
# "maps": the attention maps that are computed again from captured queries and keys.
Computation = Literal["sdpa", "scores", "linear", "maps"]

_LEFT_OUT_BY: dict[str, tuple[Computation, ...]] = {
    "position_bias": ("scores", "linear", "maps"),  # added to the scores (T5)
    "softcap": ("sdpa", "scores", "linear", "maps"),  # bounds the scores (Gemma 2)
    "s_aux": ("sdpa", "scores", "linear", "maps"),  # attention sinks (GPT-OSS)
    "sliding_window": ("linear",),  # the mask holds it, too, and softmax honours the mask
    "cu_seq_lens_q": ("maps",),  # packed texts of flash attention
}


def left_out(kwargs: Mapping[str, Any], computation: Computation) -> list[str]:
    """Return the names of the keywords in ``kwargs`` that change the result and that ``computation`` would leave out.

    Example:
        >>> left_out({"softcap": 30.0, "dropout": 0.1}, "linear")
        ['softcap']
    """
    return [name for name, who in _LEFT_OUT_BY.items() if computation in who and kwargs.get(name) is not None]


def refuse_modifiers(module: nn.Module, kwargs: Mapping[str, Any], computation: Computation, what: str) -> None:
    """Raise where a module passes a keyword that ``computation``, named ``what`` in the message, would leave out."""
    for name in left_out(kwargs, computation):
        raise AttnExtError(f"{type(module).__name__} passes {name!r} to its attention, which {what} does not honour")
