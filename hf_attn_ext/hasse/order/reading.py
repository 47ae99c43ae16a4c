"""Read masks of any kind as bit rows, and lists and whole numbers of any library."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hf_attn_ext.errors import AttnExtError, short

from .bits import BitMatrix


def is_whole(value: Any) -> bool:
    """Return whether a value is a whole number of any library; a bool is not.

    Example:
        >>> is_whole(3), is_whole(np.int64(3)), is_whole(True), is_whole(3.0)
        (True, True, False, False)
    """
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def read_list(values: Any, what: str) -> list[Any]:
    """Return the values of an iterable as a list.

    Raises:
        AttnExtError: a value that is not iterable; the message begins with ``what``.
    """
    try:
        return list(values)
    except TypeError:
        raise AttnExtError(f"{what} must be a list, got {short(values)}") from None


def read_mask(mask: Any, name: str = "mask") -> BitMatrix:
    """Return a square Boolean mask's bit rows.

    Args:
        mask: (N, N), True = may attend. torch or numpy, bool, or whole or floating numbers that are all 0 or 1; nested
            lists of these; a :class:`.BitMatrix`; or an object whose ``bits()`` or ``dense()`` returns one of these.
        name: its name in messages.

    Raises:
        AttnExtError: not square, empty, NaN, a value that is neither 0 nor 1, or a tensor without values (meta).

    Example:
        >>> read_mask([[1, 0], [1, 1]]).integers()
        [1, 3]
    """
    if not isinstance(mask, BitMatrix | np.ndarray | torch.Tensor):
        for method in ("bits", "dense"):
            if callable(getattr(mask, method, None)):
                mask = getattr(mask, method)()
                break
    if isinstance(mask, BitMatrix):
        _check_shape(mask.shape, name)
        return mask
    return BitMatrix.from_dense(_read_dense(mask, name))


def read_masks(masks: Sequence[Any], name: str = "masks") -> list[BitMatrix]:
    """Return the bit rows of masks, one per layer, all of one size.

    Raises:
        AttnExtError: an empty list, a bad mask, or masks of different sizes; the message names the layer.
    """
    if not masks:
        raise AttnExtError(f"{name} must hold at least one mask, got an empty list")
    layers = [read_mask(mask, f"{name}[{layer}]") for layer, mask in enumerate(masks)]
    for layer, bits in enumerate(layers):
        if bits.shape != layers[0].shape:
            raise AttnExtError(f"{name} must have one size, got {layers[0].shape} at 0 and {bits.shape} at {layer}")
    return layers


def is_layers(masks: Any) -> bool:
    """Return whether a value is a list of masks, rather than one mask written as a list of rows."""
    if not isinstance(masks, list | tuple):
        return False
    if not masks:
        return True
    first = masks[0]
    if isinstance(first, list | tuple):
        return bool(first) and isinstance(first[0], list | tuple)
    return getattr(first, "ndim", 2) == 2


def _read_dense(mask: Any, name: str) -> np.ndarray:
    array = _as_array(mask, name)
    _check_shape(array.shape, name)
    if array.dtype == np.bool_:
        return array
    if array.dtype.kind not in "iuf":
        raise AttnExtError(f"{name} must be Boolean-like (bool, or numbers 0 and 1), got dtype {array.dtype}")
    truth: np.ndarray = array == 1
    wrong = ~truth & (array != 0)
    if wrong.any():
        row, column = (int(index) for index in np.argwhere(wrong)[0])
        value = array[row, column].item()
        if value != value:
            raise AttnExtError(f"{name} holds NaN at ({row}, {column}); give True or False, or 1 or 0")
        hint = "; of an additive mask give `mask == 0`" if value < 0 else ""
        raise AttnExtError(f"{name} must be Boolean-like, only 0 and 1, got {value} at ({row}, {column}){hint}")
    return truth


def _as_array(mask: Any, name: str) -> np.ndarray:
    if isinstance(mask, torch.Tensor):
        return _of_tensor(mask, name)
    if np.ma.is_masked(mask):
        raise AttnExtError(f"{name} is a masked array with entries left out; fill them, as with .filled(0)")
    try:
        return np.asarray(mask)
    except ValueError:
        raise AttnExtError(f"{name} must be a square matrix, got rows of different lengths") from None
    except (TypeError, RuntimeError, RecursionError) as error:  # tensors in lists, lists in themselves
        raise AttnExtError(f"{name} cannot be read as a matrix: {short(error)}") from None


def _of_tensor(mask: torch.Tensor, name: str) -> np.ndarray:
    kind = f"{mask.dtype} {tuple(mask.shape)} on {mask.device}"
    if mask.is_meta:
        raise AttnExtError(f"{name} is a meta tensor, which holds no values ({kind}); give one that does")
    try:
        mask = mask.detach().cpu()
        mask = mask if mask.layout == torch.strided else mask.to_dense()
        known = mask.dtype in (torch.float16, torch.float32, torch.float64) or not mask.is_floating_point()
        return (mask if known else mask.float()).numpy()
    except (TypeError, RuntimeError):  # NotImplementedError, a RuntimeError, for layouts and types of few operations
        raise AttnExtError(f"{name} must be Boolean-like (bool, or numbers 0 and 1), got {kind}") from None


def _check_shape(shape: tuple[int, ...], name: str) -> None:
    if 0 in shape:
        raise AttnExtError(f"{name} is empty, shape {tuple(shape)}; it needs at least one position")
    if len(shape) != 2 or shape[0] != shape[1]:
        raise AttnExtError(f"{name} must be square, (positions, positions), got shape {tuple(shape)}")
