"""Feature maps as submodules of a model: build, attach, find and detach them.

A converted self-attention module has ``.feature_map``; one that keeps softmax has the mark ``keeps_softmax``. A module
of a converted model with neither raises an error, so that nothing becomes softmax silently.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hf_attn_ext.attention import FeatureMap, make_feature_map
from hf_attn_ext.config import AttnExtConfig
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.families import (
    attention_modules,
    attention_shape,
    cross_attention_modules,
    layer_number,
    slides,
    supported_model_types,
)

ATTRIBUTE = "feature_map"
KEEPS_SOFTMAX = "keeps_softmax"


@dataclasses.dataclass(frozen=True)
class ConvertedLayer:
    """One attention layer that runs a linear kernel.

    Attributes:
        name: the attention module's dotted name in the model.
        layer_idx: the layer's number, from 0.
        module: the attention module.
        feature_map: the feature map in use; inside PEFT's wrapper, that of the active adapter.
    """

    name: str
    layer_idx: int
    module: nn.Module
    feature_map: FeatureMap


def feature_map_of(module: nn.Module) -> FeatureMap | None:
    """Return the feature map in use at an attention module, or None.

    PEFT's ``modules_to_save`` wraps the feature map and keeps one copy per adapter; this returns the active copy.
    """
    held: Any = module._modules.get(ATTRIBUTE)
    if held is None or isinstance(held, FeatureMap):
        return held
    copies = getattr(held, "modules_to_save", None)
    if isinstance(copies, nn.ModuleDict):
        active = [name for name in held.active_adapters if name in copies]
        in_use: Any = copies[active[0]] if active and not held.disable_adapters else held.original_module
        return in_use
    raise AttnExtError(f"{type(module).__name__}.{ATTRIBUTE} must be a FeatureMap, got {type(held).__name__}")


def converted_layers(model: nn.Module) -> list[ConvertedLayer]:
    """Return the layers of ``model`` that hold a feature map, in layer order; empty where none does.

    Example:
        >>> [layer.layer_idx for layer in hax.converted_layers(model)]  # doctest: +SKIP
        [0, 1, 2, 3, 4, 5]
    """
    layers = []
    for name, module in model.named_modules():
        feature_map = feature_map_of(module)
        if feature_map is not None:
            layers.append(ConvertedLayer(name, layer_number(module) or 0, module, feature_map))
    return sorted(layers, key=lambda layer: layer.layer_idx)


def freeze_all_but_feature_maps(model: nn.Module) -> list[nn.Parameter]:
    """Freeze ``model`` except for its feature maps.

    Returns:
        The parameters that stay trainable; none for kernels without any (``performer``, ``uniform``).

    Raises:
        AttnExtError: the model has no feature map.
    """
    layers = converted_layers(model)
    if not layers:
        raise AttnExtError(f"{type(model).__name__} has no feature maps; call hf_attn_ext.convert(model) first")
    model.requires_grad_(False)
    trainable = [parameter for layer in layers for parameter in layer.feature_map.parameters()]
    for parameter in trainable:
        parameter.requires_grad_(True)
    return trainable


def build_feature_map(config: AttnExtConfig, layer_idx: int, num_heads: int, head_dim: int, like: Tensor) -> FeatureMap:
    """Build the feature map of one layer on the device of ``like``, in float32 (float64 for a float64 model).

    Feature maps stay in float32 in half precision models: they are small, and their training needs the precision.
    Their values depend on the seed and the layer alone, not on the default dtype and device that Transformers sets
    while it builds a model, nor on the global generator.
    """
    # Outside inference mode: a feature map that is first built there must be trainable afterwards.
    with torch.inference_mode(False), torch.device("cpu"), _default_dtype(torch.float32):
        feature_map = make_feature_map(
            config.kernel,
            num_heads,
            head_dim,
            config.num_features,
            seed=config.seed * 100_003 + layer_idx,  # far apart, so that runs with neighbouring seeds share none
            **config.kernel_options,
        )
        return feature_map.to(device=like.device, dtype=torch.promote_types(like.dtype, torch.float32))


def plan_feature_maps(model: nn.Module, config: AttnExtConfig) -> list[tuple[nn.Module, int, FeatureMap | None]]:
    """Return ``(module, layer_idx, feature map)`` per layer, None for one that keeps softmax; change nothing."""
    modules = attention_modules(model)
    name = type(model).__name__
    if not modules:
        raise AttnExtError(
            f"{name} has no self-attention layer that can be swapped; supported: {', '.join(supported_model_types())}"
        )
    outside = [layer for layer in config.layers or () if layer >= len(modules)]
    if outside:
        raise AttnExtError(
            f"layer {outside[0]} is out of range: {name} has {len(modules)} attention layers, 0 to {len(modules) - 1}"
        )
    sliding = [i for i in range(len(modules)) if slides(model.config, i)]
    _check_sliding(name, sliding, len(modules), config)
    plan = []
    for layer_idx, (path, module) in enumerate(modules):
        chosen = layer_idx not in sliding if config.layers is None else layer_idx in config.layers
        plan.append((module, layer_idx, _build_for(module, path, layer_idx, config) if chosen else None))
    return plan


def _check_sliding(name: str, sliding: list[int], count: int, config: AttnExtConfig) -> None:
    """Refuse layers with a sliding window, which a linear kernel does not have; warn that the others keep softmax."""
    asked = [layer for layer in config.layers or () if layer in sliding]
    if asked:
        raise AttnExtError(
            f"layer {asked[0]} of {name} has a sliding window, which a linear kernel does not have; leave it out of "
            "layers"
        )
    if config.layers is None and sliding:
        if len(sliding) == count:
            raise AttnExtError(
                f"every layer of {name} has a sliding window, which a linear kernel does not have; set "
                "config.sliding_window to None first, if the model may see everything before a token"
            )
        warnings.warn(
            f"layers {', '.join(map(str, sliding))} of {name} have a sliding window and keep softmax; the others are "
            "converted",
            stacklevel=5,
        )


def _build_for(module: nn.Module, path: str, layer_idx: int, config: AttnExtConfig) -> FeatureMap:
    shape = attention_shape(module)
    weight = next((p for p in module.parameters() if p.is_floating_point()), None)
    if shape is None:
        raise AttnExtError(f"{path} ({type(module).__name__}) does not say its number of heads and their size")
    like = weight if weight is not None else torch.empty(0)
    return build_feature_map(config, layer_idx, *shape, like=like).train(module.training)


def attach(model: nn.Module, plan: list[tuple[nn.Module, int, FeatureMap | None]]) -> None:
    """Put the planned feature maps into the model and mark the modules that keep softmax."""
    for module, layer_idx, feature_map in plan:
        if layer_number(module) is None:
            numbered: Any = module  # nn.Module declares its attributes as tensors and modules
            numbered.layer_idx = layer_idx
            numbered._attn_ext_numbered = True
        if feature_map is None:
            setattr(module, KEEPS_SOFTMAX, True)
        else:
            module.add_module(ATTRIBUTE, feature_map)
    for module in cross_attention_modules(model):
        setattr(module, KEEPS_SOFTMAX, True)


@torch.no_grad()
def restore_unsaved_buffers(model: nn.Module, config: AttnExtConfig) -> None:
    """Recompute the non-persistent buffers of the feature maps.

    Transformers builds a model on the meta device and loads only the tensors of the checkpoint; these buffers are not
    among them.
    """
    for layer in converted_layers(model):
        unsaved = [
            (f"{path}.{name}" if path else name, module._buffers[name])
            for path, module in layer.feature_map.named_modules()
            for name in module._non_persistent_buffers_set
            if module._buffers[name] is not None
        ]
        if unsaved:
            shape = (layer.feature_map.num_heads, layer.feature_map.head_dim)
            fresh = build_feature_map(config, layer.layer_idx, *shape, like=torch.empty(0))
            for name, buffer in unsaved:
                buffer.copy_(fresh.get_buffer(name))


def detach(model: nn.Module) -> None:
    """Remove every feature map and mark from the model."""
    for module in model.modules():
        module._modules.pop(ATTRIBUTE, None)
        module.__dict__.pop(KEEPS_SOFTMAX, None)
        if module.__dict__.pop("_attn_ext_numbered", False):
            del module.layer_idx


def warn_untested(name: str) -> None:
    """Warn that a model outside the table of families was converted."""
    warnings.warn(
        f"{name} is untested with hf_attn_ext: it uses the attention interface, so it converts, but compare its "
        f"outputs before relying on them. Tested: {', '.join(supported_model_types())}",
        stacklevel=4,
    )


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
