"""Feature maps bound once for a row of calls: while a model decodes, nothing but the token changes. Source: ours."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from hf_attn_ext.attention.feature_map import FeatureMap, SoftmaxFeatures
from hf_attn_ext.attention.normaliser import Stabilised

from .inputs import is_hooked, mapper, transformed

Mapper = Callable[..., Stabilised]


class BoundMaps:
    """The query and key side of a feature map, bound (``FeatureMap.bind``) for one call after another.

    Folding a map's matrices costs more than one token's attention. Where no gradient is wanted they are kept, and bound
    again as soon as the map, a parameter of it (another tensor, or one written to in place), the dtype or the scaling
    is another one. Keep an object as long as the calls belong together, a generation, say: what is written past
    torch's counter of writes (``parameter.data.add_``) between two calls is not seen.

    Example:
        >>> maps = BoundMaps()
        >>> with torch.no_grad():
        ...     query_map, key_map = maps.of(feature_map, torch.float32, None)  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._signature: tuple | None = None
        self._kept: dict[Any, Any] = {}

    def of(self, feature_map: FeatureMap, dtype: torch.dtype, scaling: float | None) -> tuple[Mapper, Mapper]:
        """Return :func:`mapper` of both sides, kept ones where they still hold."""
        sides = ("query", "key")
        make = partial(mapper, feature_map, dtype=dtype, scaling=scaling)
        return self._keep(scaling, lambda: tuple(make(side) for side in sides), feature_map, dtype)

    def softmax_features(self, feature_map: FeatureMap, dtype: torch.dtype) -> SoftmaxFeatures | None:
        """Return ``feature_map.softmax_features(dtype)``, a kept one where it still holds."""
        return self._keep("softmax", lambda: feature_map.softmax_features(dtype), feature_map, dtype)

    def _keep(self, what: Any, make: Callable[[], Any], feature_map: FeatureMap, dtype: torch.dtype) -> Any:
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or is_hooked(feature_map):
            return make()
        signature = _sign(feature_map, dtype)
        if signature is None:
            return make()
        if not _same(signature, self._signature):
            self._signature, self._kept = signature, {}
        if what not in self._kept:
            self._kept[what] = make()
        return self._kept[what]

    def __reduce__(self) -> tuple:
        return BoundMaps, ()  # a copy starts anew: what is kept belongs to the map it was made from


def _sign(feature_map: FeatureMap, dtype: torch.dtype) -> tuple | None:
    """What bound maps depend on, the tensors themselves among it; None where writes are not counted, or tensors have no
    memory to tell them by.
    """
    tensors = [*feature_map.parameters(), *feature_map.buffers()]
    if transformed() or any(x.is_inference() for x in tensors):
        return None
    return [feature_map, *tensors], [dtype, *((x.data_ptr(), x._version) for x in tensors)]


def _same(one: tuple, other: tuple | None) -> bool:
    if other is None or one[1] != other[1] or len(one[0]) != len(other[0]):
        return False
    return all(x is y for x, y in zip(one[0], other[0], strict=True))
