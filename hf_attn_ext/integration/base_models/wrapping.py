"""The Transformers model inside the wrappers of other libraries, and the configuration that its parts share."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel


def unwrap(model: Any) -> Any:
    """Return the Transformers model inside the wrapper of PEFT, DDP or torch.compile."""
    return wrappings(model)[-1]


def wrappings(model: Any) -> list[Any]:
    """Return ``model``, the model that it wraps, and so on down to the Transformers model."""
    models = [model]
    while not isinstance(model, PreTrainedModel):
        inner = model.get_base_model() if hasattr(model, "get_base_model") else None
        for name in ("module", "_orig_mod"):
            inner = getattr(model, name, None) if inner is None else inner
        if inner is None or inner is model:
            break
        model = inner
        models.append(model)
    return models


def share_config(model: PreTrainedModel, config: PreTrainedConfig) -> None:
    """Replace the configuration of a model and of all its parts, without a change to the present one.

    Another model may share the present configuration.
    """
    before = model.config
    for module in model.modules():
        if module.__dict__.get("config") is before:
            holder: Any = module  # nn.Module declares its attributes as tensors and modules
            holder.config = config
