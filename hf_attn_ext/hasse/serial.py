"""Posets as JSON text. An input is hashable and so never a list: tuples become JSON's lists and come back as tuples."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ..errors import AttnExtError
from .reading import is_whole

if TYPE_CHECKING:
    from .poset import Poset


def poset_to_json(poset: Poset) -> str:
    """See :meth:`.Poset.to_json`."""
    record: dict[str, Any] = {"classes": poset.classes, "covers": poset.covers}
    if poset.inputs is not None:
        for position, value in enumerate(poset.inputs):
            if not writable(value):
                raise AttnExtError(
                    f"the input {value!r} at position {position} cannot be written as JSON; "
                    "text, numbers, bool, None and tuples of these can"
                )
        record["inputs"] = poset.inputs
    return json.dumps(record)


def poset_from_json(text: str) -> Poset:
    """See :meth:`.Poset.from_json`."""
    from .poset import Poset

    try:
        record = json.loads(text)
    except (TypeError, json.JSONDecodeError) as error:
        raise AttnExtError(f"this is no JSON text: {error}") from None
    if not isinstance(record, dict) or not {"classes", "covers"} <= record.keys() <= {"classes", "covers", "inputs"}:
        raise AttnExtError("a poset's JSON is an object with 'classes', 'covers' and maybe 'inputs'")
    if not _whole(record["classes"]) or not _whole(record["covers"], 2):
        raise AttnExtError("a poset's JSON must hold lists of positions in 'classes' and pairs of classes in 'covers'")
    inputs = record.get("inputs")
    if inputs is not None:
        if not isinstance(inputs, list):
            raise AttnExtError(f"a poset's 'inputs' must be a list, got {type(inputs).__name__}")
        inputs = [hashable(value) for value in inputs]
    return Poset.from_covers(record["classes"], [tuple(pair) for pair in record["covers"]], inputs)


def writable(value: object) -> bool:
    """Whether JSON can hold an input and give back the same."""
    if isinstance(value, tuple):
        return all(map(writable, value))
    return value is None or type(value) in (str, int, float, bool)


def hashable(value: Any) -> Any:
    """An input as it was before JSON made its tuples lists."""
    return tuple(hashable(part) for part in value) if isinstance(value, list) else value


def _whole(lists: Any, length: int | None = None) -> bool:
    """Whether this is a list of lists (of one length) of whole numbers."""
    return isinstance(lists, list) and all(
        isinstance(part, list) and length in (None, len(part)) and all(map(is_whole, part)) for part in lists
    )
