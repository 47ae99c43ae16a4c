"""``DistillConfig``: the settings of a distillation run, field by field.

The same dataclasses are read from YAML (:func:`hf_attn_ext.training.load_config`), changed on the command line (``--set
section.field=value``), and built in Python. A field that does not exist, or has the wrong type, is an error that
names it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from hf_attn_ext._util.settings import from_mapping, load_settings
from hf_attn_ext.config import AttnExtConfig
from hf_attn_ext.errors import AttnExtError, suggest

Task = Literal["classification", "regression", "language_modeling"]


@dataclasses.dataclass
class ModelConfig:
    """The teacher to start from.

    Attributes:
        name: hub id or local folder of a model that is not converted.
        tokenizer: hub id or folder of the tokenizer, where it is not the model's.
        revision: branch, tag or commit on the hub.
        dropout: overrides every dropout probability of the model's configuration; ``None`` keeps them.
        activation_checkpointing: recompute activations in stage 2 and teacher fine-tuning to save memory.
    """

    name: str
    tokenizer: str | None = None
    revision: str | None = None
    dropout: float | None = None
    activation_checkpointing: bool = False


@dataclasses.dataclass
class DataConfig:
    """Labelled texts, or plain ones for language modelling, from the hub or from files.

    Attributes:
        path: a hub id, with the subset after a slash where there is one (``glue/sst2``, ``user/name``,
            ``user/name/subset``), or a local folder that the files below are relative to; ``None`` for plain files.
        train: split name on the hub, or file(s) ending in .csv, .tsv, .json, .jsonl, .txt or .parquet.
        validation: likewise; chooses the best checkpoint. ``None`` takes ``validation_fraction`` out of ``train``.
        test: likewise; all reported scores come from it. ``None`` reports on ``validation``.
        text_column: column of the text; ``None``: the known one of a GLUE task, else ``text``.
        text_pair_column: column of a second text; ``None``: the known one of a GLUE task, else no pair.
        label_column: column of the label.
        group_column: examples with the same value here (a movie, an author) are never split between ``train`` and
            what is taken out of it, and never packed into one sequence (but for language modelling, see ``packing``).
        task: ``auto`` reads numbers with a fraction as regression and anything else as classification;
            ``language_modeling`` reads no labels: a causal model predicts each text, token by token.
        labels: the label names in order, where neither the data nor a fine-tuned teacher says.
        metric: what chooses the best checkpoint and what the gap is measured in; ``None``: the task's usual one.
        max_length: sequences are cut to this many tokens, special tokens included.
        packing: for language modelling: the texts are joined and cut into sequences of ``max_length`` tokens, which
            cross the borders of texts; ``False`` makes each text a sequence of its own, cut to ``max_length``.
        borders: for language modelling: put the tokenizer's tokens for the beginning and the end around each text;
            ``False`` joins texts as they are, where they are the lines of a longer one (WikiText).
        text_unit: what one text of a .txt file is, a ``line`` or the whole ``file``; ``None``: the file for language
            modelling, else a line.
        validation_fraction: share of ``train`` (of its groups, if ``group_column``) taken out when there is no
            ``validation``.
        test_fraction: likewise for ``test``; 0 takes none.
        max_train_examples: use only this many training examples, drawn by the seed.
        max_eval_examples: use only this many validation and test examples, drawn by the seed.
        split_seed: determines what is taken out of ``train`` and drawn, whatever the run's ``seed``.
        revision: branch, tag or commit of a data set on the hub.
    """

    path: str | None = None
    train: str | list[str] = "train"
    validation: str | list[str] | None = None
    test: str | list[str] | None = None
    text_column: str | None = None
    text_pair_column: str | None = None
    label_column: str = "label"
    group_column: str | None = None
    task: Literal["auto", Task] = "auto"
    labels: list[str] | None = None
    metric: str | None = None
    max_length: int = 128
    packing: bool = True
    borders: bool = True
    text_unit: Literal["line", "file"] | None = None
    validation_fraction: float = 0.1
    test_fraction: float = 0.0
    max_train_examples: int | None = None
    max_eval_examples: int | None = None
    split_seed: int = 0
    revision: str | None = None


@dataclasses.dataclass
class TrainConfig:
    """The settings of every trained stage. A *step* is one update of the weights.

    Attributes:
        steps: number of steps; 0 skips the stage; ``None`` computes it from ``epochs``.
        epochs: passes over the training data, used where ``steps`` is ``None``.
        batch_size: sequences in one forward pass of one process.
        accumulate: forward passes per step. One step sees batch_size x accumulate x processes sequences.
        lr: peak learning rate (Adam).
        weight_decay: decoupled weight decay, applied to matrices only.
        beta1: Adam's first decay rate.
        beta2: Adam's second decay rate.
        eps: Adam's epsilon. At the usual 1e-8, rounding noise in gradients that are nearly 0 becomes whole steps, and
            runs on other numbers of processes drift apart.
        schedule: shape of the learning rate after the warm-up; ``cosine`` and ``linear`` end at 0.
        warmup: share of the steps with a linearly rising learning rate.
        max_grad_norm: gradients are scaled down to this norm; 0 leaves them.
        evaluate_every: steps between evaluations on held-out data; ``None``: ten times in the stage. The last step
            is always evaluated.
        checkpoint_every: steps between checkpoints; ``None``: at evaluations. A new best is always written.
        keep_checkpoints: number of most recent checkpoints kept, in addition to the best.
        group_by_length: batches of sequences of similar length: less padding, same data.
    """

    steps: int | None = None
    epochs: float = 1.0
    batch_size: int = 32
    accumulate: int = 1
    lr: float = 1e-3
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: float = 0.0
    max_grad_norm: float = 0.0
    evaluate_every: int | None = None
    checkpoint_every: int | None = None
    keep_checkpoints: int = 1
    group_by_length: bool = False


@dataclasses.dataclass
class Stage1Config(TrainConfig):
    """Attention transfer: every feature map learns its softmax attention; all other weights are frozen.

    Attributes:
        cross_entropy: weight of the row cross-entropy between softmax and kernel weights (method [P]); 0 leaves it out.
        output_error: weight of the relative squared error of each head's output; 0 leaves it out.
        queries_per_sequence: a random subset of this many queries per sequence enters the loss (all keys do);
            ``None`` takes all. For long inputs.
        packing: join the texts (of a group) to full sequences of ``max_length`` tokens, without padding. Language
            models have ``data.packing`` instead.
        max_length: tokens of a sequence in stage 1; ``None``: as in ``data``.
        calibration_batches: steps whose sequences' query and key statistics initialise the feature maps; 0: none.
        eval_sequences: held-out sequences that the transfer is measured on.
        affine_lr_scale: factor on ``lr`` for the affine maps of queries and keys, where the kernel has them.
    """

    steps: int | None = 1000
    cross_entropy: float = 1.0
    output_error: float = 1.0
    queries_per_sequence: int | None = None
    packing: bool = False
    max_length: int | None = None
    calibration_batches: int = 8
    eval_sequences: int = 256
    affine_lr_scale: float = 0.2


@dataclasses.dataclass
class TaskConfig(TrainConfig):
    """Fine-tuning on the task: used for the teacher (section ``teacher``; ``steps: 0`` takes it as it is).

    Attributes:
        lr: peak learning rate of the model's own weights.
    """

    epochs: float = 3.0
    lr: float = 2e-5
    schedule: Literal["cosine", "linear", "constant"] = "linear"
    warmup: float = 0.06
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0


@dataclasses.dataclass
class Stage2Config(TaskConfig):
    """Fine-tuning of the converted model on the task.

    Attributes:
        feature_map_lr: peak learning rate of the feature maps; ``None``: ``lr``; 0 freezes them.
        distillation: share of the loss that follows the teacher's logits instead of the labels, 0 to 1
            (Kullback-Leibler divergence at ``temperature``; squared difference for regression). The logits of a
            language model are too many to store: the teacher then runs together with the student, on the same batches.
        temperature: both logits are divided by it before the softmax; the loss is multiplied by its square.
    """

    feature_map_lr: float | None = None
    distillation: float = 0.0
    temperature: float = 2.0


@dataclasses.dataclass
class OutputConfig:
    """The output folder and what is written to it.

    Attributes:
        folder: the run's folder: ``model/`` (the converted model), ``results.json``, ``metrics.jsonl``, ``teacher/``
            (if fine-tuned here), ``checkpoints/``. A run that was killed continues from here when it is started again.
        log_every: steps between lines of training losses in ``metrics.jsonl``.
        progress: show progress bars.
    """

    folder: str
    log_every: int = 10
    progress: bool = True


@dataclasses.dataclass
class TrackingConfig:
    """Experiment trackers, in addition to ``metrics.jsonl``.

    Attributes:
        trackers: accelerate's names, such as ``[tensorboard, wandb]``; each must be installed.
        project: the project's name there.
    """

    trackers: list[str] = dataclasses.field(default_factory=list)
    project: str = "hf_attn_ext"


MEASURED = ("teacher", "converted", "stage1", "stage2")


@dataclasses.dataclass
class DistillConfig:
    """A whole distillation run: teacher, conversion, stage 1, stage 2.

    Attributes:
        model: the teacher.
        output: the output folder.
        data: the task's data.
        kernel: the kernel, its number of features, and the layers that use it.
        stage1_data: the texts for stage 1 (labels are not read); ``None`` uses those of ``data``.
        teacher: fine-tuning of the teacher before conversion; off (``steps: 0``) by default.
        stage1: attention transfer.
        stage2: fine-tuning of the converted model.
        tracking: experiment trackers.
        seed: determines new heads, feature maps, data order and dropout.
        control: also train a control without attention (kernel ``uniform``, the same stage 2), and report which
            share of the gap between control and teacher the kernel closes.
        measure: the steps to evaluate on the reported split, of ``teacher``, ``converted``, ``stage1`` and ``stage2``.
            The control is always evaluated; the gap requires ``teacher`` and ``stage2``. With long inputs, evaluation
            can take longer than training.
        mixed_precision: ``no``, ``bf16`` or ``fp16``; ``auto``: bf16 if the device has bf16 arithmetic, else
            ``no``; ``None``: the setting of ``accelerate launch``.
        processes: the required number of processes; ``None`` accepts any.

    Example:
        >>> config = DistillConfig(ModelConfig("roberta-base"), OutputConfig("runs/sst2"), DataConfig("glue/sst2"))
        >>> config.stage1.lr
        0.001
    """

    model: ModelConfig
    output: OutputConfig
    data: DataConfig
    kernel: AttnExtConfig = dataclasses.field(default_factory=AttnExtConfig)
    stage1_data: DataConfig | None = None
    teacher: TaskConfig = dataclasses.field(default_factory=lambda: TaskConfig(steps=0))
    stage1: Stage1Config = dataclasses.field(default_factory=Stage1Config)
    stage2: Stage2Config = dataclasses.field(default_factory=Stage2Config)
    tracking: TrackingConfig = dataclasses.field(default_factory=TrackingConfig)
    seed: int = 0
    control: bool = False
    measure: list[str] = dataclasses.field(default_factory=lambda: list(MEASURED))
    mixed_precision: Literal["auto", "no", "bf16", "fp16"] | None = None
    processes: int | None = None

    def __post_init__(self) -> None:
        check_values(self)

    def to_dict(self) -> dict[str, Any]:
        """Return nested plain dictionaries, ready for JSON or YAML."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any], where: str = "distill config") -> DistillConfig:
        """Build from nested dictionaries; a wrong field raises :class:`AttnExtError` naming it."""
        return from_mapping(cls, mapping, where)


