"""Documents packed into one sequence."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hf_attn_ext.errors import AttnExtError, short
from hf_attn_ext.hasse.decomposition import ChainDecomposition, decomposed_by
from hf_attn_ext.hasse.inputs import token
from hf_attn_ext.hasse.registry import register_mask, whole_number, whole_numbers
from hf_attn_ext.hasse.spec import MaskSpec
from hf_attn_ext.hasse.tasks.family import TaskFamily, chain, groups


@register_mask("document", example={"lengths": [3, 5]})
def document(lengths: Sequence[int], causal: bool = True) -> MaskSpec:
    """Texts in one sequence that do not see each other: ``doc(q) = doc(kv)``, and ``kv <= q`` where causal.

    Source: arXiv 2107.02027 (packing without cross-contamination). Position ids start at 0 in every document, role
    ``"token"``. Causal: each position is labelled with the next token of its document. Not causal: no labels.

    Derived from the autoregressive families of all documents together, or from reading each at once.

              w0 w1 w2 w3 w4
        w0     #  .  .  .  .
        w1     #  #  .  .  .
        w2     .  .  #  .  .
        w3     .  .  #  #  .
        w4     .  .  #  #  #       lengths = [2, 3]

    Args:
        lengths: tokens of each document, each at least 1.
        causal: tokens see the earlier ones of their document, or all of them.

    Raises:
        AttnExtError: no lengths, a length that is not a whole number of at least 1, or causal not a bool.

    Example:
        >>> document([1, 2]).dense().int().tolist()
        [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
    """
    lengths = whole_numbers("document", "lengths", lengths, least=1)
    if not lengths:
        raise AttnExtError("document: lengths must name at least one document, got []")
    if not isinstance(causal, bool):
        raise AttnExtError(f"document: causal must be True or False, got {short(causal)}")
    n = whole_number("document", "the sum of lengths", sum(lengths), least=1)
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    ends = set(torch.tensor(lengths).cumsum(0).tolist())
    labels = {i: i + 1 for i in range(n) if i + 1 not in ends}
    return MaskSpec.of_text(
        n,
        name="document",
        form=functools.partial(_form, causal),
        position_ids=torch.cat([torch.arange(length) for length in lengths]),
        labels=labels if causal else {},
        tables=(owner,),
        task_family=functools.partial(packed, lengths, causal),
    )


def packed(lengths: Sequence[int], causal: bool) -> TaskFamily:
    """For every document and every k: its first k tokens, the last predicts; or, not causal, the document whole."""
    family = TaskFamily()
    start = 0
    for length in lengths:
        for k in range(1 if causal else length, length + 1):
            positions = range(start, start + k)
            labels = {k - 1: start + k} if k < length and causal else {}
            family.add(map(token, positions), labels, groups(chain(k) if causal else [k]), positions)
        start += length
    return family


def _chains(size: int, causal: bool, owner: Tensor) -> ChainDecomposition | None:
    documents = owner.numpy()
    if len(documents) != size or documents[0] < 0 or (np.diff(documents) < 0).any():  # another table
        return None
    if not causal:
        return ChainDecomposition((), np.zeros((0, size), np.int32), documents)
    chains = np.split(np.arange(size), np.flatnonzero(np.diff(documents)) + 1)
    prefix = np.zeros((len(chains), size), np.int32)
    for positions, seen in zip(chains, prefix, strict=True):
        seen[positions] = np.arange(1, len(positions) + 1)
    return ChainDecomposition(tuple(chains), prefix, np.full(size, -1))


@decomposed_by(_chains)
def _form(causal: bool, q: Tensor, kv: Tensor, owner: Tensor) -> Tensor:
    same = owner[q] == owner[kv]
    return same & (kv <= q) if causal else same
