"""Bidirectional attention."""

from __future__ import annotations

import functools

import numpy as np
from torch import Tensor

from hf_attn_ext.hasse.decomposition import ChainDecomposition, decomposed_by
from hf_attn_ext.hasse.registry import register_mask, whole_number
from hf_attn_ext.hasse.spec import MaskSpec

from .document import packed


@register_mask("bidirectional", example={"n": 8})
def bidirectional(n: int) -> MaskSpec:
    """Every token sees every token: always True.

    Source: arXiv 1706.03762, the encoder; arXiv 1810.04805. Position ids 0 to n-1, role ``"token"``, no labels: any
    token would see its own. (:func:`masked_autoencoder` has mask tokens, and labels for them.)

    Derived from one task: the whole text, read at once.

              w0 w1 w2
        w0     #  #  #
        w1     #  #  #
        w2     #  #  #

    Args:
        n: tokens, at least 1.

    Raises:
        AttnExtError: n is not a whole number of at least 1.

    Example:
        >>> bidirectional(2).dense().int().tolist()
        [[1, 1], [1, 1]]
    """
    n = whole_number("bidirectional", "n", n, least=1)
    return MaskSpec.of_text(
        n, name="bidirectional", form=_form, labels={}, task_family=functools.partial(packed, [n], False)
    )


def _chains(size: int) -> ChainDecomposition:
    return ChainDecomposition((), np.zeros((0, size), np.int32), np.zeros(size, np.int64))


@decomposed_by(_chains)
def _form(q: Tensor, kv: Tensor) -> Tensor:
    return (q >= 0) & (kv >= 0)
