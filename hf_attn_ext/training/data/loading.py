"""Texts, labelled or plain, from the hub or from files: loading, splitting by group, and label checks.

What leaves this module is checked: every example has a text and, where asked for, a label of one kind. For language
modelling an example is a document; documents are held out whole.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from hf_attn_ext._util.tables import FORMATS, MissingColumnError, check_columns, read_columns
from hf_attn_ext.errors import AttnExtError, first_line, suggest
from hf_attn_ext.training.config import DataConfig

from .labels import LANGUAGE, Labels, parse_labels, read_labels

# text columns of the GLUE tasks; the labels of their test splits are hidden, so `validation` is what scores come from
GLUE_COLUMNS = {
    "cola": ("sentence", None),
    "sst2": ("sentence", None),
    "mrpc": ("sentence1", "sentence2"),
    "stsb": ("sentence1", "sentence2"),
    "qqp": ("question1", "question2"),
    "mnli": ("premise", "hypothesis"),
    "qnli": ("question", "sentence"),
    "rte": ("sentence1", "sentence2"),
    "wnli": ("sentence1", "sentence2"),
}


@dataclasses.dataclass
class Split:
    """Examples of one split: ``texts``, ``pairs`` (or ``None``), ``labels`` (an array, or ``None``), ``groups``."""

    texts: list[str]
    pairs: list[str] | None
    labels: np.ndarray | None
    groups: list[Any] | None

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, rows: np.ndarray) -> Split:
        """Return the examples at ``rows``, in that order."""

        def pick(values: list | None) -> list | None:
            return None if values is None else [values[row] for row in rows]

        labels = None if self.labels is None else self.labels[rows]
        return Split([self.texts[row] for row in rows], pick(self.pairs), labels, pick(self.groups))


@dataclasses.dataclass
class TaskData:
    """A task: its three splits and what its labels are.

    ``test`` is the very ``validation`` object where there is no test split; ``labels`` is ``None`` for plain texts.
    """

    train: Split
    validation: Split
    test: Split
    labels: Labels | None
    name: str

    @property
    def task_labels(self) -> Labels:
        """``labels`` of data that were loaded for a task, not as plain texts."""
        assert self.labels is not None, f"{self.name!r} was loaded without labels"
        return self.labels

    @property
    def reported_on(self) -> str:
        """``"test"``, or ``"validation"`` where the task has no labelled test split."""
        return "validation" if self.test is self.validation else "test"


def load_task_data(config: DataConfig, *, labelled: bool = True, where: str = "data") -> TaskData:
    """Load, check and split the examples that ``config`` names.

    Args:
        config: the ``data`` section.
        labelled: read and check labels; ``False`` for texts of stage 1.
        where: the section's name, for error messages.

    Raises:
        AttnExtError: a file, split, column, text or label that is missing or of the wrong kind, named with its row.

    Example:
        >>> data = load_task_data(DataConfig(train="train.csv", validation="dev.csv"))  # doctest: +SKIP
        >>> len(data.train), data.labels.names  # doctest: +SKIP
    """
    language = config.task == LANGUAGE
    if language:
        _check_language(config, where)
    path, subset = _hub_name(config)
    glue = GLUE_COLUMNS.get(subset or "", (None, None)) if (path or "").split("/")[-1] == "glue" else (None, None)
    files = {"train": config.train, "validation": config.validation, "test": config.test}
    if config.validation is None and glue[0] is not None:
        files["validation"] = "validation_matched" if subset == "mnli" else "validation"

    text = config.text_column or glue[0] or "text"
    pair = config.text_pair_column or (None if config.text_column or language else glue[1])
    label = config.label_column if labelled and not language else None
    columns = list(dict.fromkeys(name for name in (text, pair, config.group_column, label) if name))
    tables = {
        split: _load_table(config, path, subset, names, columns, f"{where}.{split}")
        for split, names in files.items()
        if names is not None
    }
    splits = {
        split: _read_texts(table, text, pair, config.group_column, f"{where}.{split}")
        for split, (table, _) in tables.items()
    }
    labels = Labels(LANGUAGE, []) if labelled and language else None
    if label:
        values = {split: table[label] for split, (table, _) in tables.items()}
        labels, arrays = read_labels(values, config.task, tables["train"][1], config.labels, where)
        for split, array in arrays.items():
            splits[split].labels = array

    _split_train(splits, config, where)
    splits.setdefault("test", splits["validation"])
    limited = {
        "train": _draw(splits["train"], config.max_train_examples, config.split_seed),
        "validation": _draw(splits["validation"], config.max_eval_examples, config.split_seed),
    }
    same = splits["test"] is splits["validation"]
    test = limited["validation"] if same else _draw(splits["test"], config.max_eval_examples, config.split_seed)
    shown = config.path or (config.train if isinstance(config.train, str) else ", ".join(config.train))
    return TaskData(limited["train"], limited["validation"], test, labels, shown)


def _hub_name(config: DataConfig) -> tuple[str | None, str | None]:
    """Split ``path`` into a hub id and a subset; ``(folder, None)`` for a local folder."""
    if config.path is None or Path(config.path).is_dir():
        return config.path, None
    parts = config.path.split("/")
    if parts[0] == "glue" and len(parts) == 2:  # the one id without an owner that everybody writes
        if parts[1] not in [*GLUE_COLUMNS, "mnli_matched", "mnli_mismatched", "ax"]:
            raise AttnExtError(f"glue has no task {parts[1]!r}.{suggest(parts[1], GLUE_COLUMNS)}")
        return "nyu-mll/glue", parts[1]
    if len(parts) > 3 or not all(parts):
        raise AttnExtError(f"field 'data.path': {config.path!r} is no local folder and no hub id owner/name/subset")
    return "/".join(parts[:2]), (parts[2] if len(parts) == 3 else None)


_Table = tuple[dict[str, list[Any]], list[str] | None]  # columns by name, and class names that the data set declares


def _load_table(
    config: DataConfig, path: str | None, subset: str | None, names: str | list[str], columns: list[str], where: str
) -> _Table:
    """Read some columns of one split."""
    names = [names] if isinstance(names, str) else list(names)
    if not names:
        raise AttnExtError(f"field '{where}' names no file and no split")
    local = path is None or Path(path).is_dir()
    try:
        if path is None or local:
            return _load_files(config, [Path(path or "") / name for name in names], columns)
        return _load_from_hub(config, path, subset, names, columns)
    except AttnExtError as error:
        hint = " (hub data sets go into data.path)" if local and not Path(names[0]).suffix else ""
        if isinstance(error, MissingColumnError) and error.names == ["text"] and config.label_column in columns:
            hint = " Texts without labels are for task: language_modeling"
        raise AttnExtError(f"field '{where}': {error}{hint}") from error


def _load_files(config: DataConfig, files: list[Path], columns: list[str]) -> _Table:
    kinds = {FORMATS.get(file.suffix.lower()) for file in files}
    if len(kinds) > 1:
        raise AttnExtError(f"the files must be of one format, got {', '.join(map(str, files))}")
    whole = (config.text_unit or ("file" if config.task == LANGUAGE else "line")) == "file"
    rows = [values for file in files for _, values in read_columns(file, columns, whole)]
    table = {name: [row[index] for row in rows] for index, name in enumerate(columns)}
    label = config.label_column
    if kinds == {"csv"}:
        table = {name: [cell or None for cell in cells] for name, cells in table.items()}
        if label in table:
            table[label] = parse_labels(table[label])
    if kinds != {"parquet"} or label not in table:
        return table, None
    import datasets
    import pyarrow.parquet

    schema = pyarrow.parquet.read_schema(files[0])
    declared = datasets.Features.from_arrow_schema(pyarrow.schema([schema.field(label)], schema.metadata))
    return table, getattr(declared[label], "names", None)


def _load_from_hub(config: DataConfig, path: str, subset: str | None, names: list[str], columns: list[str]) -> _Table:
    import datasets

    try:
        splits = datasets.load_dataset(path, subset, revision=config.revision)
    except Exception as error:
        raise AttnExtError(f"data set {config.path!r} cannot be loaded from the hub: {first_line(error)}") from error
    for name in names:
        if name not in splits:
            raise AttnExtError(
                f"{config.path!r} has no split {name!r}, only {', '.join(splits)}.{suggest(name, splits)}"
            )
    table = datasets.concatenate_datasets([splits[name] for name in names])
    check_columns(columns, table.column_names, repr(config.path))
    class_names = getattr(table.features.get(config.label_column), "names", None)
    return {name: list(table[name]) for name in columns}, class_names


def _check_language(config: DataConfig, where: str) -> None:
    for field in ("labels", "text_pair_column"):
        value = getattr(config, field)
        if value is not None:
            raise AttnExtError(
                f"field '{where}.{field}' is {value!r}, but language_modeling reads single texts only; remove it"
            )


def _read_texts(columns: dict[str, list[Any]], text: str, pair: str | None, group: str | None, where: str) -> Split:
    if not columns[text]:
        raise AttnExtError(f"field '{where}': there are no examples")
    for name in filter(None, (text, pair)):
        for row, value in enumerate(columns[name]):
            if not isinstance(value, str):
                what = "is empty" if value is None else f"is {value!r}, not text"
                raise AttnExtError(f"field '{where}': column {name!r} {what} in example {row + 1}")
    return Split(columns[text], columns[pair] if pair else None, None, columns[group] if group else None)


def _split_train(splits: dict[str, Split], config: DataConfig, where: str) -> None:
    """Take validation and test examples out of ``train`` where the data has none, whole groups at a time."""
    wanted = []
    if "test" not in splits and config.test_fraction > 0:
        wanted.append(("test", config.test_fraction))
    if "validation" not in splits:
        if config.validation_fraction <= 0:
            raise AttnExtError(
                f"field '{where}.validation' is missing and '{where}.validation_fraction' is 0: name held-out data"
            )
        wanted.append(("validation", config.validation_fraction))
    if not wanted:
        return
    train = splits["train"]
    keys = train.groups if train.groups is not None else list(range(len(train)))
    order = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    shuffled = np.random.default_rng([config.split_seed, 1]).permutation(len(order))
    ids = np.array([order[key] for key in keys])
    start = 0
    taken = np.zeros(len(order), dtype=bool)
    for name, fraction in wanted:
        size = max(1, round(fraction * len(order)))
        part = shuffled[start : start + size]
        start += size
        if start >= len(order):
            unit = "groups" if train.groups is not None else "examples"
            raise AttnExtError(f"field '{where}.train' has only {len(order)} {unit}, too few to split off {name}")
        taken[part] = True
        splits[name] = train.take(np.flatnonzero(np.isin(ids, part)))
    splits["train"] = train.take(np.flatnonzero(~taken[ids]))


def _draw(split: Split, limit: int | None, seed: int) -> Split:
    if limit is None or limit >= len(split):
        return split
    rows = np.random.default_rng([seed, 2]).permutation(len(split))[:limit]
    return split.take(np.sort(rows))
