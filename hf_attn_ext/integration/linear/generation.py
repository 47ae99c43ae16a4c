"""Cache creation for converted decoders, in a forward pass and in ``generate()``."""

from __future__ import annotations

from typing import Any

from transformers import Cache, DynamicCache, EncoderDecoderCache, GenerationConfig, PreTrainedModel
from transformers.generation import GenerationMode

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.families import (
    CACHE_ARGUMENTS,
    attention_modules,
    cache_argument,
    is_causal,
    reads_encoder,
)
from hf_attn_ext.integration.masking.recipe import heads_of
from hf_attn_ext.integration.masking.settings import MaskSettings

from .cache import LinearCache, check_cache, linear_layers

CACHES = "_attn_ext_caches"


def with_cache(
    model: PreTrainedModel, parameters: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return ``kwargs`` with a :class:`LinearCache` where the base model would make a cache of keys."""
    name = cache_argument(parameters)
    if name is None or not caches(model):
        return kwargs
    given = dict(zip(parameters, args, strict=False)) | kwargs
    cache = next((given[alias] for alias in CACHE_ARGUMENTS if given.get(alias) is not None), None)
    if cache is not None:
        check_cache(cache, model.config, type(model).__name__)
        return kwargs
    use_cache = given.get("use_cache")
    if use_cache is None:
        use_cache = getattr(model.config, "use_cache", False)
    if not use_cache or parameters.index(name) < len(args):
        return kwargs
    if not keeps_state(model):
        return {**kwargs, "use_cache": False}
    if model.training and any(getattr(module, "gradient_checkpointing", False) for module in model.modules()):
        return kwargs  # Transformers makes no cache here
    return {key: value for key, value in kwargs.items() if key not in CACHE_ARGUMENTS} | {name: new_cache(model)}


def prepare_generation(
    model: PreTrainedModel,
    parameters: tuple[str, ...],
    config: GenerationConfig,
    model_kwargs: dict[str, Any],
    mode: GenerationMode,
) -> None:
    """Put a :class:`LinearCache` into ``model_kwargs``, where ``generate()`` looks for a cache."""
    name = type(model).__name__
    if mode == GenerationMode.ASSISTED_GENERATION or config.is_assistant:
        raise AttnExtError(
            f"{name} cannot take part in assisted decoding or prompt lookup: a linear layer's state cannot be cropped"
        )
    argument = cache_argument(parameters) or CACHE_ARGUMENTS[0]
    given = next((model_kwargs[alias] for alias in CACHE_ARGUMENTS if model_kwargs.get(alias) is not None), None)
    if given is not None:
        check_cache(given, model.config, name)
        given._is_user_defined = True
        return
    if config.use_cache is False:
        return
    if not keeps_state(model):
        raise AttnExtError(
            f"{name} has masks that a linear layer's state cannot follow (only 'causal' can); pass use_cache=False"
        )
    kind = config.cache_implementation
    if kind not in (None, "dynamic"):
        raise AttnExtError(
            f"cache_implementation={kind!r} stores keys, but {name} keeps a state of constant size; omit it"
        )
    model_kwargs[argument] = new_cache(model)


def keeps_state(model: PreTrainedModel) -> bool:
    """Return whether every linear layer is causal; a recurrent state supports no other mask."""
    masks = MaskSettings.of(model.config)
    if masks is None:
        return True
    layers = [masks.of_layer(number) for number in linear_layers(model.config)]
    return all(layer is None or all(recipe.causal for recipe in heads_of(layer)) for layer in layers)


def new_cache(model: PreTrainedModel) -> Cache:
    """Return an empty cache for ``model``; attention to an encoder keeps a cache of keys."""
    cache = LinearCache(model.config)
    if reads_encoder(model.config):
        return EncoderDecoderCache(cache, DynamicCache(config=model.config))
    return cache


def caches(model: PreTrainedModel) -> bool:
    """Return whether ``model`` is a decoder whose self-attention layers can be converted."""
    known = model.__dict__.get(CACHES)
    if known is None:
        modules = [module for _, module in attention_modules(model)]
        known = bool(modules) and all(is_causal(module) for module in modules)
        model.__dict__[CACHES] = known
    return known
