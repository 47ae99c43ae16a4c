"""The masks of a model, as ``set_mask`` stores them in its configuration.

``config.attn_ext_mask``, as ``config.json`` holds it:

    {"backend": "sdpa", "masks": [{"name": "butterfly", "options": {}}], "layers": [0, 0, null, [0, 1]]}

``layers`` has one entry per layer: the number of a mask, a list with one number per head, or null where the model keeps
its own pattern. A mask without the option ``n`` is made for the length of each call; a mask with it, or one stored as
``bits``, has one length.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse.registry import mask_entry

from .entries import FIELD
from .recipe import LayerMask, Recipe, heads_of

BACKENDS = ("sdpa", "eager", "flex")

# The latest values of config.attn_ext_mask, copied, and the settings that they stand for. A configuration is found by
# its value: copies of one share their settings, and an edited one is read again.
_LATEST: tuple[tuple[dict[str, Any], MaskSettings], ...] = ()
_MOST = 16


@dataclasses.dataclass(frozen=True)
class MaskSettings:
    """All masks of a model.

    Attributes:
        backend: one of :data:`BACKENDS`.
        layers: the mask of each layer, a tuple with one per head, or None where the model keeps its own pattern.
    """

    backend: str
    layers: tuple[LayerMask | None, ...]

    @classmethod
    def of(cls, config: Any) -> MaskSettings | None:
        """Return the settings that a configuration holds, or None."""
        stored = getattr(config, FIELD, None)
        return None if stored is None else _settings(stored)

    def store(self, config: Any) -> None:
        """Write the settings into a configuration, in the form that ``config.json`` holds."""
        masks = list(dict.fromkeys(self.recipes))

        def numbered(layer: LayerMask | None) -> Any:
            numbers = [masks.index(recipe) for recipe in heads_of(layer)]
            return numbers if isinstance(layer, tuple) else None if layer is None else numbers[0]

        stored = {
            "backend": self.backend,
            "masks": [mask.to_entry() for mask in masks],
            "layers": [numbered(layer) for layer in self.layers],
        }
        setattr(config, FIELD, stored)
        _remember(stored, self)

    @property
    def recipes(self) -> list[Recipe]:
        """Every mask that is in use, in the order of layers and heads."""
        return [recipe for layer in self.layers for recipe in heads_of(layer)]

    def of_layer(self, number: int) -> LayerMask | None:
        """Return the mask of a layer."""
        if number >= len(self.layers):
            raise AttnExtError(f"config.{FIELD} has masks for {len(self.layers)} layers, none for layer {number}")
        return self.layers[number]


@torch.compiler.disable
def _settings(stored: Any) -> MaskSettings:
    """The settings of a stored value, read once as long as the value stays the same."""
    for known, settings in _LATEST:
        if known == stored:
            return settings
    settings = _read(copy.deepcopy(stored))
    _remember(stored, settings)
    return settings


def _remember(stored: dict[str, Any], settings: MaskSettings) -> None:
    global _LATEST
    others = [pair for pair in _LATEST if pair[0] != stored]
    _LATEST = ((copy.deepcopy(stored), settings), *others[: _MOST - 1])


def _read(stored: Any) -> MaskSettings:
    try:
        backend, layers = stored["backend"], stored["layers"]
        masks = [Recipe.from_entry(entry) for entry in stored["masks"]]
        if backend not in BACKENDS:
            raise ValueError(f"backend {backend!r}")
        read = tuple(
            None if layer is None else tuple(masks[i] for i in layer) if isinstance(layer, list) else masks[layer]
            for layer in layers
        )
    except AttnExtError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise AttnExtError(
            f"config.{FIELD} is broken ({type(error).__name__}: {error}); set it anew with hf_attn_ext.set_mask"
        ) from None
    for mask in masks:
        if mask.name is not None:
            mask_entry(mask.name)
    return MaskSettings(backend, read)
