"""Block diffusion's training mask."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from hf_attn_ext.hasse.decomposition import ChainDecomposition, decomposed_by
from hf_attn_ext.hasse.inputs import noisy_token, token
from hf_attn_ext.hasse.registry import register_mask, whole_number
from hf_attn_ext.hasse.roles import BLUE, ORANGE, Role
from hf_attn_ext.hasse.spec import MaskSpec
from hf_attn_ext.hasse.tasks.family import TaskFamily, groups


@register_mask(
    "block_diffusion",
    example={"n": 8, "b": 4},
    roles={"noisy": Role("x", ORANGE), "clean": Role("w", BLUE)},
)
def block_diffusion(n: int, b: int) -> MaskSpec:
    """A noisy copy of the text, then the clean one, in blocks of b: 2n positions.

    A noisy token sees its own noisy block and the clean blocks before it; a clean token sees its own clean block and
    those before it. With ``t`` the token of a position and ``t // b`` its block:

        noisy q, noisy kv:  t(q) // b == t(kv) // b        (block diagonal)
        noisy q, clean kv:  t(q) // b >  t(kv) // b        (offset block causal)
        clean q, clean kv:  t(q) // b >= t(kv) // b        (block causal)
        clean q, noisy kv:  never

    Source: arXiv 2503.09573. Position ids 0 to n-1 twice; roles ``"noisy"`` and ``"clean"``; a noisy position is
    labelled with its own token, which counts only where the noise has masked it. The last block may be short.

    Derived from its inference: for every block, the clean blocks before it, and the noisy block to be cleaned.

              x0 x1 x2 x3 w0 w1 w2 w3
        x0     #  #  .  .  .  .  .  .
        x1     #  #  .  .  .  .  .  .
        x2     .  .  #  #  #  #  .  .
        x3     .  .  #  #  #  #  .  .
        w0     .  .  .  .  #  #  .  .
        w1     .  .  .  .  #  #  .  .
        w2     .  .  .  .  #  #  #  #
        w3     .  .  .  .  #  #  #  #       b = 2

    Args:
        n: tokens, at least 1.
        b: tokens of a block, from 1 to n.

    Raises:
        AttnExtError: n or b is not a whole number in its range.

    Example:
        >>> block_diffusion(2, 1).dense().int().tolist()
        [[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    """
    n = whole_number("block_diffusion", "n", n, least=1)
    b = whole_number("block_diffusion", "b", b, least=1, most=n)
    return MaskSpec(
        name="block_diffusion",
        tokens=n,
        form=functools.partial(_form, n, b),
        inputs=(*map(noisy_token, range(n)), *map(token, range(n))),
        roles=("noisy",) * n + ("clean",) * n,
        position_ids=torch.arange(n).repeat(2),
        labels={i: i for i in range(n)},
        task_family=functools.partial(denoising, n, b),
    )


def denoising(n: int, b: int) -> TaskFamily:
    """For every block: the clean blocks before it, each seen whole, and the noisy block, which predicts itself.

    The last task is the whole clean text, the context of whatever would follow.
    """
    family = TaskFamily()
    for start in (*range(0, n, b), n):
        stop = min(start + b, n)
        sizes = [min(b, start - s) for s in range(0, start, b)]
        family.add(
            (*map(token, range(start)), *map(noisy_token, range(start, stop))),
            {i: i for i in range(start, stop)},
            groups([*sizes, stop - start]),
            positions=(*range(n, n + start), *range(start, stop)),
        )
    return family


def _chains(positions: int, n: int, b: int) -> ChainDecomposition | None:
    if positions != 2 * n:
        return None
    block = np.arange(n) // b
    prefix = np.concatenate([block * b, np.minimum((block + 1) * b, n)])
    return ChainDecomposition(
        (np.arange(n, 2 * n),), prefix[None].astype(np.int32), np.concatenate([block, np.full(n, -1)])
    )


@decomposed_by(_chains)
def _form(n: int, b: int, q: Tensor, kv: Tensor) -> Tensor:
    noisy, shown = q < n, kv < n
    block_q, block_kv = q % n // b, kv % n // b
    same, before = block_q == block_kv, block_q > block_kv
    return (noisy & shown & same) | (~shown & (before | (~noisy & same)))
