"""PEFT with feature maps: which modules an adapter must train and save as a whole."""

from __future__ import annotations

from typing import Any

from torch import nn

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.families import stock_type
from hf_attn_ext.integration.base_models.wrapping import unwrap, wrappings
from hf_attn_ext.integration.kernel_modules.layers import ATTRIBUTE, converted_layers


def peft_modules_to_save(model: nn.Module) -> list[str]:
    """Return the ``modules_to_save`` of a PEFT configuration that trains and saves the feature maps.

    Without it an adapter freezes the feature maps. The call also makes PEFT adapt the same linear layers by default as
    in the base model.

    Args:
        model: a converted model.

    Raises:
        AttnExtError: the model has no feature maps.

    Example:
        >>> LoraConfig(task_type="SEQ_CLS", modules_to_save=hax.peft_modules_to_save(model))  # doctest: +SKIP
    """
    if not converted_layers(model):
        raise AttnExtError(f"{type(model).__name__} has no feature maps; call hf_attn_ext.convert(model) first")
    _know_target_modules(unwrap(model).config.model_type)
    return [ATTRIBUTE]


def refuse_prompts(model: Any, what: str) -> None:
    """Raise AttnExtError where PEFT's wrapper puts virtual tokens before every text; ``what`` names the caller."""
    for wrapper in wrappings(model):
        config = getattr(wrapper, "active_peft_config", None)
        if getattr(config, "is_prompt_learning", False) and not getattr(wrapper, "_adapters_disabled", False):
            raise AttnExtError(
                f"{what} does not know the virtual tokens of PEFT's {type(config).__name__}; use an adapter without "
                "them, such as LoRA, or call it under model.disable_adapter()"
            )


def _know_target_modules(model_type: str) -> None:
    from peft.utils import constants

    for name, table in vars(constants).items():
        known = name.startswith("TRANSFORMERS_MODELS_TO_") and name.endswith("_MAPPING") and isinstance(table, dict)
        if known and stock_type(model_type) in table:
            table.setdefault(model_type, table[stock_type(model_type)])
