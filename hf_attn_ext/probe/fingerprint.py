"""What a model's numbers hang on, in short: statistics that are added must be of one model."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import AttnExtError
from ..integration.capturable import Layer, configuration_of, token_reader

# What a configuration says of where it came from and of a head, not of what layers do.
_ASIDE = ("_name_or_path", "transformers_version", "architectures", "id2label", "label2id", "problem_type")
# Rotary frequencies, which the host itself switches by a text's length.
_SWITCHED = "inv_freq"


def fingerprint(model: nn.Module, layers: Sequence[Layer] = ()) -> dict[str, str]:
    """Hashes of its ``weights`` and its ``configuration``: masks, what was converted, its attention backend.

    Of the part that reads tokens, without head and pooler, which a checkpoint may lack. Of the weights, some thousand
    entries of every parameter and buffer, such as a kernel's random directions: training changes them, as another seed
    does, and it takes no time.

    Example:
        >>> sorted(fingerprint(nn.Linear(2, 2)))
        ['configuration', 'weights']
    """
    return {"weights": _weights(token_reader(model, layers)), "configuration": _configuration(model)}


class SeenModel:
    """The model that statistics are of, as it was when the first of them were taken."""

    def __init__(self, model: nn.Module, layers: Sequence[Layer]) -> None:
        self._model, self._layers = model, layers
        self._first: dict[str, str] | None = None

    def fingerprint(self) -> dict[str, str]:
        """Its :func:`fingerprint` then; of now, where there are no statistics yet."""
        return self._first or fingerprint(self._model, self._layers)

    def check_unchanged(self) -> None:
        """Raise where it is not what it was."""
        now = fingerprint(self._model, self._layers)
        for what, its in (self._first or now).items():
            if now[what] != its:
                raise AttnExtError(
                    f"the model has another {what} than when this probe first saw it: its statistics would be of two "
                    "models; make another probe"
                )
        self._first = now

    def check_same(self, other: Mapping[str, str]) -> None:
        """Raise where a fingerprint is another model's."""
        mine = self.fingerprint()
        for what, its in mine.items():
            if other.get(what) != its:
                raise AttnExtError(f"the statistics are of another model, of other {what}: they cannot be added")
        self._first = mine


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
