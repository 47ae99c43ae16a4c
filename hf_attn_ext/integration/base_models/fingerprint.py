"""What the numbers of a model's layers hang on, in short."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .readable_layers import Layer, configuration_of, token_reader

# What a configuration says of where it came from and of a head, not of what layers do.
_ASIDE = ("_name_or_path", "transformers_version", "architectures", "id2label", "label2id", "problem_type")
# Rotary frequencies, which the host itself switches by a text's length.
_SWITCHED = "inv_freq"


def fingerprint(model: nn.Module, layers: Sequence[Layer]) -> dict[str, str]:
    """Hashes of its ``weights`` and its ``configuration``: masks, what was converted, its attention backend.

    Of the part that reads tokens, without head and pooler, which a checkpoint may lack. Of the weights, some thousand
    entries of every parameter and buffer, such as a kernel's random directions: training changes them, as another seed
    does, and it takes no time.

    Example:
        >>> fingerprint(model, capturable_layers(model))["weights"]  # doctest: +SKIP
        '6e7fd1c0a1b2c3d4e5f60718293a4b5c'
    """
    return {"weights": _weights(token_reader(model, layers)), "configuration": _configuration(model)}


def _weights(reader: nn.Module) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in itertools.chain(reader.named_parameters(), reader.named_buffers()):
        if name.split(".")[0] != "pooler" and not name.endswith(_SWITCHED):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode() + _some(tensor.detach()))
    return digest.hexdigest()


def _some(tensor: Tensor) -> bytes:
    if tensor.is_meta:
        return b""
    flat = torch.view_as_real(tensor).flatten() if tensor.is_complex() else tensor.flatten()
    return flat[:: max(1, flat.numel() // 4096)].to("cpu", torch.float64).numpy().tobytes()


def _configuration(model: nn.Module) -> str:
    said = {name: value for name, value in configuration_of(model).items() if name not in _ASIDE}
    text = json.dumps(_with_names(said), sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _with_names(said: Any) -> Any:
    """Keys as text, which alone can be sorted whatever they are."""
    return {str(name): _with_names(value) for name, value in said.items()} if isinstance(said, dict) else said
