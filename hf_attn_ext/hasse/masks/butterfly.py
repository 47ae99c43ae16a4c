"""Butterfly attention: every token predicted from all the others, none sees itself."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from hf_attn_ext.hasse.decomposition import ChainDecomposition, decomposed_by
from hf_attn_ext.hasse.inputs import neighbours, token
from hf_attn_ext.hasse.registry import register_mask, whole_number
from hf_attn_ext.hasse.roles import BLUE, GREEN, RED, Role
from hf_attn_ext.hasse.spec import MaskSpec
from hf_attn_ext.hasse.tasks.family import TaskFamily, chain, groups


@register_mask(
    "butterfly",
    example={"n": 5},
    roles={"forward": Role("F", GREEN), "backward": Role("B", BLUE), "prediction": Role("P", RED)},
)
def butterfly(n: int, window: int | None = None) -> MaskSpec:
    """A forward chain, a backward chain, and n predictions between them: 3n-2 positions.

    Counting tokens from 0, in this order:

        F_i, i = 0 .. n-2:  token i,                      sees F_0 .. F_i
        B_j, j = 1 .. n-1:  token j,                      sees B_j .. B_(n-1)
        P_k, k = 0 .. n-1:  mean of tokens k-1 and k+1,   sees itself, F_0 .. F_(k-1), B_(k+1) .. B_(n-1)

    No other position sees a P, and F and B never see each other; otherwise token k would reach P_k through a second
    layer. With ``window`` c, only the c nearest of each chain and the position itself are seen. The Hasse diagram is
    the same, and all information has arrived after ``ceil((n-1) / c)`` layers.

    Source: arXiv 2606.09951, third case study; the layout is our reading of a summary of it. Prior art: the
    cloze-driven two-tower model, arXiv 1903.07785. Position ids: the token's own, also for P_k; roles ``"forward"``,
    ``"backward"``, ``"prediction"``; P_k is labelled with token k, so n tokens give n labels.

    Derived from the cloze family: for every k, the tokens before k read forward, those after it read backward, and a
    prediction above both, whose input is the mean of its neighbours.

              F0 F1 B1 B2 P0 P1 P2
        F0     #  .  .  .  .  .  .
        F1     #  #  .  .  .  .  .
        B1     .  .  #  #  .  .  .
        B2     .  .  .  #  .  .  .
        P0     .  .  #  #  #  .  .
        P1     #  .  .  #  .  #  .
        P2     #  #  .  .  .  .  #

    Args:
        n: tokens, at least 1 (a single token is predicted from nothing).
        window: None, or neighbours seen on each side, at least 1.

    Raises:
        AttnExtError: n or window is not a whole number of at least 1.

    Example:
        >>> butterfly(2).dense().int().tolist()
        [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [1, 0, 0, 1]]
    """
    n = whole_number("butterfly", "n", n, least=1)
    if window is not None:
        window = whole_number("butterfly", "window", window, least=1)
    first_p = 2 * n - 2
    return MaskSpec(
        name="butterfly",
        tokens=n,
        form=functools.partial(_form, n, n if window is None else window),
        inputs=(*map(token, range(n - 1)), *map(token, range(1, n)), *(neighbours(k, n) for k in range(n))),
        roles=("forward",) * (n - 1) + ("backward",) * (n - 1) + ("prediction",) * n,
        position_ids=torch.tensor([*range(n - 1), *range(1, n), *range(n)]),
        labels={first_p + k: k for k in range(n)},
        task_family=functools.partial(cloze, n),
        window=window,
    )


def cloze(n: int) -> TaskFamily:
    """For every k: a chain of the tokens before k, one of the tokens after it from the end, and a prediction above."""
    family = TaskFamily()
    for k in range(n):
        before, after = range(k), range(n - 1, k, -1)
        mask = torch.ones(n, n, dtype=torch.bool)  # the last row, the prediction, sees all
        mask[: n - 1] = False
        mask[:k, :k] = groups(chain(k))
        mask[k : n - 1, k : n - 1] = groups(chain(n - 1 - k))
        family.add(
            (*map(token, before), *map(token, after), neighbours(k, n)),
            {n - 1: k},
            mask,
            positions=(*before, *(n - 2 + j for j in after), 2 * n - 2 + k),
        )
    return family


def _chains(positions: int, n: int, far: int) -> ChainDecomposition | None:
    if far < n - 1 or n < 2 or positions != 3 * n - 2:
        return None
    chain, nobody = np.arange(n - 1), np.zeros(n - 1, np.int64)
    forward = np.concatenate([chain + 1, nobody, np.arange(n)])
    backward = np.concatenate([nobody, n - 1 - chain, n - 1 - np.arange(n)])
    group = np.concatenate([np.full(2 * n - 2, -1), np.arange(n)])
    return ChainDecomposition((chain, 2 * n - 3 - chain), np.stack([forward, backward]).astype(np.int32), group)


@decomposed_by(_chains)
def _form(n: int, far: int, q: Tensor, kv: Tensor) -> Tensor:
    first_b, first_p = n - 1, 2 * n - 2
    q_forward, q_backward, q_predicts = q < first_b, (q >= first_b) & (q < first_p), q >= first_p
    kv_forward, kv_backward = kv < first_b, (kv >= first_b) & (kv < first_p)
    token_q = torch.where(q_forward, q, torch.where(q_backward, q - first_b + 1, q - first_p))
    token_kv = torch.where(kv_forward, kv, kv - first_b + 1)  # a P that is not q itself is never seen
    before = (token_kv < token_q) & (token_kv >= token_q - far)
    after = (token_kv > token_q) & (token_kv <= token_q + far)
    return (q == kv) | (kv_forward & before & ~q_backward) | (kv_backward & after & (q_backward | q_predicts))
