"""``AttnExtConfig``: the kernel, its width and the layers of a conversion."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from hf_attn_ext._util.settings import from_mapping
from hf_attn_ext.attention.registry import check_kernel, from_saved, stated_options

from .errors import AttnExtError


@dataclasses.dataclass
class AttnExtConfig:
    """The settings of :func:`hf_attn_ext.convert`, stored in a converted model as ``model.config.attn_ext``.

    Attributes:
        kernel: a name from :func:`hf_attn_ext.list_kernels`.
        num_features: the kernel's number of frequencies or projections ``n`` (not its ``feature_dim``, which is
            ``2n`` for flexformer_s, _n, _p, _c and hedgehog and ``n(2n+1)`` for flexformer_sq).
        layers: the layers to convert, counted from 0; None converts all. The others keep softmax.
        seed: determines the initial values of the feature maps, together with the layer's index.
        kernel_options: options of the kernel's class, such as ``{"affine": False}``.

    Raises:
        AttnExtError: the kernel or an option is unknown, an option has the wrong type, ``num_features`` is not from 1
            to 65536, layers are negative or repeated, or the seed is out of range.

    Example:
        >>> AttnExtConfig(kernel="hedgehog", num_features=32, layers=[0, 2])
        AttnExtConfig(kernel='hedgehog', num_features=32, layers=[0, 2], seed=0, kernel_options={})
    """

    kernel: str = "flexformer_p"
    num_features: int = 64
    layers: list[int] | None = None
    seed: int = 0
    kernel_options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_kernel(self.kernel, self.num_features, self.kernel_options)
        self.kernel_options = stated_options(self.kernel, self.kernel_options)
        if self.layers is not None:
            if isinstance(self.layers, str) or not isinstance(self.layers, Iterable):
                raise AttnExtError(f"layers must be a list of whole numbers, or None for all, got {self.layers!r}")
            self.layers = list(self.layers)
            if not self.layers:
                raise AttnExtError("layers is empty: name at least one layer, or None for all")
            for layer in self.layers:
                if isinstance(layer, bool) or not isinstance(layer, int) or layer < 0:
                    raise AttnExtError(f"layers must be whole numbers from 0, got {layer!r}")
            if len(set(self.layers)) < len(self.layers):
                raise AttnExtError(f"layers names a layer twice: {self.layers}")
            self.layers = sorted(self.layers)
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**32:
            raise AttnExtError(f"seed must be a whole number from 0, below 2**32, got {self.seed!r}")

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready dictionary, the form stored in ``config.json``."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any], where: str = "attn_ext config") -> AttnExtConfig:
        """Build a configuration from a saved dictionary; a kernel's former name becomes the new one, with a warning.

        Raises:
            AttnExtError: a field is unknown or has the wrong type; the message names it.
        """
        return from_mapping(cls, cls.from_saved(mapping, where), where)

    @classmethod
    def from_saved(cls, mapping: Any, where: str | None = None) -> Any:
        """Return a saved mapping of fields with today's names; a warning names a new one, unless ``where`` is None."""
        if not isinstance(mapping, Mapping) or "kernel" not in mapping:
            return mapping
        before = mapping["kernel"], mapping.get("kernel_options", {})
        kernel, options = from_saved(*before)
        if (kernel, options) == before:
            return mapping
        if where is not None:
            warnings.warn(
                f"{where}: this kernel is called {kernel} now, no longer {before[0]}; save it anew to store the name",
                stacklevel=3,
            )
        return {**mapping, "kernel": kernel, "kernel_options": options}
