"""All sequences of a run: the task's splits, and what stage 1 learns from and is measured on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from hf_attn_ext.training.config import DistillConfig

from .encoding import EncodedSplit, encode, encode_documents, pack
from .labels import LANGUAGE
from .loading import Split, TaskData, load_task_data


@dataclasses.dataclass
class Inputs:
    """Encoded splits; ``test`` is the very ``validation`` object where the task has no test split."""

    train: EncodedSplit
    validation: EncodedSplit
    test: EncodedSplit
    stage1_train: EncodedSplit
    stage1_held_out: EncodedSplit

    def __iter__(self) -> Iterator[EncodedSplit]:
        return iter((self.train, self.validation, self.test, self.stage1_train, self.stage1_held_out))


def load_texts(config: DistillConfig) -> tuple[TaskData, TaskData | None]:
    """Read the task's data, and the texts of stage 1 where they are others."""
    data = load_task_data(config.data)
    if config.stage1_data is None:
        return data, None
    stage1 = config.stage1_data
    if data.task_labels.task == LANGUAGE:
        stage1 = dataclasses.replace(stage1, task=LANGUAGE)
    return data, load_task_data(stage1, labelled=False, where="stage1_data")


def stage1_length(config: DistillConfig) -> int:
    """Return how many tokens a sequence of stage 1 has at most."""
    return config.stage1.max_length or (config.stage1_data or config.data).max_length


def encode_all(config: DistillConfig, data: TaskData, texts: TaskData | None, tokenizer: Any) -> Inputs:
    """Encode all splits.

    Args:
        config: the run's configuration.
        data: the task's data.
        texts: those of stage 1, where they are others.
        tokenizer: the model's.
    """
    language = data.task_labels.task == LANGUAGE

    def task_split(split: Split) -> EncodedSplit:
        length = config.data.max_length
        if language:
            return encode_documents(split, tokenizer, length, config.data.packing, config.data.borders)
        return encode(split, tokenizer, length)

    def stage1_split(split: Split) -> EncodedSplit:
        length, section = stage1_length(config), config.stage1_data or config.data
        if language:
            where = "stage1_data" if config.stage1_data else "data"
            return encode_documents(split, tokenizer, length, section.packing, section.borders, where)
        return (pack if config.stage1.packing else encode)(split, tokenizer, length)

    train, validation = task_split(data.train), task_split(data.validation)
    same = data.test is data.validation
    source = texts or data
    if language and texts is None and stage1_length(config) == config.data.max_length:
        stage1 = (train, validation)  # large texts: once is enough
    else:
        stage1 = (stage1_split(source.train), stage1_split(source.validation))
    return Inputs(train, validation, validation if same else task_split(data.test), *stage1)
