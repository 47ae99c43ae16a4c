"""Information flow of a mask: which output depends on which input after some layers, and when that converges."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from hf_attn_ext.errors import AttnExtError, short

from .bits import BitMatrix
from .closure import partial_order
from .poset import Poset, expanded
from .products import boolean_product
from .reading import is_layers, is_whole, read_mask, read_masks


def information_flow(mask: Any, num_layers: int | None = None) -> torch.Tensor:
    """Return which inputs each output has seen: torch.bool (N, N), [i, j] = output i sees input j.

    The residual lets every position see itself, so the result is reflexive: it is the Boolean power ``(mask | 1)**L``.

    Args:
        mask: (N, N), True = may attend: torch or numpy, bool or numbers that are all 0 or 1, nested lists of these, or
            a :class:`.BitMatrix`. Or a list of masks, one per layer.
        num_layers: L, at least 0; None gives the limit. Must be None for a list, whose length is L.

    Raises:
        AttnExtError: a mask that is not square, empty or not Boolean-like, masks of different sizes, a bad number.

    Example:
        >>> window = [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
        >>> information_flow(window, 1)[2].tolist(), information_flow(window)[2].tolist()
        ([False, True, True], [True, True, True])

    Source: arXiv 2606.09951; lists of masks are ours.
    """
    if is_layers(mask):
        if num_layers is not None:
            raise AttnExtError(f"num_layers must be None for a list of {len(mask)} masks, got {short(num_layers)}")
        return _tensor(_product([bits.with_diagonal(True) for bits in read_masks(mask)])[-1])
    bits = read_mask(mask)
    limit = expanded(Poset(partial_order(bits)))
    if num_layers is None:
        return torch.from_numpy(limit)
    if not is_whole(num_layers) or num_layers < 0:
        raise AttnExtError(f"num_layers must be a whole number of at least 0, or None, got {short(num_layers)}")
    return _tensor(_power(bits.with_diagonal(True), int(num_layers), BitMatrix.from_dense(limit)))


def convergence_depth(mask: Any) -> int:
    """Return the number of layers after which no further information arrives: the longest shortest path.

    It is at most N - 1.

    Args:
        mask: as :func:`information_flow` takes it. For a list, the number of its first layers after which
            all has arrived that arrives after the whole list.

    Raises:
        AttnExtError: as :func:`information_flow` raises.

    Example:
        >>> convergence_depth([[1, 0, 0], [1, 1, 0], [0, 1, 1]]), convergence_depth([[1, 0], [0, 1]])
        (2, 0)

    Source: arXiv 2606.09951; lists of masks are ours.
    """
    if is_layers(mask):
        layers = [bits.with_diagonal(True) for bits in read_masks(mask)]
        products = [_identity(layers[0].columns), *_product(layers)]
        return next(depth for depth, seen in enumerate(products) if seen == products[-1])
    bits = read_mask(mask)
    layer, limit = bits.with_diagonal(True), BitMatrix.from_dense(expanded(Poset(partial_order(bits))))
    if limit == _identity(bits.columns):
        return 0
    powers = [layer]  # of 1, 2, 4 ... layers
    while powers[-1] != limit:
        powers.append(_after(powers[-1], powers[-1], limit))
    if len(powers) == 1:
        return 1
    powers.pop()  # the limit itself
    seen = powers.pop()
    depth: int = 2 ** len(powers)
    for exponent in reversed(range(len(powers))):
        more = _after(seen, powers[exponent], limit)
        if more != limit:
            seen, depth = more, depth + 2**exponent
    return depth + 1


def _power(layer: BitMatrix, exponent: int, limit: BitMatrix) -> BitMatrix:
    result, power = _identity(layer.columns), layer
    while exponent and result != limit:
        if exponent & 1:
            result = _after(result, power, limit)
        exponent >>= 1
        if exponent:
            power = _after(power, power, limit)
    return result


def _after(seen: BitMatrix, more: BitMatrix, limit: BitMatrix) -> BitMatrix:
    """The product of two powers of one mask; rows that have reached the limit are not computed again."""
    open_rows = np.flatnonzero((seen.words != limit.words).any(1))
    words = limit.words.copy()
    words[open_rows] = boolean_product(seen.united_rows(open_rows), more).words
    return BitMatrix(words, seen.columns)


def _product(layers: list[BitMatrix]) -> list[BitMatrix]:
    """The flow after each layer: an output sees all that the positions it attends to have seen before."""
    seen = [layers[0]]
    for layer in layers[1:]:
        seen.append(boolean_product(layer, seen[-1]))
    return seen


def _identity(count: int) -> BitMatrix:
    return BitMatrix(np.zeros((count, -(-count // 64)), np.uint64), count).with_diagonal(True)


def _tensor(bits: BitMatrix) -> torch.Tensor:
    return torch.from_numpy(bits.dense())
