"""The layers of a model whose heads can be read, and what else a reader of texts needs to know about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from hf_attn_ext.errors import AttnExtError

from .families import attention_modules, attention_shape, configured_layers, is_causal, supported_model_types


@dataclasses.dataclass(frozen=True)
class Layer:
    """One self-attention layer.

    Attributes:
        index: its number, from 0; for a projection the number of its block, or of the match (see ``counted``).
        name: the module's dotted name.
        module: the attention module, or the layer's output projection.
        num_heads: its number of (query) heads.
        projection: whether ``module`` is the output projection, whose input holds the heads' outputs.
        head_dim: the size of a projection's heads, where it is known.
        counted: whether a projection's ``index`` counts the matches, because names do not tell blocks apart.
    """

    index: int
    name: str
    module: nn.Module
    num_heads: int
    projection: bool = False
    head_dim: int | None = None
    counted: bool = False


def capturable_layers(model: nn.Module) -> list[Layer]:
    """Return the self-attention layers of ``model`` whose heads can be captured, in order."""
    base = checked_model(model)
    if base is None:
        raise AttnExtError(
            f"{type(model).__name__} holds no transformers model; supported: {', '.join(supported_model_types())}; "
            f"{_ELSEWHERE}"
        )
    modules = attention_modules(base)
    if not modules:
        raise AttnExtError(
            f"{type(base).__name__} ({base.config.model_type}) does not use transformers' attention interface; "
            f"supported: {', '.join(supported_model_types())}; {_ELSEWHERE}"
        )
    layers = []
    for index, (path, module) in enumerate(modules):
        shape = attention_shape(module)
        if shape is None:
            raise AttnExtError(f"{path} ({type(module).__name__}) does not declare its number of heads and their size")
        layers.append(Layer(index, path, module, shape[0]))
    return layers


_ELSEWHERE = "for another model name the output projections: projections='*.attention.output.dense', for example"


def checked_model(model: nn.Module) -> PreTrainedModel | None:
    """Return the outermost Transformers model in ``model``, or None."""
    if not isinstance(model, nn.Module):
        raise AttnExtError(f"expected a model (torch.nn.Module), got {type(model).__name__}; open it with AutoModel")
    if any(hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None) for m in model.modules()):
        raise AttnExtError(
            f"{type(model).__name__} is compiled, and a compiled forward pass cannot be read; give the model that "
            "torch.compile was called on"
        )
    inner = inner_models(model)
    outer = [each for each in inner if not any(each is not other and each in set(other.modules()) for other in inner)]
    if len(outer) > 1:
        kinds = ", ".join(type(each).__name__ for each in outer)
        raise AttnExtError(f"{type(model).__name__} holds {len(outer)} models ({kinds}); give one of them")
    if outer and _reads_two_texts(outer[0]):
        raise AttnExtError(
            f"{type(outer[0]).__name__} is an encoder-decoder, which reads two texts per pass; give "
            "model.get_encoder() or a decoder"
        )
    return outer[0] if outer else None


def layer_count(model: nn.Module, layers: Sequence[Layer]) -> int:
    """Return how many layers ``model`` has, by its configuration and by ``layers``, some or all of them."""
    configured = configured_layers(config_of(model)) if layers[0].projection else 0
    numbers = [0] if layers[0].counted else [layer.index + 1 for layer in layers]
    return max(configured or 0, len(layers), *numbers)


def causal_model(model: nn.Module) -> bool:
    """Return whether the tokens of ``model`` see only the tokens up to themselves."""
    return any(is_causal(layer.module) for layer in capturable_layers(model))


def token_reader(model: nn.Module, layers: Sequence[Layer] = ()) -> nn.Module:
    """Return the part of ``model`` that turns token ids into hidden states, without its head, and runs ``layers``."""
    reader = reading_models(model, layers)[0]
    base = reader.base_model if isinstance(reader, PreTrainedModel) else reader
    inside = set(base.modules())
    return base if all(layer.module in inside for layer in layers) else reader


def config_special_ids(model: nn.Module) -> set[int]:
    """Return the ids that the configuration names as special; few models' configurations name all of them."""
    config = config_of(model)
    named = (getattr(config, f"{name}_token_id", None) for name in ("bos", "eos", "cls", "sep", "pad", "mask"))
    ids = (each for entry in named for each in (entry if isinstance(entry, (list, tuple)) else [entry]))
    return {each for each in ids if isinstance(each, int)}


def configuration_of(model: nn.Module) -> dict[str, Any]:
    """Return the fields of the model's configuration, ``attn_ext`` and masks included, and its attention backend."""
    config = config_of(model)
    fields = config.to_dict() if hasattr(config, "to_dict") else {}
    return {**fields, "attn_implementation": getattr(config, "_attn_implementation", None)}


def config_of(model: nn.Module) -> Any:
    """Return the configuration of the outermost Transformers model in ``model``, else its own, or None."""
    return getattr(next(iter(inner_models(model)), model), "config", None)


def inner_models(model: nn.Module) -> list[PreTrainedModel]:
    """Return the Transformers models in ``model``, the outermost first."""
    return [module for module in model.modules() if isinstance(module, PreTrainedModel)]


def _reads_two_texts(model: PreTrainedModel) -> bool:
    if not getattr(model.config, "is_encoder_decoder", False):
        return False
    return "Decoder" in type(model).__name__ or any(name.endswith("decoder") for name, _ in model.named_modules())


def reading_models(model: nn.Module, layers: Sequence[Layer]) -> list[nn.Module]:
    """Return the modules whose calls are passes: the Transformers models, and ``model`` where a layer is in none."""
    inner: list[nn.Module] = [*inner_models(model)]
    inside = {module for each in inner for module in each.modules()}
    if all(layer.module in inside for layer in layers):
        return inner
    return [model, *(each for each in inner if each is not model)]
