"""Two-stream attention of XLNet."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse.inputs import mask_token, token
from hf_attn_ext.hasse.registry import register_mask, whole_numbers
from hf_attn_ext.hasse.roles import BLUE, RED, Role
from hf_attn_ext.hasse.spec import MaskSpec
from hf_attn_ext.hasse.tasks.family import TaskFamily, chain, groups


@register_mask(
    "xlnet_two_stream",
    example={"perm": [2, 0, 3, 1]},
    roles={"content": Role("h", BLUE), "query": Role("g", RED)},
)
def xlnet_two_stream(perm: Sequence[int]) -> MaskSpec:
    """Language modelling in any order: a content stream, then a query stream, 2n positions in the text's order.

    With ``step(i)`` the index of token i in ``perm``: content i sees content j where ``step(j) <= step(i)``; query i
    sees content j where ``step(j) < step(i)``, and itself.

    Source: arXiv 1906.08237. There a query sees contents only, and keeps itself through the residual; here it attends
    to itself too, otherwise the row of the first would be empty. What flows is the same. Position ids 0 to n-1 twice;
    roles ``"content"`` and ``"query"``; query i is labelled with token i.

    Derived from autoregression in the order of ``perm``: for every t, the first t tokens of the order are known, each
    sees those before it in that order, and a mask token asks for the next.

              h0 h1 h2 g0 g1 g2
        h0     #  .  #  .  .  .
        h1     #  #  #  .  .  .
        h2     .  .  #  .  .  .
        g0     .  .  #  #  .  .
        g1     #  .  #  .  #  .
        g2     .  .  .  .  .  #       perm = [2, 0, 1]

    Args:
        perm: the tokens in the order in which they are predicted, each of 0 to n-1 once.

    Raises:
        AttnExtError: perm is not a permutation of 0 to n-1, or empty.

    Example:
        >>> xlnet_two_stream([1, 0]).dense().int().tolist()
        [[1, 1, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 1]]
    """
    perm = whole_numbers("xlnet_two_stream", "perm", perm, least=0)
    n = len(perm)
    if n == 0 or sorted(perm) != list(range(n)):
        raise AttnExtError(f"xlnet_two_stream: perm must have each of 0 to {max(n - 1, 0)} once, got {perm}")
    step = torch.empty(n, dtype=torch.int64)
    step[torch.tensor(perm)] = torch.arange(n)
    return MaskSpec(
        name="xlnet_two_stream",
        tokens=n,
        form=functools.partial(_form, n),
        inputs=(*map(token, range(n)), *map(mask_token, range(n))),
        roles=("content",) * n + ("query",) * n,
        position_ids=torch.arange(n).repeat(2),
        labels={n + i: i for i in range(n)},
        tables=(step,),
        task_family=functools.partial(autoregressive_in_order, perm),
    )


def autoregressive_in_order(perm: Sequence[int]) -> TaskFamily:
    """For t = 0 to n: the first t tokens of the order, and a mask token for the next where there is one."""
    family = TaskFamily()
    n = len(perm)
    for t in range(n + 1):
        known, asked = perm[:t], perm[t : t + 1]
        family.add(
            (*map(token, known), *map(mask_token, asked)),
            {t: perm[t]} if asked else {},
            groups(chain(t + len(asked))),
            positions=(*known, *(n + i for i in asked)),
        )
    return family


def _form(n: int, q: Tensor, kv: Tensor, step: Tensor) -> Tensor:
    step_q, step_kv = step[q % n], step[kv % n]
    return ((kv < n) & ((step_kv < step_q) | ((step_kv == step_q) & (q < n)))) | (q == kv)
