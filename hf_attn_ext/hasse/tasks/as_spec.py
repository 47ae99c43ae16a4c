"""A task of inputs and labels of any kind as a :class:`.MaskSpec`."""

from __future__ import annotations

from typing import Any

from hf_attn_ext.errors import AttnExtError, short
from hf_attn_ext.hasse.inputs import input_text, is_input, token
from hf_attn_ext.hasse.order.reading import is_whole
from hf_attn_ext.hasse.order.values import check_hashable
from hf_attn_ext.hasse.spec import MaskSpec

from .joint import JointTask
from .task import Task


def spec_of_task(task: Task, name: str = "task") -> MaskSpec:
    """Return a task as a spec that can be drawn and checked.

    Equal inputs and labels become one token; a label that equals no input is a token of its own. Position ids are
    those in the inputs where all inputs are ``(token, position)``. Where all inputs have the form of :mod:`.inputs`
    and all labels are token numbers or ``("token", number)``, both keep their meaning.

    Raises:
        AttnExtError: not a task, an unhashable label, or a position with several targets, as ``conflicts="keep"`` may
            leave them.

    Example:
        >>> spec = spec_of_task(Task(["a", "b"], {0: "b"}, [[1, 0], [1, 1]]))
        >>> spec.names, spec.labels
        (('a', 'b'), {0: 1})
    """
    if not isinstance(task, Task):
        raise AttnExtError(f"give a Task, got {short(task)}")
    labels = _single_labels(task, name)
    if all(map(is_input, task.inputs)):  # as masks write them, and so may labels be
        targets = {position: _number(label) for position, label in labels.items()}
        if all(is_whole(target) and target >= 0 for target in targets.values()):
            return MaskSpec.from_mask(task.mask, labels=targets, inputs=task.inputs, name=name)
    pairs: list[Any] = [v for v in task.inputs if isinstance(v, tuple) and len(v) == 2 and is_whole(v[1])]
    numbers: dict[Any, int] = {}
    for position, label in labels.items():
        check_hashable(label, "label", position)
    for value in (*task.inputs, *labels.values()):
        numbers.setdefault(value, len(numbers))
    return MaskSpec.from_mask(
        task.mask,
        labels={position: numbers[label] for position, label in labels.items()},
        inputs=[_numbered(value, numbers) for value in task.inputs],
        position_ids=[position for _, position in pairs] if len(pairs) == len(task) else None,
        tokens=len(numbers),
        name=name,
        names=[input_text(value) for value in task.inputs],
    )


def _single_labels(task: Task, name: str) -> dict[int, Any]:
    if not isinstance(task, JointTask) or task.conflicts != "keep":
        return task.labels
    for position, targets in task.labels.items():
        if len(targets) > 1:
            raise AttnExtError(f"{name}: position {position} has {len(targets)} targets, but a mask holds at most one")
    return {position: targets[0] for position, targets in task.labels.items()}


def _number(label: Any) -> Any:
    """Return the number in ``("token", number)``; any other label as it is."""
    return label[1] if is_input(label) and label[0] == "token" and len(label) == 2 else label


def _numbered(value: Any, numbers: dict[Any, int]) -> tuple[Any, ...]:
    """Return the input of a numbered token; a mean of several tokens has no number, so its tokens are unknown."""
    if is_input(value) and value[0] == "mean":
        return ("unknown", *value)
    return token(numbers[value])
