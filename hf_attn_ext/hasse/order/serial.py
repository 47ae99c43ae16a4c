"""Orders as JSON text. Inputs are hashable and so never lists: tuples become lists in JSON and are read as tuples."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Sequence
from typing import Any

from hf_attn_ext.errors import AttnExtError, short

from .reading import is_whole

Classes = Sequence[Sequence[int]]
Covers = Sequence[tuple[int, int]]

_DEEPEST = 50  # lists within lists
_LONGEST = 10_000  # bits of a number: some 3,000 digits, of which Python reads 4,300


def order_to_json(classes: Classes, covers: Covers, inputs: Sequence[Hashable] | None) -> str:
    """Return the JSON text of an order; see :meth:`.Poset.to_json`."""
    record: dict[str, Any] = {"classes": classes, "covers": covers}
    if inputs is not None:
        for position, value in enumerate(inputs):
            if not writable(value):
                raise AttnExtError(
                    f"the input {short(value)} at position {position} cannot be written as JSON; "
                    "text, finite numbers, bool, None and tuples of these can"
                )
        record["inputs"] = inputs
    return json.dumps(record, allow_nan=False)


def order_from_json(text: str) -> tuple[Classes, Covers, list[Hashable] | None]:
    """Return the classes, covers and inputs in a JSON text; see :meth:`.Poset.from_json`."""
    record = read_json(text, "this")
    if not isinstance(record, dict) or not {"classes", "covers"} <= record.keys() <= {"classes", "covers", "inputs"}:
        raise AttnExtError("a poset's JSON is an object with 'classes', 'covers' and maybe 'inputs'")
    if not _whole(record["classes"]) or not _whole(record["covers"], 2):
        raise AttnExtError("a poset's JSON must hold lists of positions in 'classes' and pairs of classes in 'covers'")
    inputs = record.get("inputs")
    if inputs is not None:
        if not isinstance(inputs, list):
            raise AttnExtError(f"a poset's 'inputs' must be a list, got {type(inputs).__name__}")
        inputs = [hashable(value) for value in inputs]
    return record["classes"], [(lower, upper) for lower, upper in record["covers"]], inputs


def read_json(text: str | bytes, name: str) -> Any:
    """Return what a JSON text holds.

    Raises:
        AttnExtError: not JSON, a number of too many digits, a name twice in an object, or lists and objects nested more
            than 50 deep; the message begins with ``name``.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        record = dict(pairs)
        if len(record) < len(pairs):
            names = [key for key, _ in pairs]
            repeated = next(key for key in names if names.count(key) > 1)
            raise AttnExtError(f"{name} has the name {short(repeated)} twice in one object")
        return record

    try:
        record = json.loads(text, object_pairs_hook=unique)
    except AttnExtError:
        raise
    except RecursionError:
        raise AttnExtError(f"{name} is nested more than {_DEEPEST} deep") from None
    except (TypeError, ValueError) as error:
        raise AttnExtError(f"{name} is not JSON: {error}") from None
    level = [record]
    for _ in range(_DEEPEST):
        parts = (part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list))
        level = [value for part in parts for value in part if isinstance(value, dict | list)]
    if level:
        raise AttnExtError(f"{name} is nested more than {_DEEPEST} deep")
    return record


def writable(value: object, deepest: int = _DEEPEST - 2) -> bool:
    """Return whether JSON can hold an input so that :func:`read_json` returns an equal one."""
    if isinstance(value, tuple):
        return deepest > 0 and all(writable(part, deepest - 1) for part in value)
    if type(value) is float:
        return math.isfinite(value)
    if type(value) is int:
        return value.bit_length() < _LONGEST
    return value is None or type(value) in (str, bool)


def hashable(value: Any) -> Any:
    """Return an input as it was before JSON made its tuples lists."""
    return tuple(hashable(part) for part in value) if isinstance(value, list) else value


def _whole(lists: Any, length: int | None = None) -> bool:
    """Return whether this is a list of lists (of one length) of whole numbers."""
    return isinstance(lists, list) and all(
        isinstance(part, list) and length in (None, len(part)) and all(map(is_whole, part)) for part in lists
    )
