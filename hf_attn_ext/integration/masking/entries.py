"""One mask as JSON, the form that ``config.json`` holds: the call that makes it, or its bits.

{"name": "butterfly", "options": {}}
{"title": "mine", "positions": 8, "bits": "eNpj...", "tokens": 8, "inputs": [...], "roles": [...], ...}
"""

from __future__ import annotations

import base64
import numbers
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec
from hf_attn_ext.hasse.order.serial import hashable

FIELD = "attn_ext_mask"
NOT_PLAIN = object()  # what JSON cannot hold


def plain(value: Any) -> Any:
    """Return ``value`` as JSON has it, or :data:`NOT_PLAIN`."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None or isinstance(value, bool | str | float):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, list | tuple | range):
        parts = [plain(part) for part in value]
        return NOT_PLAIN if any(part is NOT_PLAIN for part in parts) else parts
    return NOT_PLAIN


def plain_options(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return options as JSON has them, sorted by name; None where JSON cannot hold one of them."""
    written = {name: plain(options[name]) for name in sorted(options)}
    return None if any(value is NOT_PLAIN for value in written.values()) else written


def alike(one: MaskSpec, other: MaskSpec) -> bool:
    """Return whether two masks let the same through and have the same inputs, labels and position ids."""
    return (
        len(one) == len(other)
        and one.inputs == other.inputs
        and dict(one.labels) == dict(other.labels)
        and torch.equal(one.position_ids, other.position_ids)
        and one.bits() == other.bits()
    )


def bits_entry(spec: MaskSpec) -> dict[str, Any]:
    """Return the entry of a mask of one length: its bits, and its inputs, roles, labels and position ids."""
    packed = np.packbits(spec.dense().numpy(), axis=None).tobytes()
    inputs = [plain(entry) for entry in spec.inputs]
    return {
        "title": spec.title,
        "positions": len(spec),
        "bits": base64.b64encode(zlib.compress(packed, 9)).decode("ascii"),
        "tokens": int(spec.tokens),
        "inputs": [repr(spec.inputs[i]) if entry is NOT_PLAIN else entry for i, entry in enumerate(inputs)],
        "roles": list(spec.roles),
        "position_ids": spec.position_ids.tolist(),
        "labels": [[int(position), int(token)] for position, token in spec.labels.items()],
    }


def from_bits(entry: Mapping[str, Any]) -> MaskSpec:
    """Return the mask of :func:`bits_entry`."""
    try:
        size = entry["positions"]
        packed = np.frombuffer(zlib.decompress(base64.b64decode(entry["bits"])), np.uint8)
        mask = np.unpackbits(packed, count=size * size).reshape(size, size).astype(bool)
        fields = {
            "labels": dict(entry["labels"]),
            "inputs": [hashable(value) for value in entry["inputs"]],
            "roles": entry["roles"],
            "position_ids": entry["position_ids"],
            "tokens": entry["tokens"],
            "name": entry["title"],
        }
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise AttnExtError(
            f"config.{FIELD} holds a mask that cannot be read ({type(error).__name__}: {error}); set it anew with "
            "hf_attn_ext.set_mask"
        ) from None
    return MaskSpec.from_mask(mask, **fields)
