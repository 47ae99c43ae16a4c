"""The classes of converted models, made from Transformers' classes, and their registration with the Auto classes.

``RobertaForMaskedLM`` gives ``AttnExtRobertaForMaskedLM`` with the configuration ``AttnExtRobertaConfig`` of model type
``attn_ext_roberta``. The classes are made by :func:`type`, once, and are attributes of this module, so that pickle and
the code of saved folders find them by name. Every class of a supported family is registered on import. A model outside
the table is registered when it is first converted, or by :func:`register_model_type` in another process.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import transformers
from huggingface_hub.dataclasses import strict
from torch import nn
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING
from transformers.utils import output_capturing

from hf_attn_ext.attention import FeatureMap
from hf_attn_ext.config import AttnExtConfig
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.families import FAMILIES, auto_classes, head_classes
from hf_attn_ext.integration.kernel_modules.layers import ATTRIBUTE, attach, plan_feature_maps
from hf_attn_ext.integration.linear.generation import CACHES, prepare_generation, with_cache
from hf_attn_ext.integration.names import CLASS_PREFIX, IMPLEMENTATION, TYPE_PREFIX

from .loading import load_converted
from .saving import save_converted

# The mixins come before a class of Transformers in the bases of the classes that are made here.
if TYPE_CHECKING:
    from transformers import PreTrainedConfig as _Config
    from transformers import PreTrainedModel as _Model
else:
    _Config = _Model = object


class AttnExtConfigMixin(_Config):
    """The additions to a converted model's configuration: a checked ``attn_ext``, one attention implementation."""

    attn_ext: dict[str, Any] | None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.attn_ext is not None:
            self.attn_ext = AttnExtConfig.from_dict(self.attn_ext, where="config.attn_ext").to_dict()

    @property
    def _attn_implementation(self) -> str | None:
        return self._attn_implementation_internal

    @_attn_implementation.setter
    def _attn_implementation(self, value: str | dict | None) -> None:
        value = value.get("") if isinstance(value, dict) else value
        check_implementation(value, type(self).__name__)
        self._attn_implementation_internal = IMPLEMENTATION

    @property
    def output_attentions(self) -> bool:
        """Whether the model returns attention weights."""
        value: Any = self._output_attentions
        return value

    @output_attentions.setter
    def output_attentions(self, value: bool) -> None:
        # The base setter demands "eager"; here the attention function itself returns the weights.
        self._output_attentions = value

    def validate_output_attentions(self) -> None:
        """Do nothing: the base check demands "eager", see :attr:`output_attentions`."""

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Do nothing: the code of a saved folder is the shim, never a copy of this package's files."""


