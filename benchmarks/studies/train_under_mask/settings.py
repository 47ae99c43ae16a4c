"""What a file for ``train_under_mask.py`` says, checked before a model is opened, and the settings a run keeps."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from pathlib import Path
from typing import Any

from transformers import TrainingArguments
from transformers.integrations import get_reporting_integration_callbacks

import hf_attn_ext as hax
from hf_attn_ext._util.files import read_json
from hf_attn_ext._util.settings import apply_overrides, from_mapping, read_mapping
from hf_attn_ext._util.tables import FORMATS
from hf_attn_ext.errors import AttnExtError, suggest
from hf_attn_ext.hasse import masks
from hf_attn_ext.training import DataConfig

MASKS = ("block_two_stream", "butterfly")
REFUSED = {  # fields of TrainingArguments that would go against what the command does
    "output_dir": "it is OUT/checkpoints; set out instead",
    "resume_from_checkpoint": "the command continues from the newest checkpoint under OUT without it",
    "push_to_hub": "the model is written to OUT/model; push it from there when it is as you want it",
    "save_only_model": "such checkpoints have no optimizer state, so a run cannot continue from them",
    "label_names": "the collator says where the labels are",
    "batch_eval_metrics": "the held-out loss is one number over all labels",
    "prediction_loss_only": "the held-out loss is computed from the predictions",
    "eval_do_concat_batches": "the held-out loss is one number over all labels",
}
LONGER = ("max_steps", "num_train_epochs")  # may grow in a run that is there
FREE = re.compile(r"log(ging)?_.*|save_.*|report_to|run_name|project|trackio_.*|disable_tqdm")  # may change in it


@dataclasses.dataclass
class MaskTraining:
    """What the YAML file says.

    Attributes:
        model: a folder or hub id: a causal language model for block_two_stream, a masked one for butterfly.
        mask: ``name``, the mask's options without its length, and ``backend`` as for ``set_mask``.
        out: folder of everything that is written.
        data: plain texts, fields of ``hf_attn_ext.training.DataConfig``; ``task`` need not be given.
        training: fields of ``transformers.TrainingArguments``, but for those of ``REFUSED``.
        kernel: fields of ``hf_attn_ext.AttnExtConfig``: convert first; None: softmax.
        prepare: the command that makes the model's and the texts' folders; said where one is missing.
    """

    model: str
    mask: dict[str, Any]
    out: str
    data: dict[str, Any]
    training: dict[str, Any] = dataclasses.field(default_factory=dict)
    kernel: dict[str, Any] | None = None
    prepare: str | None = None

    @property
    def blocks(self) -> bool:
        """Return whether the mask is block two-stream."""
        return self.mask["name"] == "block_two_stream"

    def missing(self, folder: str) -> str:
        """What to do about a folder that is not there."""
        return f"; to make it: {self.prepare}" if self.prepare and not Path(folder).exists() else ""


def read_config(path: str, overrides: list[str]) -> MaskTraining:
    """Read the file and the settings of ``--set``; raise AttnExtError for what does not fit."""
    config = from_mapping(MaskTraining, apply_overrides(read_mapping(path), overrides), where=path)
    name = config.mask.get("name")
    if name not in MASKS:
        raise AttnExtError(f"{path}: mask.name must be one of {', '.join(MASKS)}, got {name!r}.{suggest(name, MASKS)}")
    known = ["name", *list(inspect.signature(getattr(masks, name)).parameters)[1:], "backend"]
    wrong = next((option for option in config.mask if option not in known), None)
    if wrong is not None:
        raise AttnExtError(f"{path}: unknown field 'mask.{wrong}'; {name} has {', '.join(known)}")
    if not config.out.strip():
        raise AttnExtError(f"{path}: out must name a folder, got {config.out!r}")
    return config


def data_config(config: MaskTraining, where: str) -> Any:
    """The texts' DataConfig, whose folder is there."""
    task = "language_modeling"
    if config.data.get("task", task) != task:
        raise AttnExtError(f"{where}: data.task must be {task} or left out, got {config.data['task']!r}")
    data = from_mapping(DataConfig, {**config.data, "task": task}, where=where, _path="data")
    if data.max_length < 2:
        raise AttnExtError(f"{where}: data.max_length must be at least 2, got {data.max_length}")
    files = isinstance(data.train, list) or Path(data.train).suffix in FORMATS
    if data.path is not None and files and not Path(data.path).is_dir():
        raise AttnExtError(f"{where}: data.path: there is no folder {data.path!r}{config.missing(data.path)}")
    return data


def kernel_config(config: MaskTraining) -> Any:
    """The AttnExtConfig to convert with, or None."""
    return None if config.kernel is None else hax.AttnExtConfig.from_dict(config.kernel, where="kernel")


