"""Masked autoencoder."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse.inputs import mask_token, token
from hf_attn_ext.hasse.order.reading import is_whole
from hf_attn_ext.hasse.registry import register_mask, whole_number, whole_numbers
from hf_attn_ext.hasse.roles import RED, TEAL, Role
from hf_attn_ext.hasse.spec import MaskSpec
from hf_attn_ext.hasse.tasks.family import TaskFamily, groups


@register_mask(
    "masked_autoencoder",
    example={"n": 8, "visible": [0, 2, 3, 6]},
    roles={"visible": Role("w", TEAL), "mask": Role("m", RED)},
)
def masked_autoencoder(n: int, visible: Sequence[int] | int) -> MaskSpec:
    """Visible tokens see each other, mask tokens see everything: ``visible(kv) or not visible(q)``.

    Source: arXiv 2111.06377, as one stream: its encoder's part (visible tokens, undisturbed by mask tokens) and its
    decoder's part (mask tokens, which see the encoded tokens). In the source the decoder's visible tokens see mask
    tokens as well; here they never do, so that their encoding is independent of the mask tokens in every layer.

    Position ids 0 to n-1; roles ``"visible"`` and ``"mask"``; a mask token is labelled with its token. Unlike
    :func:`bidirectional`, visible tokens can be encoded without the mask tokens.

    Derived from one task: the visible tokens read at once, the mask tokens filled in together.

              w0 m1 w2 m3
        w0     #  .  #  .
        m1     #  #  #  #
        w2     #  .  #  .
        m3     #  #  #  #       visible = [0, 2]

    Args:
        n: tokens, at least 1.
        visible: the visible tokens, each of 0 to n-1 at most once; a number m stands for the first m.

    Raises:
        AttnExtError: n is not a whole number of at least 1, or visible has a token twice or one out of range.

    Example:
        >>> masked_autoencoder(3, [0, 2]).dense().int().tolist()
        [[1, 0, 1], [1, 1, 1], [1, 0, 1]]
    """
    name = "masked_autoencoder"
    n = whole_number(name, "n", n, least=1)
    if is_whole(visible):
        visible = range(whole_number(name, "visible", visible, least=0, most=n))
    visible = whole_numbers(name, "visible", visible, least=0, most=n - 1)
    if len(set(visible)) < len(visible):
        raise AttnExtError(f"{name}: visible names a token twice: {visible}")
    seen = torch.zeros(n, dtype=torch.bool)
    seen[visible] = True
    shown = seen.tolist()
    return MaskSpec.of_text(
        n,
        name=name,
        form=_form,
        inputs=tuple(token(i) if shown[i] else mask_token(i) for i in range(n)),
        roles=tuple("visible" if shown[i] else "mask" for i in range(n)),
        labels={i: i for i in range(n) if not shown[i]},
        tables=(seen,),
        task_family=functools.partial(filling_in, n, visible),
    )


def filling_in(n: int, visible: Sequence[int]) -> TaskFamily:
    """One task: visible tokens in one class, mask tokens for the others in a class above."""
    hidden = [i for i in range(n) if i not in set(visible)]
    family = TaskFamily()
    family.add(
        (*map(token, visible), *map(mask_token, hidden)),
        {len(visible) + j: i for j, i in enumerate(hidden)},
        groups([len(visible), len(hidden)]),
        positions=(*visible, *hidden),
    )
    return family


def _form(q: Tensor, kv: Tensor, seen: Tensor) -> Tensor:
    return seen[kv] | ~seen[q]
