"""Feature maps on first use, for a model opened with ``attn_implementation="flexformer"`` without ``convert``.

The attention function is called with one attention module at a time, so the feature maps are attached module by module
in the first forward pass, with the seeds that :func:`hf_attn_ext.convert` uses. One warning says that they are
untrained, and that an optimizer made before does not hold them. Reading the state dict raises an error, because a saved
folder would open as softmax again. ``convert(model)`` keeps the feature maps; ``revert(model)`` removes them.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from hf_attn_ext.attention import FeatureMap
from hf_attn_ext.config import AttnExtConfig
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.families import layer_number

from .layers import ATTRIBUTE, build_feature_map

ADOPTABLE = "_attn_ext_first_use"

# Per configuration, how many modules of its model have a feature map so far; for families without layer_idx.
_BEGUN: dict[int, int] = {}


def is_stock(module: nn.Module) -> bool:
    """Return whether a module belongs to a model that is not converted, by its configuration."""
    return getattr(getattr(module, "config", None), "attn_ext", None) is None


@torch.compiler.disable
def attach_on_first_use(module: nn.Module, query: Tensor) -> FeatureMap:
    """Attach a default feature map for queries (B, H, N, d) to an attention module; warn once per model."""
    settings = AttnExtConfig()
    number = _count(module)
    layer_idx = layer_number(module)
    layer_idx = number if layer_idx is None else layer_idx
    if number == 0:
        warnings.warn(
            f"attn_implementation='flexformer' on a model that is not converted: untrained {settings.kernel} feature "
            f"maps ({settings.num_features} features, seed {settings.seed}) are attached on first use. The outputs "
            "mean little until the feature maps are distilled, and an optimizer made before does not hold them: call "
            "hf_attn_ext.convert(model) before training or saving (it keeps these feature maps).",
            stacklevel=2,
        )
    like = next((p for p in module.parameters() if p.is_floating_point()), query)
    feature_map = build_feature_map(settings, layer_idx, query.shape[1], query.shape[3], like=like)
    feature_map.train(module.training)
    setattr(feature_map, ADOPTABLE, settings.to_dict())
    feature_map.register_state_dict_pre_hook(_refuse_state)
    module.add_module(ATTRIBUTE, feature_map)
    return feature_map


def attached_on_first_use(model: nn.Module) -> dict[str, Any] | None:
    """Return the settings of the feature maps that were attached on first use, or None."""
    for module in model.modules():
        if isinstance(module, FeatureMap) and hasattr(module, ADOPTABLE):
            return getattr(module, ADOPTABLE)
    return None


def adopt(feature_map: FeatureMap) -> None:
    """Make a feature map that was attached on first use an ordinary one, whose state may be read."""
    feature_map.__dict__.pop(ADOPTABLE, None)
    feature_map._state_dict_pre_hooks.clear()


def _count(module: nn.Module) -> int:
    config = getattr(module, "config", module)
    number = _BEGUN.get(id(config))
    if number is None:
        number = 0
        weakref.finalize(config, _BEGUN.pop, id(config), None)
    _BEGUN[id(config)] = number + 1
    return number


def _refuse_state(feature_map: nn.Module, prefix: str, keep_vars: bool) -> None:
    raise AttnExtError(
        f"{prefix.rstrip('.') or 'this feature map'} was attached on first use, and the saved model would open with "
        "softmax. Call hf_attn_ext.convert(model) first (it keeps the feature maps), or "
        "hf_attn_ext.revert(model) to remove them"
    )