def load_config(path: str | Path, overrides: Iterable[str] = ()) -> DistillConfig:
    """Read a YAML file into a :class:`DistillConfig`.

    Args:
        path: the file.
        overrides: settings such as ``"stage1.steps=10"`` that win over the file.

    Raises:
        AttnExtError: no such file, not valid YAML, an unknown field (the nearest name is suggested), or a value of the
            wrong type.

    Example:
        >>> load_config("configs/distill/quick.yaml", ["seed=1"]).seed  # doctest: +SKIP
        1
    """
    return load_settings(DistillConfig, path, overrides)


_LIMITS = {  # dotted field, where * is any section: (smallest, largest)
    "data.max_length": (4, None),
    "data.validation_fraction": (0, 0.9),
    "data.test_fraction": (0, 0.9),
    "data.max_train_examples": (1, None),
    "data.max_eval_examples": (1, None),
    "model.dropout": (0, 0.99),
    "train.steps": (0, None),
    "train.epochs": (0, None),
    "train.batch_size": (1, None),
    "train.accumulate": (1, None),
    "train.lr": (0, None),
    "train.weight_decay": (0, None),
    "train.beta1": (0, 0.9999),
    "train.beta2": (0, 0.999999),
    "train.eps": (0, 1),
    "train.warmup": (0, 1),
    "train.max_grad_norm": (0, None),
    "train.evaluate_every": (1, None),
    "train.checkpoint_every": (1, None),
    "train.keep_checkpoints": (1, None),
    "stage1.cross_entropy": (0, None),
    "stage1.output_error": (0, None),
    "stage1.queries_per_sequence": (1, None),
    "stage1.max_length": (4, None),
    "stage1.calibration_batches": (0, None),
    "stage1.eval_sequences": (1, None),
    "stage1.affine_lr_scale": (0, None),
    "stage2.feature_map_lr": (0, None),
    "stage2.distillation": (0, 1),
    "stage2.temperature": (0.01, None),
    "output.log_every": (1, None),
}


