"""``set_mask``: let a model attend by masks of :mod:`hf_attn_ext.hasse`, per layer and per head."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec, information_flow
from hf_attn_ext.hasse.inputs import held_tokens
from hf_attn_ext.integration.base_models.families import (
    FAMILIES,
    attention_modules,
    attention_shape,
    configured_layers,
    is_causal,
    layer_number,
    slides,
    stock_type,
    supported_model_types,
)
from hf_attn_ext.integration.base_models.positions import position_table
from hf_attn_ext.integration.base_models.wrapping import share_config, unwrap
from hf_attn_ext.integration.kernel_modules.first_use import attached_on_first_use, is_stock
from hf_attn_ext.integration.kernel_modules.layers import converted_layers
from hf_attn_ext.integration.names import BEFORE_MASK, HASSE, IMPLEMENTATION

from .entries import FIELD
from .linear_masks import check_linear_mask
from .recipe import LayerMask, Recipe, heads_of
from .settings import BACKENDS, MaskSettings


def maps_on_first_use(model: PreTrainedModel) -> bool:
    """Return whether a model that is not converted has feature maps, or gets them in its next forward pass."""
    waits = is_stock(model) and model.config._attn_implementation == IMPLEMENTATION
    return waits or attached_on_first_use(model) is not None


def set_mask(
    model: Any,
    spec_or_name: MaskSpec | str | tuple[str, Mapping[str, Any]] | None = None,
    per_layer: Mapping[Any, Any] | Sequence[Any] | None = None,
    per_head: Mapping[Any, Any] | Sequence[Any] | None = None,
    backend: str = "sdpa",
    allow_leaks: bool = False,
    **options: Any,
) -> Any:
    """Let a model attend by a mask, in place; stored in its configuration and saved with it.

    A mask by its name is made for the length of each call, in positions: ``"block_two_stream"`` for a call of 2n,
    ``"butterfly"`` for one of 3n-2. A :class:`.MaskSpec`, or a name with the option ``n``, has one length. The mask
    replaces the model's own pattern (causal or bidirectional) and is combined with a padding mask (batch, tokens).
    **A row that may see no real key, by its mask or by padding, sees itself**, on every backend. Positions count the
    tokens of the call, padding included.

    The mask does not set ``position_ids``: pass those of the mask with the call, as the collators of
    :mod:`hf_attn_ext.training` do.

    A model that is not converted gets ``attn_implementation="hasse"``. Transformers does not save this setting, so open
    the model again with ``AutoModel.from_pretrained(folder, attn_implementation="hasse")``; without it the model
    attends by its own pattern. In a converted model the linear layers follow the mask's order.

    Args:
        model: a model that uses Transformers' attention interface, wrapped by PEFT or not.
        spec_or_name: a mask, a name of :func:`hf_attn_ext.list_masks`, or a pair ``(name, options)``. None with no
            other argument removes all masks and restores the attention of before.
        per_layer: ``{layer: mask}``, where ``layer`` may be a tuple or range of numbers, or a list with one entry per
            layer; other layers have ``spec_or_name``. None for a layer keeps the model's own pattern there.
        per_head: a list with one mask per head, for every layer; or ``{layer: list}``.
        backend: ``"sdpa"``, ``"eager"``, or ``"flex"``, which has no backward pass on the CPU.
        allow_leaks: warn instead of raising an error where labels reach their own predictions.
        **options: options of the named mask, such as ``block_size=4``.

    Returns:
        The same object.

    Raises:
        AttnExtError: an unknown mask, option, layer or backend; a model without the attention interface, or without
            sdpa; a layer with a sliding window; a mask that leaks; position ids beyond the model's table; a mask that
            is not dense, or one mask per head, for a linear layer. The model is then unchanged.

    Example:
        >>> hax.set_mask(model, "block_two_stream", block_size=4)  # doctest: +SKIP
        >>> hax.set_mask(model, "causal", per_layer={0: ("sliding_window", {"w": 8})})  # doctest: +SKIP
        >>> hax.set_mask(model, None)  # doctest: +SKIP
    """
    base = unwrap(model)
    modules = _attention(base)
    if maps_on_first_use(base):
        raise AttnExtError(
            f"{type(base).__name__} has attn_implementation={IMPLEMENTATION!r} without being converted; call "
            "hf_attn_ext.convert(model) first (it keeps the feature maps), then set_mask"
        )
    if spec_or_name is None and per_layer is None and per_head is None and not options:
        _remove(base)
        return model
    if backend not in BACKENDS:
        raise AttnExtError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend == "sdpa" and not base._supports_sdpa:
        raise AttnExtError(
            f"Transformers computes {type(base).__name__} without sdpa, which has no attention sinks and "
            "no soft cap; use backend='eager'"
        )
    if options and not isinstance(spec_or_name, str):
        raise AttnExtError(f"options ({', '.join(options)}) go with the name of a mask, got {spec_or_name!r}")
    layers = _layers(spec_or_name, per_layer, per_head, options, modules)
    settings = MaskSettings(backend, tuple(layers))
    if not settings.recipes:
        raise AttnExtError("no layer has a mask; name one, or call set_mask(model, None)")
    _check_windows(base, settings)
    _check_linear(base, settings)
    _check_flow(base, settings, [is_causal(module) for module in modules], allow_leaks)
    _check_positions(base, settings)
    if stock_type(base.config.model_type) not in FAMILIES:
        warnings.warn(
            f"{type(base).__name__} is untested with masks of hf_attn_ext; compare its outputs before relying on them. "
            f"Tested: {', '.join(supported_model_types())}",
            stacklevel=2,
        )
    _store(base, settings)
    return model


def get_mask(model: Any) -> list[Any] | None:
    """Return the masks that :func:`set_mask` set.

    A mask without a length of its own is a pair ``(name, options)``, any other a :class:`.MaskSpec`. A warning says
    where the configuration holds a mask that the model does not use (opened without ``attn_implementation="hasse"``).

    Args:
        model: a Transformers model, wrapped by PEFT or not.

    Returns:
        One entry per layer: None, a mask, or a list with one mask per head. None without any mask.

    Raises:
        AttnExtError: no Transformers model.

    Example:
        >>> get_mask(hax.set_mask(model, "causal"))  # doctest: +SKIP
        [('causal', {}), ('causal', {})]
    """
    base = _with_config(model)
    unused = _unused(base)
    if unused is not None:
        warnings.warn(unused, stacklevel=2)
    return _shown_masks(base)


def active_mask(model: Any) -> list[Any] | None:
    """Return what :func:`get_mask` returns; a model that does not use its masks is an error."""
    base = _with_config(model)
    unused = _unused(base)
    if unused is not None:
        raise AttnExtError(unused)
    return _shown_masks(base)


def _with_config(model: Any) -> PreTrainedModel:
    base = unwrap(model)
    if not isinstance(base, PreTrainedModel):
        raise AttnExtError(f"model must be a Transformers model, got {type(base).__name__}")
    return base


def _unused(model: PreTrainedModel) -> str | None:
    """The error message where the configuration holds masks that the attention in use does not know, or None."""
    implementation = model.config._attn_implementation
    if MaskSettings.of(model.config) is None or implementation in (HASSE, IMPLEMENTATION):
        return None
    return (
        f"{type(model).__name__} has attn_implementation={implementation!r}, which does not use the mask in its "
        "configuration; call model.set_attn_implementation('hasse'), or open it with attn_implementation='hasse'"
    )


def _shown_masks(model: PreTrainedModel) -> list[Any] | None:
    settings = MaskSettings.of(model.config)
    if settings is None:
        return None
    return [[_shown(r) for r in x] if isinstance(x, tuple) else _shown(x) for x in settings.layers]


def _shown(recipe: Recipe | None) -> Any:
    if recipe is None:
        return None
    return recipe.example() if recipe.fixed else (recipe.name, copy.deepcopy(dict(recipe.options)))


def _attention(model: Any) -> list[torch.nn.Module]:
    """The attention modules of a model that a mask can be set for."""
    name = type(model).__name__
    listed = ", ".join(supported_model_types())
    if not isinstance(model, PreTrainedModel):
        raise AttnExtError(f"set_mask needs a transformers model, got {name}")
    if not model._can_set_attn_implementation():
        raise AttnExtError(
            f"{name} (model type {model.config.model_type!r}) does not use the attention interface, so no mask can be "
            f"set; supported: {listed}"
        )
    if any(getattr(model.config, key, None) is not None for key in model.config.sub_configs):
        raise AttnExtError(f"{name} is made of several models, for which no mask can be set; supported: {listed}")
    modules = [module for _, module in attention_modules(model)]
    if not modules:
        raise AttnExtError(f"{name} has no self-attention layer that a mask could be set for; supported: {listed}")
    numbers = [layer_number(module) for module in modules]
    if any(number not in (None, i) for i, number in enumerate(numbers)):
        raise AttnExtError(f"the attention layers of {name} are numbered {numbers}, not from 0 on; supported: {listed}")
    return modules


def _layers(
    mask: Any,
    per_layer: Mapping[Any, Any] | Sequence[Any] | None,
    per_head: Mapping[Any, Any] | Sequence[Any] | None,
    options: dict[str, Any],
    modules: list[torch.nn.Module],
) -> list[LayerMask | None]:
    common = _recipe((mask, options) if isinstance(mask, str) else mask)
    layers: list[LayerMask | None] = [common] * len(modules)
    for number, given in _by_layer(per_layer, len(modules), "per_layer"):
        layers[number] = _recipe(given)
    if per_head is not None and not isinstance(per_head, Mapping):
        per_head = dict.fromkeys(range(len(modules)), per_head)
    for number, given in _by_layer(per_head, len(modules), "per_head"):
        shape = attention_shape(modules[number])
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise AttnExtError(f"per_head must be a list with one mask per head, got {given!r} for layer {number}")
        if shape is not None and len(given) != shape[0]:
            raise AttnExtError(f"per_head gives {len(given)} masks for layer {number}, which has {shape[0]} heads")
        recipes = [_recipe(mask) for mask in given]
        heads = tuple(recipe for recipe in recipes if recipe is not None)
        if len(heads) < len(recipes):
            raise AttnExtError(
                f"per_head gives no mask for head {recipes.index(None)} of layer {number}; add one, such as 'causal'"
            )
        layers[number] = heads[0] if len(set(heads)) == 1 else heads
    return layers


def _by_layer(given: Any, count: int, name: str) -> Iterable[tuple[int, Any]]:
    if given is None:
        return
    if not isinstance(given, Mapping):
        if isinstance(given, str) or not isinstance(given, Sequence) or len(given) != count:
            raise AttnExtError(f"{name} must be a mapping of layers to masks, or a list of {count}, got {given!r}")
        given = dict(enumerate(given))
    for key, value in given.items():
        for number in key if isinstance(key, tuple | range | frozenset) else (key,):
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
                raise AttnExtError(f"{name}: layer {number!r} is out of range, must be 0 to {count - 1}")
            yield number, value


def _recipe(given: Any) -> Recipe | None:
    if given is None:
        return None
    if isinstance(given, MaskSpec):
        return Recipe.of_spec(given)
    if isinstance(given, str):
        return Recipe.by_name(given, {})
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str) and isinstance(given[1], Mapping):
        return Recipe.by_name(*given)
    raise AttnExtError(
        f"a mask must be a MaskSpec, the name of one, or a pair (name, options), got {type(given).__name__}; for a "
        "matrix of your own: hf_attn_ext.hasse.MaskSpec.from_mask(matrix)"
    )


def _check_windows(model: PreTrainedModel, settings: MaskSettings) -> None:
    for number, layer in enumerate(settings.layers):
        if layer is not None and slides(model.config, number):
            raise AttnExtError(
                f"layer {number} of {type(model).__name__} has a sliding window, which a mask would replace; leave the "
                "layer out (per_layer={number: None}), or set config.sliding_window to None when loading"
            )


def _check_linear(model: PreTrainedModel, settings: MaskSettings) -> None:
    """Check that linear layers have one dense mask for all heads."""
    for converted in converted_layers(model):
        check_linear_mask(settings.of_layer(converted.layer_idx), converted.layer_idx)


def _check_flow(model: PreTrainedModel, settings: MaskSettings, causal: list[bool], allow_leaks: bool) -> None:
    """Warn of too few layers; refuse a label that reaches its own prediction."""
    problems: list[tuple[bool, str]] = []  # (whether labels leak, message)
    recipes = list(dict.fromkeys(settings.recipes))
    specs = _of_one_length(recipes)
    size = len(specs[0])
    if len(recipes) == 1 and all(layer is not None for layer in settings.layers):
        # layers that share one module (ALBERT) are more than the modules
        count = max(len(settings.layers), configured_layers(model.config) or 0)
        for finding in specs[0].check(num_layers=count):
            if finding.severity == "note":
                continue
            if finding.kind == "empty_row":
                problems.append((False, f"{finding.message}; it will see itself"))
            else:
                problems.append((finding.severity == "error", finding.message))
    else:
        by_recipe = dict(zip(recipes, specs, strict=True))
        own = torch.ones(size, size, dtype=torch.bool)
        seen = [
            torch.stack([by_recipe[r].dense() for r in heads_of(layer)]).any(0)
            if layer is not None
            else (own.tril() if causal[number] else own)
            for number, layer in enumerate(settings.layers)
        ]
        problems += _leaks_of_all(specs, information_flow(seen))
    where = "" if recipes[0].fixed else f" (looked at with {size} positions)"
    for leaks, message in problems:
        line = f"set_mask on {type(model).__name__}: {recipes[0].title}: {message}{where}"
        if leaks and not allow_leaks:
            raise AttnExtError(f"{line}; pass allow_leaks=True to set it nevertheless")
        warnings.warn(line, stacklevel=3)


def _leaks_of_all(specs: list[MaskSpec], flow: torch.Tensor) -> list[tuple[bool, str]]:
    """The first label that reaches its prediction through the masks of all layers and heads together."""
    for spec in specs:
        holders: dict[int, list[int]] = {}
        for position, entry in enumerate(spec.inputs):
            for token in held_tokens(entry):
                holders.setdefault(token, []).append(position)
        for position, token in sorted(spec.labels.items()):
            if token in holders and flow[position, holders[token]].any():
                name = spec.names[position]
                message = (
                    f"target leak: position {position} ({name}) must predict token {token}, which reaches it through "
                    "the masks of all layers and heads together"
                )
                return [(True, message)]
    return []


def _of_one_length(recipes: list[Recipe]) -> list[MaskSpec]:
    """All masks at one length: that of a mask with one length only, or a small length that all can have."""
    failed: AttnExtError | None = None
    for first in sorted(recipes, key=lambda recipe: not recipe.fixed):
        for example in first.examples():
            try:
                return [recipe.of_length(len(example)) for recipe in recipes]
            except AttnExtError as error:
                failed = error
    raise AttnExtError(f"these masks have no length in common: {failed}")


def _check_positions(model: PreTrainedModel, settings: MaskSettings) -> None:
    table = position_table(model)
    for recipe in settings.recipes:
        if table is not None and recipe.fixed:
            needed = int(recipe.example().position_ids.max()) + 1
            if needed > table[0]:
                raise AttnExtError(
                    f"the mask {recipe.title} needs {needed} positions, but {type(model).__name__} has {table[0]}; "
                    f"call hf_attn_ext.extend_positions(model, {needed}), or use a shorter text"
                )


def _store(model: PreTrainedModel, settings: MaskSettings) -> None:
    config = copy.deepcopy(model.config)
    settings.store(config)
    if is_stock(model):
        before = config._attn_implementation
        if before != HASSE:
            setattr(model, BEFORE_MASK, before)
        config._attn_implementation = HASSE
    share_config(model, config)


def _remove(model: PreTrainedModel) -> None:
    config = copy.deepcopy(model.config)
    config.__dict__.pop(FIELD, None)
    before = model.__dict__.pop(BEFORE_MASK, None)
    if is_stock(model) and config._attn_implementation == HASSE:
        config._attn_implementation = None
        config._attn_implementation = model.get_correct_attn_implementation(before)
    share_config(model, config)
