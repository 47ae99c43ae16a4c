"""Feature maps that are prepared once for a series of calls, as in decoding. Source: ours."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from hf_attn_ext.attention.feature_map import FeatureMap, SoftmaxFeatures
from hf_attn_ext.attention.normaliser import Stabilised

from .inputs import is_hooked, mapper, transformed

Mapper = Callable[..., Stabilised]
Signature = tuple[list[Any], list[Any]]  # objects, compared by identity, and values, compared by equality


class BoundMaps:
    """A cache of both sides of a feature map, prepared by ``FeatureMap.bind``, for a series of calls.

    Multiplying a map's matrices costs more than the attention of one token. Without gradients the results are kept.
    They are computed again when the map, one of its parameters (another tensor, or one written to in place), the dtype
    or the scaling changes. Keep an object for calls that belong together, such as one generation: writes that torch
    does not count (``parameter.data.add_``) between two calls are not noticed.

    Example:
        >>> maps = BoundMaps()
        >>> with torch.no_grad():
        ...     query_map, key_map = maps.of(feature_map, torch.float32, None)  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._signature: Signature | None = None
        self._kept: dict[Any, Any] = {}

    def of(self, feature_map: FeatureMap, dtype: torch.dtype, scaling: float | None) -> tuple[Mapper, Mapper]:
        """Return :func:`mapper` of both sides, from the cache if nothing changed."""
        make = partial(mapper, feature_map, dtype=dtype, scaling=scaling)
        both: tuple[Mapper, Mapper] = self._keep(scaling, lambda: (make("query"), make("key")), feature_map, dtype)
        return both

    def softmax_features(self, feature_map: FeatureMap, dtype: torch.dtype) -> SoftmaxFeatures | None:
        """Return ``feature_map.softmax_features(dtype)``, from the cache if nothing changed."""
        features: SoftmaxFeatures | None = self._keep(
            "softmax", lambda: feature_map.softmax_features(dtype), feature_map, dtype
        )
        return features

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

    def __reduce__(self) -> tuple[Any, ...]:
        return BoundMaps, ()  # a copy starts empty: the contents belong to the map that they were made from


def _sign(feature_map: FeatureMap, dtype: torch.dtype) -> Signature | None:
    """Return the values that bound maps depend on, including the tensors themselves.

    None if torch does not count writes to them, or if they have no memory to identify them by.
    """
    tensors = [*feature_map.parameters(), *feature_map.buffers()]
    if transformed() or any(x.is_inference() for x in tensors):
        return None
    return [feature_map, *tensors], [dtype, *((x.data_ptr(), x._version) for x in tensors)]


def _same(now: Signature, before: Signature | None) -> bool:
    if before is None or now[1] != before[1] or len(now[0]) != len(before[0]):
        return False
    return all(x is y for x, y in zip(now[0], before[0], strict=True))
