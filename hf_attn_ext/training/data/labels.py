"""The labels of a task (named classes, numbers, or none), and their match with the labels of a teacher."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any, Final

import numpy as np

from hf_attn_ext.errors import AttnExtError, suggest
from hf_attn_ext.training.config import Task

LANGUAGE: Final = "language_modeling"


@dataclasses.dataclass
class Labels:
    """The task and its classes.

    Attributes:
        task: ``"classification"``, ``"regression"`` or ``"language_modeling"``.
        names: the class names in order; empty for the other tasks.
        generic: the names are the numbers found in the data, because nobody named the classes.
    """

    task: Task
    names: list[str]
    generic: bool = False

    @property
    def num_outputs(self) -> int:
        """The number of outputs of the model's head."""
        return len(self.names) if self.task == "classification" else 1


def parse_labels(labels: list[str | None]) -> list[Any]:
    """Return the labels of a csv file as integers, numbers or booleans if all of them are written so.

    Example:
        >>> parse_labels(["1", "2"]), parse_labels(["1", "2.5"]), parse_labels(["1", "good"])
        ([1, 2], [1.0, 2.5], ['1', 'good'])
    """
    for kind in (int, float, lambda label: {"true": True, "false": False}[label.lower()]):
        with contextlib.suppress(ValueError, KeyError):
            # Python reads 1_0 as 10, and nan as a number
            if not any("_" in label or "nan" in label.lower() for label in labels if label):
                return [None if label is None else kind(label) for label in labels]
    return labels


def read_labels(
    columns: dict[str, list[Any]],
    task: str,
    feature_names: list[str] | None,
    config_names: list[str] | None,
    where: str = "data",
) -> tuple[Labels, dict[str, np.ndarray]]:
    """Check the label columns of all splits and turn them into arrays.

    Args:
        columns: label values by split; ``"train"`` decides what the labels are.
        task: ``auto``, ``classification`` or ``regression``.
        feature_names: class names that the data set itself declares, where it does.
        config_names: class names of the configuration (``data.labels``).
        where: the section's name, for error messages.

    Returns:
        The labels, and for each split an int64 (classes) or float32 (numbers) array.

    Raises:
        AttnExtError: a label that is empty, hidden (-1), of another kind than the others, or not among the names.
    """
    for split, values in columns.items():
        for row, value in enumerate(values):
            if value is None or (isinstance(value, float) and math.isnan(value)):
                raise AttnExtError(f"field '{where}.{split}': the label is empty in example {row + 1}")
    if task == "auto":
        # a json file may hold 1 and 2.5
        numbers = all(type(value) in (int, float) for value in columns["train"])
        fractions = any(isinstance(value, float) for value in columns["train"])
        task = "regression" if numbers and fractions else "classification"
    if task == "regression":
        if config_names is not None:
            raise AttnExtError(f"field '{where}.labels' names classes, but the labels are numbers (task regression)")
        return Labels("regression", []), {s: _numbers(v, f"{where}.{s}") for s, v in columns.items()}
    return _classes(columns, feature_names, config_names, where)


def _numbers(values: list[Any], where: str) -> np.ndarray:
    for row, value in enumerate(values):
        if isinstance(value, (str, bool)) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise AttnExtError(f"field '{where}': regression needs numbers, label {value!r} in example {row + 1}")
    return np.asarray(values, dtype=np.float32)


def _classes(
    columns: dict[str, list[Any]], feature_names: list[str] | None, config_names: list[str] | None, where: str
) -> tuple[Labels, dict[str, np.ndarray]]:
    """Return the classes and the class numbers of every split."""
    textual = _check_kinds(columns, where)
    given = config_names or feature_names
    if textual:
        names = list(given or sorted(set(columns["train"])))
        index: dict[Any, int] = {name: i for i, name in enumerate(names)}
    else:
        names = list(given) if given else []
        numbered = _numbered_classes(columns["train"], named=bool(given), where=where)
        names = names or numbered
        index = {i: i for i in range(len(names))}
    if len(set(names)) < len(names):
        raise AttnExtError(f"field '{where}.labels' names a class twice: {', '.join(names)}")
    arrays = {
        split: _indices(values if textual else list(map(int, values)), index, names, f"{where}.{split}")
        for split, values in columns.items()
    }
    if len(names) < 2:
        raise AttnExtError(
            f"field '{where}.train': all labels are {names[0]!r}: a classification task needs two classes"
        )
    return Labels("classification", names, generic=not (textual or given)), arrays


