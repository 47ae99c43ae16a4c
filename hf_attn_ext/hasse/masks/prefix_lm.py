"""Prefix language modelling."""

from __future__ import annotations

import functools

import numpy as np
from torch import Tensor

from hf_attn_ext.hasse.decomposition import ChainDecomposition, decomposed_by
from hf_attn_ext.hasse.inputs import token
from hf_attn_ext.hasse.registry import register_mask, whole_number
from hf_attn_ext.hasse.roles import TEAL, Role
from hf_attn_ext.hasse.spec import MaskSpec
from hf_attn_ext.hasse.tasks.family import TaskFamily, chain, groups


@register_mask("prefix_lm", example={"n": 8, "p": 3}, prefix_stable=True, roles={"prefix": Role("w", TEAL)})
def prefix_lm(n: int, p: int) -> MaskSpec:
    """The first p tokens see each other, the others see the tokens before them: ``kv <= q`` or ``kv < p``.

    Source: arXiv 1910.10683, section 3.2.1; arXiv 1905.03197. Position ids 0 to n-1; roles ``"prefix"`` (p times)
    and ``"token"``; position i is labelled with token i+1 from the last of the prefix on. ``p = 0`` and ``p = 1`` are
    the causal mask.

    Derived from the continuations of one prefix: for every k from p on, k tokens are known and the last predicts
    token k. (The prefix is read before: it sees nothing of what follows.)

              w0 w1 w2 w3
        w0     #  #  .  .
        w1     #  #  .  .
        w2     #  #  #  .
        w3     #  #  #  #       p = 2

    Args:
        n: tokens, at least 1.
        p: tokens of the prefix, from 0 to n.

    Raises:
        AttnExtError: n or p is not a whole number in its range.

    Example:
        >>> prefix_lm(3, 2).dense().int().tolist()
        [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    """
    n = whole_number("prefix_lm", "n", n, least=1)
    p = whole_number("prefix_lm", "p", p, least=0, most=n)
    return MaskSpec.of_text(
        n,
        name="prefix_lm",
        form=functools.partial(_form, p),
        roles=("prefix",) * p + ("token",) * (n - p),
        labels={i: i + 1 for i in range(max(p, 1) - 1, n - 1)},
        task_family=functools.partial(continuations, n, p),
    )


def continuations(n: int, p: int) -> TaskFamily:
    """For k = p to n: k tokens, the first p in one class, each other sees those before it, the last predicts."""
    family = TaskFamily()
    for k in range(max(p, 1), n + 1):
        labels = {k - 1: k} if k < n else {}
        family.add(map(token, range(k)), labels, groups([p, *chain(k - p)]), positions=range(k))
    return family


def _chains(size: int, p: int) -> ChainDecomposition:
    every = np.arange(size)
    return ChainDecomposition((every,), np.maximum(every + 1, min(p, size))[None].astype(np.int32), np.full(size, -1))


@decomposed_by(_chains)
def _form(p: int, q: Tensor, kv: Tensor) -> Tensor:
    return (kv <= q) | ((q < p) & (kv < p))
