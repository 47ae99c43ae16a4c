"""The registry of kernels: it maps names to feature maps, and builds them.

Add a kernel of your own, in one file:

    import torch
    from torch import nn
    from hf_attn_ext.attention import FeatureMap, Features, register_kernel

    @register_kernel("squared_relu")
    class SquaredReLU(FeatureMap):
        signed = False                                  # its features are never negative

        def __init__(self, num_heads, head_dim, num_features, seed=0):
            super().__init__(num_heads, head_dim, num_features, feature_dim=num_features)
            generator = torch.Generator().manual_seed(seed)
            self.weight = nn.Parameter(torch.randn(num_heads, num_features, head_dim, generator=generator))

        def forward(self, x, side):                     # (B, H, N, d), "query" or "key"
            weight = self.weight.to(x.dtype)            # x is float32 also in a half precision model
            return Features(None, torch.relu(x @ weight.mT) ** 2)

After that ``hax.AttnExtConfig(kernel="squared_relu")`` works in conversion, distillation and saving. Import the file
before you open a folder that was saved with the kernel. On the command line, ``hf-attn-ext --import my_kernel COMMAND``
imports it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from hf_attn_ext.errors import AttnExtError, suggest

if TYPE_CHECKING:
    from .feature_map import FeatureMap

_KERNELS: dict[str, type[FeatureMap]] = {}
_FIXED = ("num_heads", "head_dim", "num_features", "seed")
_MOST_FEATURES = 2**16  # more than any use needs; a typing error must not fill the memory
_OPTION_TYPES = {
    "float": "a finite number",
    "float | None": "a finite number or None",
    "bool": "true or false",
    "int": "a whole number",
}


def register_kernel(name: str) -> Callable[[type[FeatureMap]], type[FeatureMap]]:
    """Return a class decorator that registers a :class:`FeatureMap` as ``name``.

    Raises:
        AttnExtError: another class is registered under this name.
    """

    def enter(cls: type[FeatureMap]) -> type[FeatureMap]:
        known = _KERNELS.get(name)
        if known is not None and known.__qualname__ != cls.__qualname__:
            raise AttnExtError(f"kernel {name!r} is already registered by {known.__module__}: choose another name")
        cls.kernel = name
        _KERNELS[name] = cls
        return cls

    return enter


def list_kernels() -> list[str]:
    """Return the names of all registered kernels, sorted; ``uniform`` is the control without attention."""
    return sorted(_KERNELS)


def kernel_class(kernel: str) -> type[FeatureMap]:
    """Return the class that is registered as ``kernel``.

    Raises:
        AttnExtError: an unknown kernel; the nearest name is suggested.
    """
    if not isinstance(kernel, str) or kernel not in _KERNELS:
        known = ", ".join(sorted(_KERNELS))
        own = "a kernel of your own needs its file imported first (--import MODULE on the command line)"
        raise AttnExtError(f"unknown kernel {kernel!r}.{suggest(kernel, _KERNELS)} Known kernels: {known}; {own}")
    return _KERNELS[kernel]


def check_kernel(kernel: str, num_features: int, options: Mapping[str, Any]) -> type[FeatureMap]:
    """Return the class of ``kernel`` after checking its name, ``num_features`` and the options.

    Raises:
        AttnExtError: the kernel or an option is unknown (the nearest is suggested), an option has the wrong type, or
            ``num_features`` is not a whole number from 1 to 65536.
    """
    cls = kernel_class(kernel)
    if isinstance(num_features, bool) or not isinstance(num_features, int) or num_features < 1:
        raise AttnExtError(f"num_features must be a whole number of at least 1, got {num_features!r}")
    if num_features > _MOST_FEATURES:
        raise AttnExtError(f"num_features must be at most {_MOST_FEATURES}, got {num_features!r}")
    if not isinstance(options, Mapping):
        raise AttnExtError(f"kernel options must be a mapping of names to values, got {options!r}")
    parameters = inspect.signature(cls.__init__).parameters
    allowed = [name for name in parameters if name not in ("self", *_FIXED)]
    for name, value in options.items():
        if name not in allowed:
            listed = ", ".join(allowed) or "none"
            raise AttnExtError(
                f"kernel {kernel!r} has no option {name!r}.{suggest(name, allowed)} Its options: {listed}"
            )
        wanted = _annotation(parameters[name])
        if not _fits(value, wanted):
            raise AttnExtError(f"kernel {kernel!r}: option {name!r} must be {_OPTION_TYPES[wanted]}, got {value!r}")
    return cls


def stated_options(kernel: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``options``, completed with the defaults of all options in the kernel's ``FeatureMap.stated_options``."""
    cls = _KERNELS[kernel]
    parameters = inspect.signature(cls.__init__).parameters
    return {**{name: parameters[name].default for name in cls.stated_options}, **options}


def from_saved(kernel: Any, options: Any) -> tuple[Any, Any]:
    """Return today's name and options of a saved kernel; unknown or ill-typed ones do not change."""
    cls = _KERNELS.get(kernel) if isinstance(kernel, str) else None
    return (kernel, options) if cls is None or not isinstance(options, Mapping) else cls.from_saved(options)


def make_feature_map(
    kernel: str, num_heads: int, head_dim: int, num_features: int, seed: int = 0, **options: Any
) -> FeatureMap:
    """Build the feature map of one layer.

    Args:
        kernel: a name from :func:`list_kernels`.
        num_heads: attention heads of the layer; each has its own parameters.
        head_dim: width ``d`` of a head's queries and keys.
        num_features: number ``n`` of frequencies or projections; the class states its ``feature_dim``.
        seed: determines all initial values, independently of the global generator.
        **options: options of the kernel's class.

    Returns:
        A :class:`FeatureMap` in float32.

    Raises:
        AttnExtError: the kernel or an option is unknown, an option has the wrong type, a size is below 1, or the seed
            is not a whole number from 0.

    Example:
        >>> make_feature_map("flexformer_p", num_heads=12, head_dim=64, num_features=64).feature_dim
        128
    """
    cls = check_kernel(kernel, num_features, options)
    for name, value in (("num_heads", num_heads), ("head_dim", head_dim)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise AttnExtError(f"{name} must be a whole number of at least 1, got {value!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise AttnExtError(f"seed must be a whole number from 0, below 2**63, got {seed!r}")
    parameters = inspect.signature(cls.__init__).parameters
    for name, value in options.items():
        if isinstance(value, int) and _annotation(parameters[name]).startswith("float"):
            options[name] = float(value)  # an integer would make integer parameters
    build: Callable[..., FeatureMap] = cls
    return build(num_heads, head_dim, num_features, seed=seed, **options)


def _annotation(parameter: inspect.Parameter) -> str:
    """The type in a kernel's signature as text, whether annotations are evaluated or not."""
    stated = parameter.annotation
    return stated.__name__ if isinstance(stated, type) else str(stated)


def _fits(value: Any, wanted: str) -> bool:
    if wanted == "bool":
        return isinstance(value, bool)
    if wanted not in _OPTION_TYPES or (value is None and wanted.endswith("None")):
        return True
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (wanted != "int" and isinstance(value, float) and math.isfinite(value))
