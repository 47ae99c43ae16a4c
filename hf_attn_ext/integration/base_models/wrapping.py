"""The Transformers model inside the wrappers of other libraries, and the configuration that its parts share."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel


def unwrap(model: Any) -> Any:
    """Return the transformers model inside PEFT's, DDP's or torch.compile's wrapper."""
    return wrappings(model)[-1]


def wrappings(model: Any) -> list[Any]:
    """Return ``model``, what it wraps, what that wraps, and so on to the transformers model."""
    found = [model]
    while not isinstance(model, PreTrainedModel):
        inner = model.get_base_model() if hasattr(model, "get_base_model") else None
        for name in ("module", "_orig_mod"):
            inner = getattr(model, name, None) if inner is None else inner
        if inner is None or inner is model:
            break
        model = inner
        found.append(model)
    return found


def share_config(model: PreTrainedModel, config: PreTrainedConfig) -> None:
    """Give ``config`` to every module that holds the model's present one; another model may share that."""
    before = model.config
    for module in model.modules():
        if module.__dict__.get("config") is before:
            module.config = config
