"""Causal attention in a sliding window."""

from __future__ import annotations

import functools

from torch import Tensor

from hf_attn_ext.hasse.registry import register_mask, whole_number
from hf_attn_ext.hasse.spec import MaskSpec

from .document import packed


@register_mask("sliding_window", example={"n": 8, "w": 3}, prefix_stable=True, clipped="w")
def sliding_window(n: int, w: int) -> MaskSpec:
    """Every token sees the last w tokens, itself among them: ``q - w < kv <= q``.

    Source: arXiv 2004.05150; the count is that of Mistral and of transformers (arXiv 2310.06825). Position ids 0 to
    n-1, role ``"token"``, position i is labelled with token i+1.

    Derived from the autoregressive family: the causal mask, cut to pairs at most w-1 covers apart. Its Hasse diagram
    is the causal mask's; information needs ``ceil((n-1) / (w-1))`` layers from end to end. With ``w = 1`` nothing
    flows at all, and there is no derivation.

              w0 w1 w2 w3
        w0     #  .  .  .
        w1     #  #  .  .
        w2     .  #  #  .
        w3     .  .  #  #       w = 2

    Args:
        n: tokens, at least 1.
        w: tokens in the window, from 1 to n.

    Raises:
        AttnExtError: n or w is not a whole number in its range.

    Example:
        >>> sliding_window(3, 2).dense().int().tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    n = whole_number("sliding_window", "n", n, least=1)
    w = whole_number("sliding_window", "w", w, least=1, most=n)
    return MaskSpec.of_text(
        n,
        name="sliding_window",
        form=functools.partial(_form, w),
        labels={i: i + 1 for i in range(n - 1)},
        task_family=functools.partial(packed, [n], True) if w > 1 else None,
        window=w - 1 if w > 1 else None,
    )


def _form(w: int, q: Tensor, kv: Tensor) -> Tensor:
    return (kv <= q) & (kv > q - w)
