"""``convert`` a live model to linear attention, and ``revert`` it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from hf_attn_ext._util.settings import from_mapping
from hf_attn_ext.config import AttnExtConfig
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.families import FAMILIES, supported_model_types
from hf_attn_ext.integration.base_models.wrapping import share_config, unwrap
from hf_attn_ext.integration.kernel_modules.first_use import adopt, attached_on_first_use
from hf_attn_ext.integration.kernel_modules.layers import (
    attach,
    detach,
    feature_map_of,
    plan_feature_maps,
    warn_untested,
)
from hf_attn_ext.integration.masking.entries import FIELD
from hf_attn_ext.integration.masking.linear_masks import check_linear_mask
from hf_attn_ext.integration.masking.settings import MaskSettings
from hf_attn_ext.integration.names import BEFORE_MASK, FOLDED, HASSE, IMPLEMENTATION

from .model_classes import AttnExtModelMixin, config_class, register_model_type, restore_classes, swap_classes

_BEFORE = "_attn_ext_before"


def convert(
    model: PreTrainedModel, config: AttnExtConfig | Mapping[str, Any] | None = None, **overrides: Any
) -> PreTrainedModel:
    """Swap softmax attention for a learnable linear kernel, in place.

    The base weights keep their names and values, and each converted attention module gets ``.feature_map``. The model's
    class and configuration become the ``AttnExt...`` ones, so that a saved folder opens as a converted model. A
    configuration shared with another model is copied first. The feature maps are untrained: distil them.

    Args:
        model: a model of :func:`supported_model_types`, with any head; another model that uses the attention interface
            converts with a warning that it is untested.
        config: what to build, or a dictionary of the same fields. None: the defaults, or the feature maps that a model
            opened with ``attn_implementation="flexformer"`` got on first use.
        **overrides: single fields, such as ``kernel="hedgehog"``.

    Returns:
        The same object.

    Raises:
        AttnExtError: the model is converted already, offloaded, made of several models, does not use the attention
            interface, or is no Transformers model; a layer is out of range; a field is unknown or of a wrong type. The
            model is then unchanged.

    Example:
        >>> model = AutoModelForMaskedLM.from_pretrained("roberta-base")  # doctest: +SKIP
        >>> hax.convert(model, kernel="flexformer_p", layers=[0, 2])  # doctest: +SKIP
    """
    _check_model(model)
    held = attached_on_first_use(model)
    settings = _settings(config, overrides, held)
    known = model.config.model_type in FAMILIES
    plan = plan_feature_maps(model, settings)
    _check_masks(model, plan)
    if not known:
        warn_untested(type(model).__name__)
        register_model_type(model.config.model_type)
    for i, (module, layer_idx, _) in enumerate(plan):
        kept = feature_map_of(module)
        if kept is not None:
            adopt(kept)
            plan[i] = (module, layer_idx, kept)
    implementation = model.config._attn_implementation
    if implementation == HASSE:
        implementation = model.__dict__.pop(BEFORE_MASK, None)
    before = {
        "implementation": implementation if implementation != IMPLEMENTATION else None,
        "name_or_path": model.name_or_path,
    }
    share_config(model, _converted_config(model.config, settings))
    attach(model, plan)
    swap_classes(model)
    # Folders of ours hold the names that the live model has, never those of an older format it was read from.
    converted: Any = model  # PreTrainedModel does not declare the attribute
    converted._weight_conversions = None
    # The base model's folder does not hold this model: an adapter that names it as its base would open on softmax.
    # Saving sets the new folder's name.
    model.name_or_path = ""
    setattr(model, _BEFORE, before)
    return model


def revert(model: PreTrainedModel) -> PreTrainedModel:
    """Undo :func:`convert`, in place: restore the base model's class and attention, and remove the feature maps.

    The base weights keep their present values, trained or not. Feature maps that were attached on first use are removed
    too. The attention implementation becomes the one before the conversion, or Transformers' default. In a model with a
    mask it is ``"hasse"`` until the mask is removed.

    Args:
        model: the model itself, not wrapped.

    Returns:
        The same object.

    Raises:
        AttnExtError: the model has no feature maps, or is folded (:func:`fold`).

    Example:
        >>> hax.revert(hax.convert(model)).config.model_type  # doctest: +SKIP
        'roberta'
    """
    if not is_converted(model):
        if not isinstance(model, PreTrainedModel) or attached_on_first_use(model) is None:
            raise AttnExtError(f"{type(model).__name__} is not converted; there is nothing to revert")
        detach(model)
        masked = getattr(model.config, FIELD, None) is not None
        model.config._attn_implementation = None
        model.config._attn_implementation = model.get_correct_attn_implementation(HASSE if masked else None)
        return model
    check_bare(model)
    if getattr(model.config, FOLDED, False):
        raise AttnExtError(
            f"{type(model).__name__} is folded: its query and key projections hold the affine maps, so softmax would "
            "be another model; load the folder that was saved before hf_attn_ext.fold"
        )
    config = copy.deepcopy(model.config)
    config.__class__ = type(config).__mro__[2]
    for name in ("attn_ext", "auto_map", "model_type"):
        config.__dict__.pop(name, None)
    if config.architectures:
        config.architectures = [name.removeprefix("AttnExt") for name in config.architectures]
    detach(model)
    restore_classes(model)
    before = model.__dict__.pop(_BEFORE, {})
    model.name_or_path = before.get("name_or_path", model.name_or_path)
    implementation = before.get("implementation")
    if getattr(config, FIELD, None) is not None:
        if implementation is not None:
            setattr(model, BEFORE_MASK, implementation)
        implementation = HASSE
    config._attn_implementation = model.get_correct_attn_implementation(implementation)
    share_config(model, config)
    return model


def is_converted(model: nn.Module) -> bool:
    """Return whether ``model`` is a converted model, wrapped by PEFT, DDP or torch.compile or not."""
    return isinstance(unwrap(model), AttnExtModelMixin)


def _check_model(model: Any) -> None:
    name = type(model).__name__
    if is_converted(model):
        kernel = unwrap(model).config.attn_ext["kernel"]
        raise AttnExtError(
            f"{name} is converted already (kernel {kernel!r}); call hf_attn_ext.revert(model) before another conversion"
        )
    if not isinstance(model, PreTrainedModel):
        raise AttnExtError(f"convert needs a transformers model itself, not wrapped or adapted; got {name}")
    check_bare(model)
    listed = ", ".join(supported_model_types())
    if not model._can_set_attn_implementation():
        raise AttnExtError(
            f"{name} (model type {model.config.model_type!r}) does not use the attention interface, so its attention "
            f"cannot be swapped; supported: {listed}"
        )
    if any(getattr(model.config, key, None) is not None for key in model.config.sub_configs):
        raise AttnExtError(
            f"{name} is made of several models and is not converted: a converted part would reload as softmax with "
            f"the whole; supported: {listed}"
        )
    if any(parameter.is_meta for parameter in model.parameters()):
        raise AttnExtError(f"{name} has weights that are not in memory (offloaded or meta); load it whole first")


def check_bare(model: PreTrainedModel) -> None:
    """Raise :class:`AttnExtError` where ``model`` carries a PEFT adapter."""
    if getattr(model, "_hf_peft_config_loaded", False):
        raise AttnExtError(
            f"{type(model).__name__} carries a PEFT adapter; convert, fold or revert the model without it"
        )


def _settings(
    config: AttnExtConfig | Mapping[str, Any] | None, overrides: dict[str, Any], held: dict[str, Any] | None
) -> AttnExtConfig:
    if config is not None and not isinstance(config, (AttnExtConfig, Mapping)):
        raise AttnExtError(f"config must be an AttnExtConfig or a dictionary of its fields, got {config!r}")
    given = config.to_dict() if isinstance(config, AttnExtConfig) else dict(config or {})
    if config is None and held is not None:
        given = dict(held)
    settings = from_mapping(AttnExtConfig, {**given, **overrides}, where="convert")
    if held is not None and settings.to_dict() != held:
        raise AttnExtError(
            f"the model holds {held['kernel']!r} feature maps, attached on first use; convert(model) without a "
            "configuration keeps them, hf_attn_ext.revert(model) drops them"
        )
    return settings


def _converted_config(stock: PreTrainedConfig, settings: AttnExtConfig) -> PreTrainedConfig:
    config = copy.deepcopy(stock)
    config.__class__ = config_class(type(stock))
    # A configuration read from a file holds its model type a second time, on the object.
    config.__dict__.pop("model_type", None)
    config.attn_ext = settings.to_dict()
    config._attn_implementation = IMPLEMENTATION
    return config


def _check_masks(model: PreTrainedModel, plan: list[tuple[nn.Module, int, Any]]) -> None:
    """Check that the linear layers can honour the model's masks."""
    masks = MaskSettings.of(model.config)
    for _, layer_idx, feature_map in plan:
        if masks is not None and feature_map is not None:
            check_linear_mask(masks.of_layer(layer_idx), layer_idx)
