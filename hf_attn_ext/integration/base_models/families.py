"""Facts about model classes: the tested model families, attention modules, head layouts and causality.

The tested families are in :mod:`hf_attn_ext.integration.model_types`. Head classes are not listed. They are read from
Transformers' AutoModel mappings, so a head that a later release adds needs no change here.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection
from typing import Any

import transformers
from torch import Tensor, nn
from transformers.loss.loss_utils import LOSS_MAPPING
from transformers.models.auto import modeling_auto
from transformers.models.auto.auto_factory import _BaseAutoModelClass
from transformers.pytorch_utils import Conv1D

from hf_attn_ext.integration.model_types import FAMILIES
from hf_attn_ext.integration.names import TYPE_PREFIX

# Names of the same numbers in Transformers' models, the most usual first.
HEAD_COUNTS = ("num_attention_heads", "num_heads", "n_heads", "n_head")
HEAD_DIMS = ("attention_head_size", "head_dim", "head_size")
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")

# Names of the projection of the heads' outputs inside the attention module.
_PROJECTIONS = ("o_proj", "c_proj", "out_lin", "out_proj", "dense")

# The query and key projections of the families whose queries and keys come straight from them, without rotary positions
# or a scale in between. One name: both in one matrix, queries first.
QUERY_KEY_PROJECTIONS = {
    "bert": ("query", "key"),
    "roberta": ("query", "key"),
    "xlm-roberta": ("query", "key"),
    "distilbert": ("q_lin", "k_lin"),
    "electra": ("query", "key"),
    "gpt2": ("c_attn",),
}

# Types whose position ids start behind the padding index.
COUNTS_FROM_PADDING = ("roberta", "xlm-roberta", "camembert", "xlm-roberta-xl", "roberta-prelayernorm")

# The argument for the cache: 5.24 names it ``cache``; before, it was ``past_key_values``.
CACHE_ARGUMENTS = ("cache", "past_key_values")


def supported_model_types() -> list[str]:
    """Return the model types that are tested with every head class, such as ``"roberta"``."""
    return list(FAMILIES)


@functools.cache
def auto_classes() -> dict[str, Any]:
    """Return Transformers' ``AutoModel`` and ``AutoModelFor...`` classes by name."""
    return {
        name: cls
        for name, cls in vars(modeling_auto).items()
        if isinstance(cls, type) and issubclass(cls, _BaseAutoModelClass) and cls._model_mapping is not None
    }


def head_classes(model_type: str) -> dict[str, tuple[type, ...]]:
    """Return the classes that each AutoModel class knows for a base model's type, by the AutoModel class's name.

    Example:
        >>> head_classes("distilbert")["AutoModelForMaskedLM"][0].__name__
        'DistilBertForMaskedLM'
    """
    by_auto_class = {}
    for auto_name, auto in auto_classes().items():
        names = auto._model_mapping._model_mapping.get(model_type) or ()
        classes = [getattr(transformers, name) for name in ([names] if isinstance(names, str) else names)]
        # some mappings list a model of another type that is built around this one
        own = tuple(cls for cls in classes if cls.config_class.model_type == model_type)
        if own:
            by_auto_class[auto_name] = own
    return by_auto_class


def cache_argument(parameters: Collection[str]) -> str | None:
    """Return which of a forward's parameters is the cache, or None."""
    return next((name for name in CACHE_ARGUMENTS if name in parameters), None)


def is_cross_attention(module: nn.Module) -> bool:
    """Return whether ``module`` attends to another sequence; such a module always keeps softmax."""
    return "Cross" in type(module).__name__ or bool(getattr(module, "is_cross_attention", False))


def is_causal(module: nn.Module) -> bool:
    """Return whether the queries of an attention module see only the tokens up to their own."""
    return bool(getattr(module, "is_causal", False) or getattr(module, "is_decoder", False))


def causal_call(module: nn.Module, is_causal: bool | None) -> bool:
    """Return whether one attention call is causal: by its keyword, else by the module, as in Transformers' sdpa."""
    return bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)


def layer_number(module: nn.Module) -> int | None:
    """Return the number of an attention module's layer, from 0; None where the module does not say (DistilBERT)."""
    return getattr(module, "layer_idx", None)