def _check_kinds(columns: dict[str, list[Any]], where: str) -> bool:
    """Check that all labels are texts (returns True) or all are whole numbers (False)."""
    for split, values in columns.items():
        for row, value in enumerate(values):
            if isinstance(value, float) and not value.is_integer():
                raise AttnExtError(
                    f"field '{where}.{split}': label {value!r} in example {row + 1} is no class "
                    f"(for numbers set {where}.task: regression)"
                )
            if not isinstance(value, (str, int, float)):
                raise AttnExtError(f"field '{where}.{split}': label {value!r} in example {row + 1} is no class")
    kinds = {split: {isinstance(value, str) for value in values} for split, values in columns.items()}
    textual = kinds["train"] == {True}
    for split, kind in kinds.items():
        if kind != {textual}:
            raise AttnExtError(
                f"field '{where}.{split}': labels are of mixed kinds, text and numbers; train has "
                f"{columns['train'][0]!r}, {split} has {_odd_one(columns[split], textual)!r}"
            )
    return textual


def _numbered_classes(values: list[Any], named: bool, where: str) -> list[str]:
    """Return the numbers 0, 1, ... as class names, after checking the labels of ``train``."""
    numbers = sorted({int(value) for value in values})
    if numbers[0] < 0:
        raise AttnExtError(
            f"field '{where}.train': label {numbers[0]} (hidden labels are written -1: use a labelled split)"
        )
    if not named and len(numbers) <= numbers[-1]:
        missing = next(value for value in range(numbers[-1]) if value not in numbers)
        raise AttnExtError(
            f"field '{where}.train': classes must be numbered from 0 without gaps, but {missing} never occurs; "
            f"found {', '.join(map(str, numbers[:10]))} (or name them all in {where}.labels)"
        )
    return [str(value) for value in range(numbers[-1] + 1)]


def _indices(values: list[Any], index: dict[Any, int], names: list[str], where: str) -> np.ndarray:
    """Return the class number of every label, int64 (n,)."""
    for row, value in enumerate(values):
        if value not in index:
            hidden = " (hidden labels are written -1: use a labelled split)" if value == -1 else ""
            options = ", ".join(repr(name) for name in names[:10])
            near = suggest(value, names) if isinstance(value, str) else ""
            raise AttnExtError(
                f"field '{where}': label {value!r} in example {row + 1} is not among {options}{hidden}.{near}"
            )
    return np.array([index[value] for value in values], dtype=np.int64)


def _odd_one(values: list[Any], textual: bool) -> Any:
    return next((value for value in values if isinstance(value, str) != textual), values[0])


def match_teacher(labels: Labels, id2label: dict[int, str], where: str = "data") -> list[int]:
    """Return, for each class of the data, the teacher's output that stands for it.

    A teacher whose classes have only default names (``LABEL_0``) or data whose classes are only numbers are matched
    by number; otherwise by name, in any order and letter case.

    Raises:
        AttnExtError: the teacher has another number of outputs, or a class by another name.
    """
    if len(id2label) != labels.num_outputs:
        theirs = ", ".join(repr(id2label[i]) for i in sorted(id2label))
        ours = ", ".join(repr(n) for n in labels.names) if labels.names else "one number (regression)"
        raise AttnExtError(
            f"field '{where}.labels': the labels don't match the teacher's: {labels.num_outputs} in the data ({ours}), "
            f"{len(id2label)} in the model ({theirs}); use a teacher with the same labels"
        )
    if labels.task == "regression" or labels.generic or all(n == f"LABEL_{i}" for i, n in id2label.items()):
        return list(range(labels.num_outputs))
    numbers = {str(name).casefold(): i for i, name in id2label.items()}
    order = []
    for name in labels.names:
        if name.casefold() not in numbers:
            raise AttnExtError(
                f"field '{where}.labels': the labels don't match the teacher's: {name!r} is not among "
                f"{', '.join(repr(id2label[i]) for i in sorted(id2label))}.{suggest(name, id2label.values())}"
            )
        order.append(numbers[name.casefold()])
    return order
