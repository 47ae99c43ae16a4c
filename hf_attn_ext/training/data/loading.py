"""Texts, labelled or plain, from the hub or from files: loading, splitting by group, and label checks.

What leaves this module is checked: every example has a text and, where asked for, a label of one kind. For language
modelling an example is a document; documents are held out whole.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import numpy as np

from hf_attn_ext.errors import AttnExtError, first_line, suggest
from hf_attn_ext.training.config import DataConfig

from .labels import LANGUAGE, Labels, read_labels

FILE_FORMATS = {
    ".csv": "csv",
    ".tsv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".txt": "text",
    ".parquet": "parquet",
}

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
        return Split(pick(self.texts), pick(self.pairs), labels, pick(self.groups))


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
    validation_names = config.validation
    if validation_names is None and glue[0] is not None:
        validation_names = "validation_matched" if subset == "mnli" else "validation"

    tables = {"train": _load_table(config, path, subset, config.train, f"{where}.train")}
    if validation_names is not None:
        tables["validation"] = _load_table(config, path, subset, validation_names, f"{where}.validation")
    if config.test is not None:
        tables["test"] = _load_table(config, path, subset, config.test, f"{where}.test")

    text = config.text_column or glue[0] or "text"
    pair = config.text_pair_column or (None if config.text_column or language else glue[1])
    splits = {name: _read_texts(t, text, pair, config.group_column, f"{where}.{name}") for name, t in tables.items()}
    labels = Labels(LANGUAGE, []) if labelled and language else None
    if labelled and not language:
        columns = {name: _labels_of(table, config.label_column, f"{where}.{name}") for name, table in tables.items()}
        feature = tables["train"].features[config.label_column]
        names = getattr(feature, "names", None)
        labels, arrays = read_labels(columns, config.task, names, config.labels, where)
        for name, array in arrays.items():
            splits[name].labels = array

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


def _load_table(config: DataConfig, path: str | None, subset: str | None, names: str | list[str], where: str):
    """Load one split as a ``datasets.Dataset``."""
    import datasets

    names = [names] if isinstance(names, str) else list(names)
    if not names:
        raise AttnExtError(f"field '{where}' names no file and no split")
    local = path is None or Path(path).is_dir()
    if not local:
        return _load_from_hub(datasets, config, path, subset, names, where)
    files = [Path(path) / name if path else Path(name) for name in names]
    kind = _format_of(files, where)
    options: dict[str, Any] = {}
    if kind == "csv":
        # only an empty cell is missing: pandas would read the words "None" or "NA" of a text as missing too
        options = {"keep_default_na": False, "na_values": [""]}
        if files[0].suffix.lower() == ".tsv":
            options["sep"] = "\t"
    unit = config.text_unit or ("file" if config.task == LANGUAGE else "line")
    if kind == "text" and unit == "file":
        options = {"sample_by": "document"}
    with _Quiet(datasets):
        try:
            return datasets.load_dataset(
                kind, data_files={"data": [str(file) for file in files]}, split="data", **options
            )
        except (datasets.exceptions.DatasetGenerationError, ValueError, OSError) as error:
            cause = error.__cause__ or error
            if "corresponds to no data" in str(cause):
                raise AttnExtError(f"field '{where}': {', '.join(map(str, files))}: there are no examples") from error
            line = str(cause).strip().splitlines()[-1] if str(cause).strip() else type(cause).__name__
            raise AttnExtError(f"field '{where}': cannot read {', '.join(map(str, files))}: {line}") from error


def _format_of(files: list[Path], where: str) -> str:
    """Return the format of existing files, all of the same."""
    for file in files:
        if not file.is_file():
            extra = " (hub data sets go into data.path)" if not file.suffix else ""
            raise AttnExtError(f"field '{where}': file {str(file)!r} does not exist{extra}")
        if file.suffix.lower() not in FILE_FORMATS:
            raise AttnExtError(f"field '{where}': {str(file)!r} must end in one of {', '.join(FILE_FORMATS)}")
    formats = {FILE_FORMATS[file.suffix.lower()] for file in files}
    if len(formats) > 1:
        raise AttnExtError(f"field '{where}' mixes file formats: {', '.join(map(str, files))}")
    return formats.pop()


def _load_from_hub(datasets, config: DataConfig, path: str, subset: str | None, names: list[str], where: str):
    try:
        with _Quiet(datasets, progress=True):
            table = datasets.load_dataset(path, subset, revision=config.revision)
    except Exception as error:
        raise AttnExtError(f"data set {config.path!r} cannot be loaded from the hub: {first_line(error)}") from error
    for name in names:
        if name not in table:
            raise AttnExtError(
                f"field '{where}': {config.path!r} has no split {name!r}, only {', '.join(table)}."
                f"{suggest(name, table)}"
            )
    parts = [table[name] for name in names]
    return parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)


class _Quiet:
    """Keep ``datasets`` from printing progress bars for small local files."""

    def __init__(self, datasets, progress: bool = False):
        self.datasets, self.progress = datasets, progress

    def __enter__(self) -> None:
        self.enabled = self.datasets.utils.is_progress_bar_enabled()
        self.level = logging.getLogger("datasets").level
        if not self.progress:
            self.datasets.utils.disable_progress_bar()
            logging.getLogger("datasets").setLevel(logging.CRITICAL)

    def __exit__(self, *exc: object) -> None:
        if self.enabled:
            self.datasets.utils.enable_progress_bar()
        logging.getLogger("datasets").setLevel(self.level)


def _column(table, name: str, where: str) -> list[Any]:
    if name not in table.column_names:
        raise AttnExtError(
            f"field '{where}': no column {name!r}, only {', '.join(table.column_names)}."
            f"{suggest(name, table.column_names)}"
        )
    return list(table[name])


def _labels_of(table, name: str, where: str) -> list[Any]:
    try:
        return _column(table, name, where)
    except AttnExtError as error:
        if set(table.column_names) != {"text"}:
            raise
        raise AttnExtError(f"{error} Texts without labels are for task: language_modeling") from None


def _check_language(config: DataConfig, where: str) -> None:
    for field in ("labels", "text_pair_column"):
        value = getattr(config, field)
        if value is not None:
            raise AttnExtError(f"field '{where}.{field}' is {value!r}, but language_modeling reads single texts only")


def _read_texts(table, text: str, pair: str | None, group: str | None, where: str) -> Split:
    if len(table) == 0:
        raise AttnExtError(f"field '{where}': there are no examples")
    columns = [_column(table, name, where) for name in (text, pair) if name]
    for name, values in zip((text, pair), columns, strict=False):
        for row, value in enumerate(values):
            if not isinstance(value, str):
                what = "is empty" if value is None else f"is {value!r}, not text"
                raise AttnExtError(f"field '{where}': column {name!r} {what} in example {row + 1}")
    groups = _column(table, group, where) if group else None
    return Split(columns[0], columns[1] if pair else None, None, groups)


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
            raise AttnExtError(f"field '{where}.train' has only {len(order)} {unit}: too few to take {name} out")
        taken[part] = True
        splits[name] = train.take(np.flatnonzero(np.isin(ids, part)))
    splits["train"] = train.take(np.flatnonzero(~taken[ids]))


def _draw(split: Split, limit: int | None, seed: int) -> Split:
    if limit is None or limit >= len(split):
        return split
    rows = np.random.default_rng([seed, 2]).permutation(len(split))[:limit]
    return split.take(np.sort(rows))
