"""Causal attention."""

from __future__ import annotations

import functools

import numpy as np
from torch import Tensor

from hf_attn_ext.hasse.decomposition import ChainDecomposition, decomposed_by
from hf_attn_ext.hasse.registry import register_mask, whole_number
from hf_attn_ext.hasse.spec import MaskSpec

from .document import packed


@register_mask("causal", example={"n": 8}, prefix_stable=True)
def causal(n: int) -> MaskSpec:
    """Every token sees itself and the tokens before it: ``q`` sees ``kv`` where ``kv <= q``.

    Source: arXiv 1706.03762, the decoder. Position ids 0 to n-1, role ``"token"``, position i is labelled with token
    i+1; the last has no label, as the text ends there.

    Derived from the autoregressive family: for every k, tokens 0 to k-1 are known, each sees those before it, and the
    last predicts token k (arXiv 2606.09951, first case study).

              w0 w1 w2 w3
        w0     #  .  .  .
        w1     #  #  .  .
        w2     #  #  #  .
        w3     #  #  #  #

    Args:
        n: tokens, at least 1.

    Raises:
        AttnExtError: n is not a whole number of at least 1.

    Example:
        >>> causal(3).dense().int().tolist()
        [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    n = whole_number("causal", "n", n, least=1)
    return MaskSpec.of_text(
        n,
        name="causal",
        form=_form,
        labels={i: i + 1 for i in range(n - 1)},
        task_family=functools.partial(packed, [n], True),
    )


def _chains(size: int) -> ChainDecomposition:
    every = np.arange(size)
    return ChainDecomposition((every,), every[None].astype(np.int32) + 1, np.full(size, -1))


@decomposed_by(_chains)
def _form(q: Tensor, kv: Tensor) -> Tensor:
    return kv <= q