def configured_layers(config: Any) -> int | None:
    """Return how many layers a configuration says that its model has, or None."""
    return first_int(config, LAYER_COUNTS)


def reads_encoder(config: Any) -> bool:
    """Return whether the layers of a decoder also attend to an encoder."""
    return bool(getattr(config, "add_cross_attention", False) or config.is_encoder_decoder)


def shifts_labels(model: Any) -> bool:
    """Return whether a model's own loss compares each position with the label of the next."""
    kind = getattr(model, "loss_type", None)
    return kind not in LOSS_MAPPING or kind == "ForCausalLM"


def slides(config: Any, layer_idx: int) -> bool:
    """Return whether a layer's attention is limited to a sliding window."""
    types = getattr(config, "layer_types", None)
    if types is not None:
        return types[layer_idx] in ("sliding_attention", "chunked_attention")
    return getattr(config, "sliding_window", None) is not None


def _calls_interface(module: nn.Module) -> bool:
    cls: Any = type(module)
    return _class_calls_interface(cls)


@functools.cache
def _class_calls_interface(cls: Any) -> bool:
    """Return whether the forward of the class looks its attention function up in Transformers' attention interface."""
    try:
        return "ALL_ATTENTION_FUNCTIONS" in inspect.getsource(cls.forward)
    except (OSError, TypeError):
        return False


def attention_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the self-attention modules of ``model`` as ``(name, module)``, in layer order.

    In a supported family they are the modules of the table's class, in any other model those whose forward calls the
    attention interface. Cross-attention is never included.
    """
    config: Any = model.config
    attention = FAMILIES.get(stock_type(config.model_type))
    modules = []
    for name, module in model.named_modules():
        known = type(module).__name__ == attention if attention else _calls_interface(module)
        if known and not is_cross_attention(module):
            modules.append((name, module))
    return modules


def cross_attention_modules(model: nn.Module) -> list[nn.Module]:
    """Return the modules of ``model`` that attend to another sequence through the attention interface."""
    return [module for module in model.modules() if _calls_interface(module) and is_cross_attention(module)]


def stock_type(model_type: str) -> str:
    """Return the base model's type, ``"roberta"`` for ``"attn_ext_roberta"`` and for ``"roberta"``."""
    return model_type.removeprefix(TYPE_PREFIX)


def attention_shape(module: nn.Module) -> tuple[int, int] | None:
    """Return ``(number of query heads, head_dim)`` of an attention module, or None where it does not say."""
    config = getattr(module, "config", None)

    def number(names: tuple[str, ...]) -> int | None:
        own = first_int(module, names)
        return first_int(config, names) if own is None else own

    heads = number(HEAD_COUNTS)
    if heads is None:
        return None
    head_dim = number(HEAD_DIMS)
    if head_dim is None:
        width = number(("embed_dim", "hidden_size"))
        head_dim = width // heads if width and width % heads == 0 else None
    return None if head_dim is None else (heads, head_dim)


def output_projection(model: nn.Module, name: str) -> nn.Linear | Conv1D | None:
    """Return the linear layer that the heads' outputs of the attention module ``name`` go through, or None.

    Models of BERT's kind keep it next to the attention module, as ``output.dense``, the others inside.
    """
    module = model.get_submodule(name)
    shape = attention_shape(module)
    inner = (getattr(module, attribute, None) for attribute in _PROJECTIONS)
    projection = next((each for each in inner if each is not None), None)
    if projection is None:
        neighbour = f"{name.rpartition('.')[0]}.output.dense".lstrip(".")
        projection = dict(model.named_modules()).get(neighbour)
    if shape is None or not isinstance(projection, (nn.Linear, Conv1D)):
        return None
    width = projection.in_features if isinstance(projection, nn.Linear) else projection.weight.shape[0]
    return projection if width % shape[0] == 0 else None


def projection_by_head(projection: nn.Linear | Conv1D, num_heads: int) -> Tensor:
    """Return an output projection's weight as (H, d, width): the matrix that each head's output is multiplied by."""
    weight = projection.weight if isinstance(projection, Conv1D) else projection.weight.T
    return weight.unflatten(0, (num_heads, -1))


def first_int(holder: Any, names: tuple[str, ...]) -> int | None:
    """Return the first attribute of ``holder`` among ``names`` that is a whole number, or None."""
    for name in names:
        value = getattr(holder, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None