def check_values(config: DistillConfig) -> None:
    """Raise :class:`AttnExtError` for a value outside its range, naming the dotted field."""
    for section in dataclasses.fields(config):
        _check_limits(section.name, getattr(config, section.name))
    if not config.stage1.cross_entropy and not config.stage1.output_error and config.stage1.steps != 0:
        raise AttnExtError("fields 'stage1.cross_entropy' and 'stage1.output_error' are both 0: nothing to learn")
    for name in config.measure:
        if name not in MEASURED:
            raise AttnExtError(
                f"field 'measure': unknown step {name!r}.{suggest(name, MEASURED)} Known: {', '.join(MEASURED)}"
            )
    if config.processes is not None and config.processes < 1:
        raise AttnExtError(f"field 'processes' must be at least 1, got {config.processes!r}")
    if isinstance(config.seed, bool) or not 0 <= config.seed < 2**31:
        raise AttnExtError(f"field 'seed' must be between 0 and 2**31 - 1, got {config.seed!r}")


def _check_limits(name: str, section: object) -> None:
    kinds = {name, *({"train"} if isinstance(section, TrainConfig) else ())}
    kinds |= {"data"} if isinstance(section, DataConfig) else set()
    for limit, (low, high) in _LIMITS.items():
        kind, field = limit.split(".")
        number = getattr(section, field, None) if kind in kinds else None
        if number == math.inf:
            raise AttnExtError(f"field '{name}.{field}' must be finite, got {number!r}")
        if number is not None and not (number >= low and (high is None or number <= high)):
            span = f"at least {low}" if high is None else f"between {low} and {high}"
            raise AttnExtError(f"field '{name}.{field}' must be {span}, got {number!r}")
