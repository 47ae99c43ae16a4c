"""What a model's numbers hang on, in short: statistics that are added must be of one model."""

from __future__ import annotations

import hashlib
import itertools
import json

import torch
from torch import nn

from ..integration.capturable import configuration_of

# What a configuration says of where it came from, not of what the model does.
_ORIGIN = ("_name_or_path", "transformers_version", "architectures")


def fingerprint(model: nn.Module) -> dict[str, str]:
    """Hashes of its ``weights`` and its ``configuration``: masks, what was converted, its attention backend.

    Of the weights, some thousand entries of every parameter and buffer, such as a kernel's random directions: training
    changes them, as another seed does, and it takes no time.

    Example:
        >>> sorted(fingerprint(nn.Linear(2, 2)))
        ['configuration', 'weights']
    """
    return {"weights": _weights(model), "configuration": _configuration(model)}


def _weights(model: nn.Module) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        flat = tensor.detach().flatten()
        few = flat[:: max(1, flat.numel() // 4096)].to("cpu", torch.float64)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode() + few.numpy().tobytes())
    return digest.hexdigest()


def _configuration(model: nn.Module) -> str:
    said = {name: value for name, value in configuration_of(model).items() if name not in _ORIGIN}
    return hashlib.blake2b(json.dumps(said, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()
