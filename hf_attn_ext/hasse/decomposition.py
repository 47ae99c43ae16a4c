"""Chain decomposition of an order, and the prefix of each chain that every position sees.

A chain decomposition is a set of chains that hold every class once (Dilworth's theorem; Davey & Priestley; Sage's
``dilworth_decomposition``). Here, classes that no other class sees are left out of the chains. The intersection of a
down-set with a chain is a prefix of the chain, so the chains and one number per position and chain describe the whole
mask: ``N w`` numbers for ``w`` chains. Linear attention over an order is computed from them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse.order.bits import BitMatrix
from hf_attn_ext.hasse.order.chains import chains_and_antichain
from hf_attn_ext.hasse.order.poset import Poset

from .spec import Form, MaskSpec

_BLOCK = 512  # rows that are computed together
_PROBES = 24  # rows of a closed form that are compared with the chains that it declares


class ChainDecomposition(NamedTuple):
    """A dense mask over ``N`` positions as chains and prefixes.

    Attributes:
        chains: int64 positions of each chain in ascending order; positions of the same class are adjacent.
        prefix: int32 (chains, N): position i sees the first ``prefix[c, i]`` positions of chain c.
        group: int64 (N,): -1 for a position whose class is in a chain; otherwise the number of its class, which is
            seen only by its own positions.

    Example:
        >>> cover = chain_decomposition(Poset.from_mask([[1, 0, 0], [1, 1, 0], [1, 0, 1]]))
        >>> [chain.tolist() for chain in cover.chains], cover.prefix.tolist(), cover.group.tolist()
        ([[0]], [[1, 1, 1]], [-1, 0, 1])

    Source: ours; arXiv 2606.09951 for dense masks as orders.
    """

    chains: tuple[np.ndarray, ...]
    prefix: np.ndarray
    group: np.ndarray

    def rows(self, numbers: np.ndarray) -> np.ndarray:
        """Return rows of the mask, numpy bool (rows, N)."""
        group = self.group[numbers][:, None]
        rows: np.ndarray = (group == self.group) & (group >= 0)
        for chain, prefix in zip(self.chains, self.prefix, strict=True):
            rows[:, chain] = np.arange(len(chain)) < prefix[numbers][:, None]
        return rows

    def dense(self) -> torch.Tensor:
        """Return the mask, torch.bool (N, N)."""
        return torch.from_numpy(self.rows(np.arange(len(self.group))))


def decomposed_by(decompose: Callable[..., ChainDecomposition | None]) -> Callable[[Form], Form]:
    """Decorator of a closed form that declares its chains; without it, they are computed from the mask.

    Args:
        decompose: ``decompose(N, *options, *tables)`` with the arguments that the form has next to ``q`` and ``kv``;
            returns None where the chains are unknown.
    """

    def declare(form: Form) -> Form:
        form.decompose = decompose  # type: ignore[attr-defined]  # functions have attributes
        return form

    return declare


def chain_decomposition(order: Poset | MaskSpec) -> ChainDecomposition:
    """Return the chain decomposition of what is seen in an order, with the fewest chains.

    The chains that a closed form declares (:func:`decomposed_by`) are used if some rows agree with them. Otherwise the
    mask is read, in an eighth of a byte per pair and the time of :meth:`.Poset.from_mask`.

    Args:
        order: a poset, or a dense mask.

    Raises:
        AttnExtError: a mask that is not dense; the message names a position and what reaches it but is not attended.

    Source: ours; the fewest chains by :mod:`.chains`.
    """
    if isinstance(order, Poset):
        return _of_poset(order)
    declared = _declared(order)
    if declared is not None:
        return declared
    bits = order.bits()
    poset = Poset.from_mask(bits)
    pair = _missing(bits, poset)
    if pair is not None:
        raise AttnExtError(_not_dense(order, *pair))
    return _of_poset(poset)


def _declared(spec: MaskSpec) -> ChainDecomposition | None:
    """The chains that the closed form declares, if some of its rows agree with them."""
    form: Any = spec.form
    options: tuple[Any, ...] = ()
    if isinstance(form, functools.partial) and not form.keywords:
        form, options = form.func, form.args
    decompose = getattr(form, "decompose", None)
    chains: ChainDecomposition | None = None if decompose is None else decompose(len(spec), *options, *spec.tables)
    if chains is None:
        return None
    probes = np.unique(np.linspace(0, len(spec) - 1, _PROBES).astype(np.int64))
    seen = spec.form(torch.from_numpy(probes)[:, None], torch.arange(len(spec))[None], *spec.tables)
    return chains if np.array_equal(seen.expand(len(probes), -1).numpy(), chains.rows(probes)) else None


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


def _of_poset(poset: Poset) -> ChainDecomposition:
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
    return ChainDecomposition(members, prefix, number[class_of])