def training_arguments(config: MaskTraining, where: str) -> tuple[Any, float]:
    """The Trainer's arguments, and the label smoothing, which is LabelLoss's business instead."""
    for name in REFUSED:
        if name in config.training and config.training[name] not in (None, False):
            raise AttnExtError(f"{where}: training.{name} is not for this command: {REFUSED[name]}")
    given = {"report_to": "none", "save_total_limit": 2, **config.training}
    for name, value in given.items():
        if value is False and name.endswith("_strategy"):
            given[name] = "no"  # YAML reads an unquoted no as false
    if given.get("load_best_model_at_end") or given.get("save_strategy") == "best":
        given.setdefault("metric_for_best_model", "label_loss")
    given["output_dir"] = str(Path(config.out) / "checkpoints")
    smoothing = given.pop("label_smoothing_factor", 0.0)
    if isinstance(smoothing, bool) or not isinstance(smoothing, int | float) or not 0 <= smoothing < 1:
        raise AttnExtError(
            f"{where}: training.label_smoothing_factor must be a number from 0 to below 1, got {smoothing!r}"
        )
    try:
        arguments = from_mapping(TrainingArguments, given, where=where, _path="training")
        get_reporting_integration_callbacks(arguments.report_to)
    except AttnExtError:
        raise
    except (ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise AttnExtError(f"{where}: training: {error or type(error).__name__}") from None
    _check_numbers(arguments, where)
    return arguments, float(smoothing)


def _check_numbers(arguments: Any, where: str) -> None:
    """What TrainingArguments takes and the Trainer stumbles over, or divides by."""
    for name in ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"):
        if getattr(arguments, name) < 1:
            raise AttnExtError(f"{where}: training.{name} must be at least 1, got {getattr(arguments, name)}")
    for name in ("learning_rate", "num_train_epochs"):
        if not 0 < getattr(arguments, name) < math.inf:
            raise AttnExtError(f"{where}: training.{name} must be a number above 0, got {getattr(arguments, name)}")
    if arguments.max_steps < 1 and arguments.max_steps != -1:
        raise AttnExtError(
            f"{where}: training.max_steps must be at least 1, or -1 to count epochs, got {arguments.max_steps}"
        )
    if not 0 <= arguments.seed < 2**32:
        raise AttnExtError(f"{where}: training.seed must be from 0 to below 2**32, got {arguments.seed}")
    if arguments.n_gpu > 1:
        raise AttnExtError(
            f"one process was started for {arguments.n_gpu} GPUs; start one a GPU (accelerate launch --multi_gpu), or "
            "set CUDA_VISIBLE_DEVICES=0"
        )


def checkpoint_of(out: Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest whole checkpoint and its state; one whose state is not written yet is not whole."""
    states = {int(path.parent.name.split("-")[-1]): path for path in out.glob("checkpoints/checkpoint-*/*_state.json")}
    states = {step: path for step, path in states.items() if path.name == "trainer_state.json"}
    return (states[max(states)].parent, read_json(states[max(states)])) if states else None


def settings_of(config: MaskTraining, data: Any, processes: int) -> dict[str, Any]:
    """What settles a run's result, as plain values, with the defaults where they matter."""
    settings = {
        "model": config.model,
        "data": dataclasses.asdict(data),
        "kernel": config.kernel,
        "processes": processes,
    }
    return {**settings, "mask": {"backend": "sdpa", **config.mask}, "training": config.training}


def check_settings(out: Path, settings: dict[str, Any]) -> None:
    """Raise AttnExtError where the folder holds a run with other settings than these."""
    if checkpoint_of(out) is None and not (out / "results.json").is_file():
        return
    path = out / "settings.json"
    if not path.is_file():
        raise AttnExtError(f"{str(out)!r} holds a run without its settings.json; choose another out")
    defaults = {f"training.{field.name}": field.default for field in dataclasses.fields(TrainingArguments)}
    known, now = _flat(read_json(path)), _flat(settings)
    for name in {**known, **now}:
        field = name.removeprefix("training.")
        before, after = (values.get(name, defaults.get(name)) for values in (known, now))
        if before == after or (field != name and FREE.fullmatch(field)):
            continue
        if field not in LONGER:
            raise AttnExtError(
                f"{str(out)!r} holds a run with another {name}: {before!r}, not {after!r}; choose another out"
            )
        if after < before:
            raise AttnExtError(
                f"{str(out)!r} holds a run with {name} {before}, and a run can only be made longer, got {after}; "
                "choose another out"
            )


def check_steps(out: Path, arguments: Any, done: int) -> None:
    """Raise AttnExtError where fewer steps are asked for than are done."""
    if 0 < arguments.max_steps < done:
        raise AttnExtError(
            f"training.max_steps is {arguments.max_steps}, but {str(out)!r} holds a run of {done} steps; "
            "choose another out"
        )


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings by dotted names, and the values that JSON gives back."""
    flat = {}
    for name, value in settings.items():
        inner = name in ("data", "mask", "training")
        flat.update({f"{name}.{field}": one for field, one in value.items()} if inner else {name: value})
    return flat
