"""Fingerprint of the weights and settings that the outputs of a model's layers depend on."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .readable_layers import Layer, configuration_of, token_reader

# Fields of a configuration about its origin and about a head, which no layer depends on.
_UNRELATED = ("_name_or_path", "transformers_version", "architectures", "id2label", "label2id", "problem_type")
# Rotary frequencies, which Transformers itself switches by a text's length.
_SWITCHED = "inv_freq"


def fingerprint(model: nn.Module, layers: Sequence[Layer]) -> dict[str, str]:
    """Return hexadecimal hashes of a model's ``weights`` and of its ``configuration``.

    The weights are those of the part that reads tokens and contains ``layers``, without head and pooler, which a
    checkpoint may lack. Some thousand entries of every parameter and buffer are hashed, which is fast and which
    training or another seed changes. The configuration includes masks, conversion and attention backend.
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
    fields = {name: value for name, value in configuration_of(model).items() if name not in _UNRELATED}
    text = json.dumps(_with_text_keys(fields), sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _with_text_keys(value: Any) -> Any:
    """Dictionaries with text as keys, so that they can be sorted."""
    return {str(key): _with_text_keys(part) for key, part in value.items()} if isinstance(value, dict) else value
