"""Which layers of a model can be looked into, and what else of it a reader of texts must know."""

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
        index: its number, from 0; of a projection, its block's, or (see ``counted``) its place among the matches.
        name: of the module.
        module: the attention module, or the layer's output projection.
        num_heads: its number of (query) heads.
        projection: whether it is that projection, and heads are read from what that is given.
        head_dim: the size of a projection's heads, where it is known.
        counted: whether a projection's ``index`` counts the matches, as names do not tell blocks apart.
    """

    index: int
    name: str
    module: nn.Module
    num_heads: int
    projection: bool = False
    head_dim: int | None = None
    counted: bool = False


def capturable_layers(model: nn.Module) -> list[Layer]:
    """The self-attention layers of ``model`` whose heads can be captured, in order.

    Raises:
        AttnExtError: no model of transformers in it, or more than one; an encoder-decoder; a compiled model; or one
            whose attention does not go through the host's attention interface (XLNet, DeBERTa).

    Example:
        >>> [layer.name for layer in capturable_layers(model)][:1]  # doctest: +SKIP
        ['bert.encoder.layer.0.attention.self']
    """
    host = checked_host(model)
    if host is None:
        raise AttnExtError(
            f"{type(model).__name__} holds no transformers model; supported: {', '.join(supported_model_types())}; "
            f"{_ELSEWHERE}"
        )
    modules = attention_modules(host)
    if not modules:
        raise AttnExtError(
            f"{type(host).__name__} ({host.config.model_type}) does not use transformers' attention interface; "
            f"supported: {', '.join(supported_model_types())}; {_ELSEWHERE}"
        )
    layers = []
    for index, (path, module) in enumerate(modules):
        shape = attention_shape(module)
        if shape is None:
            raise AttnExtError(f"{path} ({type(module).__name__}) does not say its number of heads and their size")
        layers.append(Layer(index, path, module, shape[0]))
    return layers


_ELSEWHERE = "of another model, name the output projections: projections='*.attention.output.dense', for example"


def checked_host(model: nn.Module) -> PreTrainedModel | None:
    """The outermost model of transformers in ``model``, or None.

    Raises:
        AttnExtError: several of them, an encoder-decoder, a compiled model, or no module at all.
    """
    if not isinstance(model, nn.Module):
        raise AttnExtError(f"expected a model (torch.nn.Module), got {type(model).__name__}; open it with AutoModel")
    if any(hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None) for m in model.modules()):
        raise AttnExtError(
            f"{type(model).__name__} is compiled, and a compiled forward pass cannot be looked into; give the model "
            "that torch.compile was called on"
        )
    hosts = hosts_of(model)
    outer = [host for host in hosts if not any(host is not o and host in set(o.modules()) for o in hosts)]
    if len(outer) > 1:
        kinds = ", ".join(type(host).__name__ for host in outer)
        raise AttnExtError(f"{type(model).__name__} holds {len(outer)} models ({kinds}); give one of them")
    if outer and _reads_two_texts(outer[0]):
        raise AttnExtError(
            f"{type(outer[0]).__name__} is an encoder-decoder, with two texts a pass; give model.get_encoder() or a "
            "decoder"
        )
    return outer[0] if outer else None


def layer_count(model: nn.Module, layers: Sequence[Layer]) -> int:
    """How many layers ``model`` has, of which ``layers`` can be looked into: its configuration's word, or theirs."""
    said = configured_layers(config_of(model)) if layers[0].projection else 0
    numbers = [0] if layers[0].counted else [layer.index + 1 for layer in layers]
    return max(said or 0, len(layers), *numbers)


def causal_model(model: nn.Module) -> bool:
    """Whether the tokens of ``model`` see only what comes before them."""
    return any(is_causal(layer.module) for layer in capturable_layers(model))


def token_reader(model: nn.Module, layers: Sequence[Layer] = ()) -> nn.Module:
    """The part of ``model`` that turns token ids into hidden states, without its head, and runs ``layers``."""
    host = reading_hosts(model, layers)[0]
    base = host.base_model if isinstance(host, PreTrainedModel) else host
    inside = set(base.modules())
    return base if all(layer.module in inside for layer in layers) else host


def config_special_ids(model: nn.Module) -> set[int]:
    """The ids that the configuration names as special; few models' configurations name all of them."""
    config = config_of(model)
    ids = (getattr(config, f"{name}_token_id", None) for name in ("bos", "eos", "cls", "sep", "pad", "mask"))
    flat = (one for entry in ids for one in (entry if isinstance(entry, (list, tuple)) else [entry]))
    return {one for one in flat if isinstance(one, int)}


def configuration_of(model: nn.Module) -> dict[str, Any]:
    """All that its configuration says, masks and what was converted among it, and its attention backend."""
    config = config_of(model)
    said = config.to_dict() if hasattr(config, "to_dict") else {}
    return {**said, "attn_implementation": getattr(config, "_attn_implementation", None)}


def config_of(model: nn.Module) -> Any:
    """Return the configuration of the outermost Transformers model in ``model``, else its own, or None."""
    return getattr(next(iter(hosts_of(model)), model), "config", None)


def hosts_of(model: nn.Module) -> list[PreTrainedModel]:
    return [module for module in model.modules() if isinstance(module, PreTrainedModel)]


def _reads_two_texts(host: PreTrainedModel) -> bool:
    if not getattr(host.config, "is_encoder_decoder", False):
        return False
    return "Decoder" in type(host).__name__ or any(name.endswith("decoder") for name, _ in host.named_modules())


def reading_hosts(model: nn.Module, layers: Sequence[Layer]) -> list[nn.Module]:
    """The modules whose calls are passes: models of transformers, and ``model`` itself where a layer is in none."""
    hosts: list[nn.Module] = [*hosts_of(model)]
    inside = {module for host in hosts for module in host.modules()}
    return hosts if all(layer.module in inside for layer in layers) else [model, *(h for h in hosts if h is not model)]
