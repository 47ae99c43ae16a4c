"""The part of an order that somebody sees, covered by chains, and how far every position sees along each of them.

A down-set meets a chain in a prefix. So a chain cover and one number a position and chain say all that a dense mask
says, in ``N w`` numbers for ``w`` chains: what linear attention over an order is computed from. Classes that nobody
but their own positions sees need no chain.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse.order.bits import BitMatrix
from hf_attn_ext.hasse.order.chains import chains_and_antichain
from hf_attn_ext.hasse.order.poset import Poset

from .spec import Form, MaskSpec

_BLOCK = 512  # rows that are looked at together
_PROBES = 24  # rows of a closed form that are compared with what it says of itself


class ChainCover(NamedTuple):
    """A dense mask over ``N`` positions as chains and prefixes.

    Attributes:
        chains: int64 positions of each chain, from below; the positions of one class stand together.
        prefix: int32 (chains, N): position i sees the first ``prefix[c, i]`` positions of chain c.
        group: int64 (N,): the number of a position's class where that is in no chain, seen by its own positions
            alone; -1 where the class is in a chain.

    Example:
        >>> cover = chain_cover(Poset.from_mask([[1, 0, 0], [1, 1, 0], [1, 0, 1]]))
        >>> [chain.tolist() for chain in cover.chains], cover.prefix.tolist(), cover.group.tolist()
        ([[0]], [[1, 1, 1]], [-1, 0, 1])

    Source: ours; arXiv 2606.09951 for dense masks as orders.
    """

    chains: tuple[np.ndarray, ...]
    prefix: np.ndarray
    group: np.ndarray

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Rows of the mask, numpy bool (rows, N)."""
        own = self.group[numbers][:, None]
        found = (own == self.group) & (own >= 0)
        for chain, prefix in zip(self.chains, self.prefix, strict=True):
            found[:, chain] = np.arange(len(chain)) < prefix[numbers][:, None]
        return found

    def dense(self) -> torch.Tensor:
        """The mask, torch.bool (N, N)."""
        return torch.from_numpy(self.rows(np.arange(len(self.group))))


def covered_by(cover: Callable[..., ChainCover | None]) -> Callable[[Form], Form]:
    """Decorator of a closed form that knows its chains: ``cover(N, *options, *tables)``, its arguments after N those
    that the form has besides ``q`` and ``kv``; None where it does not know. Without one, chains are found in the mask.
    """

    def enter(form: Form) -> Form:
        form.chain_cover = cover
        return form

    return enter


def chain_cover(order: Poset | MaskSpec) -> ChainCover:
    """Return the chains that cover what is seen in an order, as few as possible, and how far each position sees.

    A closed form that knows its chains (:func:`covered_by`) is asked, and probed; else the mask is read: an eighth of a
    byte a pair, and the time of :meth:`.Poset.from_mask`.

    Raises:
        AttnExtError: a mask that is not dense; the message names a position and what reaches it but is not attended.

    Source: ours; the fewest chains by :mod:`.chains`.
    """
    if isinstance(order, Poset):
        return _of_poset(order)
    known = _told(order)
    if known is not None:
        return known
    bits = order.bits()
    poset = Poset.from_mask(bits)
    pair = _missing(bits, poset)
    if pair is not None:
        raise AttnExtError(_not_dense(order, *pair))
    return _of_poset(poset)


def _told(spec: MaskSpec) -> ChainCover | None:
    """What the closed form says of its chains, where it does and some of its rows agree."""
    form, options = spec.form, ()
    if isinstance(form, functools.partial) and not form.keywords:
        form, options = form.func, form.args
    tell = getattr(form, "chain_cover", None)
    cover = None if tell is None else tell(len(spec), *options, *spec.tables)
    if cover is None:
        return None
    probes = np.unique(np.linspace(0, len(spec) - 1, _PROBES).astype(np.int64))
    seen = spec.form(torch.from_numpy(probes)[:, None], torch.arange(len(spec))[None], *spec.tables)
    return cover if np.array_equal(seen.expand(len(probes), -1).numpy(), cover.rows(probes)) else None


def _missing(bits: BitMatrix, poset: Poset) -> tuple[int, int] | None:
    """The first position, and the first that reaches it but is not attended; None where the mask is dense."""
    down, class_of = poset.down_rows(), poset.class_of
    for start in range(0, bits.columns, _BLOCK):
        numbers = class_of[start : start + _BLOCK]
        missing = np.take(down.dense(numbers), class_of, axis=1) & ~bits.dense(slice(start, start + _BLOCK))
        if missing.any():
            row, column = np.argwhere(missing)[0].tolist()
            return start + row, column
    return None


def _not_dense(spec: MaskSpec, position: int, lower: int) -> str:
    upper, other = f"position {position} ({spec.names[position]})", f"{lower} ({spec.names[lower]})"
    what = "itself" if lower == position else f"position {other}, which reaches it through further layers"
    return (
        f"{spec.title} is not dense: {upper} does not attend to {what}; linear attention takes dense masks: use "
        "densify(), or softmax attention"
    )


def _of_poset(poset: Poset) -> ChainCover:
    down, sizes = poset.down_rows(), np.array([len(positions) for positions in poset.classes], np.int32)
    seen = poset.below_others()
    among = down.united_rows(seen).transposed().united_rows(seen).transposed()
    chains = [seen[chain] for chain in chains_and_antichain(among.integers())[0]] if len(seen) else []
    classes = np.concatenate([np.empty(0, np.int64), *chains]).astype(np.int64)
    starts = np.cumsum([0] + [len(chain) for chain in chains])[: len(chains)]
    class_of = poset.class_of
    prefix = np.zeros((len(chains), len(class_of)), np.int32)
    for start in range(0, len(class_of) if chains else 0, _BLOCK):
        some = slice(start, start + _BLOCK)
        block = down.dense(class_of[some])[:, classes] * sizes[classes]
        prefix[:, some] = np.add.reduceat(block, starts, axis=1).T
    alone = np.setdiff1d(np.arange(len(poset)), seen)
    number = np.full(len(poset), -1)
    number[alone] = np.arange(len(alone))
    members = tuple(np.concatenate([poset.classes[a] for a in chain]).astype(np.int64) for chain in chains)
    return ChainCover(members, prefix, number[class_of])
