"""Block two-stream attention: a clean text, and blocks of mask tokens that predict it."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from hf_attn_ext.errors import AttnExtError, short, suggest
from hf_attn_ext.hasse.decomposition import ChainDecomposition, decomposed_by
from hf_attn_ext.hasse.inputs import mask_token, token
from hf_attn_ext.hasse.registry import register_mask, whole_number
from hf_attn_ext.hasse.roles import BLUE, RED, Role
from hf_attn_ext.hasse.spec import MaskSpec
from hf_attn_ext.hasse.tasks.family import TaskFamily, chain, groups

CONTEXTS = ("token", "block")
STARTS = ("boundary", "every")


@register_mask(
    "block_two_stream",
    example={"n": 6, "block_size": 2},
    roles={"clean": Role("w", BLUE), "mask": Role("m", RED)},
)
def block_two_stream(n: int, block_size: int, context: str = "token", starts: str = "boundary") -> MaskSpec:
    """The clean text, then blocks of mask tokens, each predicting ``block_size`` tokens at once.

    A block of mask tokens sees itself whole and the clean tokens before its start; nobody else sees it. With ``l``
    the block size, ``b = (q - n) // l`` the number of q's mask block, and ``start(b) = b * l`` (``starts="boundary"``)
    or ``b`` (``starts="every"``):

        clean q, clean kv:  kv <= q  (context "token")   or   kv // l <= q // l  (context "block")
        mask q,  clean kv:  kv < start(b)
        mask q,  mask kv:   (kv - n) // l == b
        clean q, mask kv:   never

    Source: arXiv 2606.09951, second case study; the layout and the three variants are our reading of a summary of it.
    Nearest relative: :func:`block_diffusion`. Position ids: 0 to n-1 for the clean text, and for a mask token that of
    the token it predicts; roles ``"clean"`` and ``"mask"``; a mask token is labelled with its token.

    - ``context="token", starts="boundary"``: n mask tokens, the last block may be short.
    - ``context="token", starts="every"``: a block starts at every token: ``(n-l+1) * l`` mask tokens, whole blocks.
    - ``context="block", starts="boundary"``: clean tokens of a block see each other too.
    - ``context="block", starts="every"`` is refused: a clean token of a begun block has seen the rest of it, which
      the mask tokens must predict.

    Each is derived from its inference: for every start, the clean text before it, and a block of mask tokens.

              w0 w1 w2 w3 m0 m1 m2 m3                 context "block":
        w0     #  .  .  .  .  .  .  .              w0     #  #  .  .  .  .  .  .
        w1     #  #  .  .  .  .  .  .              w1     #  #  .  .  .  .  .  .
        w2     #  #  #  .  .  .  .  .              w2     #  #  #  #  .  .  .  .
        w3     #  #  #  #  .  .  .  .              w3     #  #  #  #  .  .  .  .
        m0     .  .  .  .  #  #  .  .              the rest is the same
        m1     .  .  .  .  #  #  .  .
        m2     #  #  .  .  .  .  #  #
        m3     #  #  .  .  .  .  #  #       block_size = 2

    Args:
        n: tokens, at least 1.
        block_size: tokens of a block, from 1 to n.
        context: ``"token"`` or ``"block"``: what a clean token sees.
        starts: ``"boundary"`` or ``"every"``: where blocks of mask tokens start.

    Raises:
        AttnExtError: n or block_size is not a whole number in its range, another word, or the variant that leaks.

    Example:
        >>> block_two_stream(2, 1).dense().int().tolist()
        [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1]]
    """
    name = "block_two_stream"
    n = whole_number(name, "n", n, least=1)
    size = whole_number(name, "block_size", block_size, least=1, most=n)
    for option, value, known in (("context", context, CONTEXTS), ("starts", starts, STARTS)):
        if not isinstance(value, str) or value not in known:
            raise AttnExtError(f"{name}: {option} must be one of {known}, got {short(value)}.{suggest(value, known)}")
    whole_blocks, every = context == "block", starts == "every"
    if whole_blocks and every:
        raise AttnExtError(
            f"{name}: context='block' with starts='every' leaks: a clean token of a begun block has seen the rest of "
            "that block, which the mask tokens must predict; use starts='boundary' or context='token'"
        )

    asked = [(start, i) for start in _starts(n, size, every) for i in range(start, min(start + size, n))]
    predicted = [i for _, i in asked]
    names = [f"m{i}@{start}" if every else f"m{i}" for start, i in asked]
    return MaskSpec(
        name=name,
        tokens=n,
        form=functools.partial(_form, n, size, whole_blocks, every),
        inputs=(*map(token, range(n)), *map(mask_token, predicted)),
        roles=("clean",) * n + ("mask",) * len(predicted),
        position_ids=torch.tensor([*range(n), *predicted]),
        labels={n + j: i for j, i in enumerate(predicted)},
        names=(*(f"w{i}" for i in range(n)), *names),
        task_family=functools.partial(block_generation, n, size, whole_blocks, every),
    )


def block_generation(n: int, size: int, whole_blocks: bool, every: bool) -> TaskFamily:
    """For every start: the clean tokens before it, and a block of mask tokens that predicts what follows.

    Clean tokens see those before them, or their own block whole as well. The last task is the whole clean text, the
    context of whatever would follow.
    """
    family = TaskFamily()
    end = n
    for start in (*_starts(n, size, every), n):
        stop = min(start + size, n)
        known = [min(size, start - s) for s in range(0, start, size)] if whole_blocks else chain(start)
        family.add(
            (*map(token, range(start)), *map(mask_token, range(start, stop))),
            {i: i for i in range(start, stop)},
            groups([*known, stop - start]),
            positions=(*range(start), *range(end, end + stop - start)),
        )
        end += stop - start
    return family


def _starts(n: int, size: int, every: bool) -> range:
    return range(n - size + 1) if every else range(0, n, size)


def _chains(positions: int, n: int, size: int, whole_blocks: bool, every: bool) -> ChainDecomposition | None:
    if positions < n:
        return None
    clean = np.arange(n)
    block = np.arange(positions - n) // size
    own = np.minimum((clean // size + 1) * size, n) if whole_blocks else clean + 1
    prefix = np.concatenate([own, block if every else block * size])
    return ChainDecomposition((clean,), prefix[None].astype(np.int32), np.concatenate([np.full(n, -1), block]))


@decomposed_by(_chains)
def _form(n: int, size: int, whole_blocks: bool, every: bool, q: Tensor, kv: Tensor) -> Tensor:
    block = (q - n) // size
    start = block if every else block * size
    past = kv // size <= q // size if whole_blocks else kv <= q
    clean, shown = q < n, kv < n
    own = (kv - n) // size == block
    return (shown & clean & past) | (shown & ~clean & (kv < start)) | (~shown & ~clean & own)
