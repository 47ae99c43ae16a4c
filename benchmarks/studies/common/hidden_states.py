"""The last hidden states of a model, and how far another's are from them."""

from __future__ import annotations

from typing import Any

import torch


def batches(tokenizer: Any, texts: list[str], max_length: int, size: int) -> list[dict[str, torch.Tensor]]:
    """Return tokenised, padded batches of ``size`` texts."""
    limits = {"padding": True, "truncation": True, "max_length": max_length, "return_tensors": "pt"}
    return [dict(tokenizer(texts[start : start + size], **limits)) for start in range(0, len(texts), size)]


@torch.no_grad()
def hidden_states(model: torch.nn.Module, data: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    """Return the last hidden states of all real tokens, (tokens, width)."""
    model.eval()
    return torch.cat([model(**batch).last_hidden_state[batch["attention_mask"].bool()] for batch in data])


def relative_error(states: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the squared distance over the squared length, both summed over all tokens."""
    return ((states - expected).square().sum() / expected.square().sum()).item()
