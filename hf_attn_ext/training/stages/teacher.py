"""Open the teacher, a classifier or language model, and its tokenizer; match its classes with the data's."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
)

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.families import attention_modules, is_causal
from hf_attn_ext.integration.base_models.positions import configured_max_tokens
from hf_attn_ext.training.config import ModelConfig
from hf_attn_ext.training.data.encoding import EncodedSplit
from hf_attn_ext.training.data.labels import LANGUAGE, match_teacher
from hf_attn_ext.training.data.loading import TaskData

T = TypeVar("T")


def _opened(action: Callable[[], T], what: str) -> T:
    """Run ``action``; what Transformers raises for a wrong name or a broken file becomes one line."""
    try:
        return action()
    except AttnExtError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        first = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise AttnExtError(f"{what} cannot be opened: {first}") from error


def auto_class(task: str) -> Any:
    """Return the AutoModel class of a task."""
    return AutoModelForCausalLM if task == LANGUAGE else AutoModelForSequenceClassification


def load_tokenizer(config: ModelConfig) -> Any:
    """Return the tokenizer that ``model.tokenizer``, or else ``model.name``, holds."""
    name = config.tokenizer or config.name
    if _looks_local(name) and not Path(name).is_dir():
        raise AttnExtError(
            f"field 'model.{'tokenizer' if config.tokenizer else 'name'}': folder {name!r} does not exist"
        )
    tokenizer = _opened(lambda: AutoTokenizer.from_pretrained(name, revision=config.revision), f"tokenizer of {name!r}")
    # Where the files are missing, Transformers makes a tokenizer without words, and every text becomes unknown tokens.
    if not set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens):
        raise AttnExtError(f"{name!r} has no tokenizer (no vocabulary); save one there, or set model.tokenizer")
    return tokenizer


@dataclasses.dataclass
class Teacher:
    """The arguments with which the teacher is opened.

    Attributes:
        base_config: the transformers configuration, with the task's labels in it.
        head_trained: the checkpoint has a classifier or a language-model head already; else the head is new.
        task: what the model is opened for.
    """

    config: ModelConfig
    base_config: Any
    head_trained: bool
    task: str

    def load(self, folder: Path | None = None) -> PreTrainedModel:
        """Return the model in float32, from ``folder`` (fine-tuned here) or from where the configuration says.

        A new head is drawn from torch's global generator: seed it before.
        """
        name = str(folder) if folder else self.config.name
        revision = None if folder else self.config.revision
        verbosity = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity_error()  # "some weights are newly initialized": that is why we train
        try:
            model = _opened(
                lambda: auto_class(self.task).from_pretrained(
                    name, config=self.base_config, revision=revision, dtype=torch.float32
                ),
                f"model {name!r}",
            )
        finally:
            transformers.logging.set_verbosity(verbosity)
        if self.task == LANGUAGE:
            check_causal(model, name)
        return model


def open_teacher(config: ModelConfig, data: TaskData, max_length: int) -> Teacher:
    """Read the teacher's configuration and bring labels together.

    A teacher with a trained classifier keeps its classes; the data's label arrays are renumbered to them. Otherwise
    the teacher gets a new head with the data's classes.

    Args:
        config: the ``model`` section.
        data: the task; its label arrays may be renumbered in place.
        max_length: the longest sequence it will be given.

    Raises:
        AttnExtError: no such model, a converted one, too few positions for ``max_length``, labels that don't match.
    """
    name = config.name
    if _looks_local(name) and not Path(name).is_dir():
        raise AttnExtError(f"field 'model.name': folder {name!r} does not exist")
    base_config = _opened(lambda: AutoConfig.from_pretrained(name, revision=config.revision), f"model {name!r}")
    if getattr(base_config, "attn_ext", None) is not None:
        raise AttnExtError(f"field 'model.name': {name!r} is converted already; the teacher must be a base model")
    _check_length(base_config, name, max_length)
    if config.dropout is not None:
        for field, value in base_config.to_dict().items():
            if "dropout" in field and isinstance(value, float):
                setattr(base_config, field, config.dropout)
    labels = data.task_labels
    architectures = base_config.architectures or []
    if labels.task == LANGUAGE:
        tied = bool(architectures) and bool(getattr(base_config, "tie_word_embeddings", False))
        return Teacher(config, base_config, tied or any(is_language_model(entry) for entry in architectures), LANGUAGE)
    head_trained = any("ForSequenceClassification" in entry for entry in architectures)
    _align_classes(base_config, data, head_trained)
    return Teacher(config, base_config, head_trained, labels.task)


def _align_classes(base_config: PreTrainedConfig, data: TaskData, head_trained: bool) -> None:
    """Renumber the data's labels to a trained head's classes, or give a new head the data's classes."""
    labels = data.task_labels
    if head_trained:
        order = match_teacher(labels, {int(i): str(label) for i, label in (base_config.id2label or {}).items()})
        if order != list(range(len(order))):
            for split in {id(s): s for s in (data.train, data.validation, data.test)}.values():
                split.labels = torch.tensor(order)[torch.from_numpy(split.labels)].numpy()
    else:
        base_config.num_labels = labels.num_outputs
        base_config.problem_type = "regression" if labels.task == "regression" else "single_label_classification"
        names = labels.names if labels.task == "classification" and not labels.generic else []
        if names:
            base_config.id2label = dict(enumerate(names))
            base_config.label2id = {label: i for i, label in enumerate(names)}


def is_language_model(class_name: str) -> bool:
    """Return whether a class is a causal language model, by its name."""
    return class_name.endswith(("LMHeadModel", "ForCausalLM"))


def check_causal(model: PreTrainedModel, name: str) -> None:
    """Raise AttnExtError for a model that is not causal: its perplexity would mean nothing."""
    modules = [module for _, module in attention_modules(model)]
    if modules and not any(map(is_causal, modules)):
        raise AttnExtError(
            f"model {name!r} ({model.config.model_type}) is not causal: its tokens see those that they predict. "
            "task: language_modeling needs a decoder, such as gpt2"
        )


def check_fits(base_config: Any, name: str, encoded: EncodedSplit) -> None:
    """Raise AttnExtError for texts that the model has no embeddings for: a token id or a position out of range.

    Args:
        base_config: the model's configuration.
        name: what the message calls the model.
        encoded: the tokenised texts.
    """
    largest, longest = int(encoded.ids.max()), int(encoded.lengths.max())
    vocabulary, positions = getattr(base_config, "vocab_size", None), configured_max_tokens(base_config)
    if vocabulary is not None and largest >= vocabulary:
        raise AttnExtError(
            f"this tokenizer is not that of model {name!r}: it gives the token id {largest}, and the model knows ids "
            f"below {vocabulary}"
        )
    if positions is not None and longest > positions:
        raise AttnExtError(
            f"a text has {longest} tokens, but model {name!r} has only {positions} positions: lower the max length"
        )


def _check_length(base_config: Any, name: str, max_length: int) -> None:
    positions = configured_max_tokens(base_config)
    if positions is not None and max_length > positions:
        raise AttnExtError(f"max_length is {max_length}, but model {name!r} has only {positions} positions")


def _looks_local(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.count("/") > 1