class AttnExtModelMixin(_Model):
    """The additions to a converted model's class: feature maps at construction, strict loading and saving."""

    stock_class: type
    forward_parameters: tuple[str, ...]

    def __init__(self, config: PreTrainedConfig, *args: Any, **kwargs: Any) -> None:
        if getattr(config, "attn_ext", None) is None:
            raise AttnExtError(
                f"{type(self).__name__} needs config.attn_ext, which is missing; make the model with "
                "hf_attn_ext.convert, or give the configuration attn_ext={'kernel': ..., 'num_features': ...}"
            )
        super().__init__(config, *args, **kwargs)
        attach(self, plan_feature_maps(self, AttnExtConfig.from_dict(config.attn_ext, where="config.attn_ext")))
        swap_classes(self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the base model; a decoder that caches gets a :class:`hf_attn_ext.LinearCache`."""
        return super().__call__(*args, **with_cache(self, self.forward_parameters, args, kwargs))

    def _prepare_cache_for_generation(
        self, generation_config: GenerationConfig, model_kwargs: dict[str, Any], generation_mode: Any, *args: Any
    ) -> None:
        prepare_generation(self, self.forward_parameters, generation_config, model_kwargs, generation_mode)

    def _check_and_adjust_attn_implementation(self, attn_implementation: str | None, *args: Any, **kwargs: Any) -> str:
        check_implementation(attn_implementation, type(self).__name__)
        return IMPLEMENTATION

    def get_correct_attn_implementation(self, requested_attention: str | None, *args: Any, **kwargs: Any) -> str:
        """Return ``"flexformer"``; raise AttnExtError for another one."""
        check_implementation(requested_attention, type(self).__name__)
        return IMPLEMENTATION

    def _init_weights(self, module: nn.Module) -> None:
        # A feature map's initial values come from its seed, never from Transformers' initialiser.
        if not isinstance(module, FeatureMap):
            super()._init_weights(module)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any) -> Any:
        """Load a converted model, strictly; see :func:`hf_attn_ext.integration.conversion.loading.load_converted`."""
        load = super().from_pretrained
        return load_converted(model_class, load, pretrained_model_name_or_path, *model_args, **kwargs)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save a self-contained folder; see :func:`hf_attn_ext.integration.conversion.saving.save_converted`."""
        save_converted(self, super().save_pretrained, save_directory, *args, **kwargs)

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoModel") -> None:
        """Do nothing: the code of a saved folder is the shim, never a copy of this package's files."""


def check_implementation(value: str | None, name: str) -> None:
    """Raise AttnExtError unless ``value`` is None or ``"flexformer"``: any other would not use the feature maps."""
    if value is not None and value != IMPLEMENTATION:
        raise AttnExtError(
            f"{name} is converted: attn_implementation={value!r} would leave its feature maps unused; use "
            f"{IMPLEMENTATION!r}, or hf_attn_ext.revert(model) for softmax attention"
        )


_CONFIG_CLASSES: dict[type, type[PreTrainedConfig]] = {}  # by the class that they are made from
_MODEL_CLASSES: dict[type, type[PreTrainedModel]] = {}


def config_class(base: type[PreTrainedConfig]) -> type[PreTrainedConfig]:
    """Return the configuration class of the converted models of ``base``, such as ``AttnExtRobertaConfig``."""
    if base in _CONFIG_CLASSES:
        return _CONFIG_CLASSES[base]
    namespace = {
        "__module__": __name__,
        "__doc__": f"{base.__name__} with the field ``attn_ext``, see :class:`hf_attn_ext.AttnExtConfig`.",
        "__annotations__": {"attn_ext": dict[str, Any] | None},
        "attn_ext": None,
        "model_type": TYPE_PREFIX + base.model_type,
    }
    made: Any = strict(type(CLASS_PREFIX + base.__name__, (AttnExtConfigMixin, base), namespace))
    globals()[made.__name__] = _CONFIG_CLASSES[base] = made
    return made


def model_class(base: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """Return the class of the converted models of ``base``, such as ``AttnExtRobertaForMaskedLM``."""
    if base in _MODEL_CLASSES:
        return _MODEL_CLASSES[base]
    config: Any = base.config_class
    namespace = {
        "__module__": __name__,
        "__doc__": f"{base.__name__} with linear attention; made by :func:`hf_attn_ext.convert`.",
        "config_class": config_class(config),
        "stock_class": base,
        "forward_parameters": tuple(inspect.signature(base.forward).parameters)[1:],
        # Feature maps stay in float32 in half precision models, see layers.build_feature_map.
        "_keep_in_fp32_modules_strict": [*(base._keep_in_fp32_modules_strict or ()), ATTRIBUTE],
    }
    made: Any = type(CLASS_PREFIX + base.__name__, (AttnExtModelMixin, base), namespace)
    # Transformers looks up what a model can record by the name of its class, which a swapped class has not entered.
    dict.__setitem__(output_capturing._CAN_RECORD_REGISTRY, str(made), base._can_record_outputs)
    globals()[made.__name__] = _MODEL_CLASSES[base] = made
    return made


def swap_classes(model: PreTrainedModel) -> None:
    """Give every submodel of ``model`` that shares its configuration the converted class, in place."""
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and module.config is model.config:
            if not isinstance(module, AttnExtModelMixin):
                module.__class__ = model_class(type(module))
            module._keep_in_fp32_modules_strict = {*(module._keep_in_fp32_modules_strict or ()), ATTRIBUTE}


def restore_classes(model: PreTrainedModel) -> None:
    """Undo :func:`swap_classes`."""
    for module in model.modules():
        if isinstance(module, AttnExtModelMixin):
            module.__class__ = type(module).stock_class
            module._keep_in_fp32_modules_strict = set(module._keep_in_fp32_modules_strict or ()) - {ATTRIBUTE}
            module.__dict__.pop(CACHES, None)


def register_model_type(model_type: str) -> None:
    """Register ``attn_ext_<model_type>`` and all its head classes with Transformers' Auto classes.

    Every supported family is registered on import. Call it for another model type before opening a folder of that type;
    a second call changes nothing.

    Args:
        model_type: of the base model, such as ``"camembert"``.

    Raises:
        AttnExtError: the installed Transformers does not know ``model_type``.

    Example:
        >>> register_model_type("camembert")
    """
    if model_type not in CONFIG_MAPPING:
        raise AttnExtError(f"the installed transformers knows no model type {model_type!r}")
    stock_config = CONFIG_MAPPING[model_type]
    made = config_class(stock_config)
    AutoConfig.register(made.model_type, made, exist_ok=True)
    for name, classes in head_classes(model_type).items():
        converted = tuple(model_class(cls) for cls in classes)
        auto_classes()[name].register(made, converted if len(converted) > 1 else converted[0], exist_ok=True)
    tokenizer = TOKENIZER_MAPPING.get(stock_config, None)
    if tokenizer is not None:
        AutoTokenizer.register(made, tokenizer, exist_ok=True)


def register_families() -> None:
    """Register every supported family."""
    for model_type in FAMILIES:
        register_model_type(model_type)


def __getattr__(name: str) -> type:
    """Make a class of a model outside the table when it is looked up by name, as pickle and the shim do."""
    base = getattr(transformers, name.removeprefix(CLASS_PREFIX), None) if name.startswith(CLASS_PREFIX) else None
    if isinstance(base, type) and issubclass(base, PreTrainedConfig):
        return config_class(base)
    if isinstance(base, type) and issubclass(base, PreTrainedModel):
        return model_class(base)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
