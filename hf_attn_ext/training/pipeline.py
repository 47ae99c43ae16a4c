"""The whole distillation: teacher, conversion, stage 1, stage 2, control; each phase measured, saved, and resumable."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.tracking import GeneralTracker
from accelerate.utils import broadcast, set_seed
from torch import nn
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from hf_attn_ext._util.files import new_folder, read_json, remove_folder, write_json
from hf_attn_ext.config import AttnExtConfig
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration import calibrate, convert, converted_layers, freeze_all_but_feature_maps
from hf_attn_ext.training.data.encoding import Collator, EncodedSplit, TrainingOrder, evaluation_batches, model_inputs
from hf_attn_ext.training.data.inputs import encode_all, load_texts, stage1_length
from hf_attn_ext.training.data.labels import LANGUAGE
from hf_attn_ext.training.stages.finetune import TaskStage, predict, score_logits
from hf_attn_ext.training.stages.teacher import auto_class, check_fits, load_tokenizer, open_teacher
from hf_attn_ext.training.stages.transfer import TransferStage, evaluate_transfer, output_scales

from . import map_files
from . import metrics as task_metrics
from .config import DistillConfig, TaskConfig, load_config
from .journal import Journal, flat
from .launch import make_accelerator
from .loop import number_of_steps, train
from .results import collect
from .run_folder import RunFolder

CALIBRATION_ROWS = 8  # sequences in one forward pass


@dataclasses.dataclass
class DistillResult:
    """The results of a run.

    Attributes:
        folder: the run's folder.
        model_folder: the converted model, ready for ``AutoModelForSequenceClassification.from_pretrained``, or
            ``AutoModelForCausalLM`` after language modelling.
        results: what ``results.json`` holds.
    """

    folder: Path
    model_folder: Path
    results: dict[str, Any]


def distill(
    config: DistillConfig | Mapping[str, Any] | str | Path, trackers: Sequence[GeneralTracker] = ()
) -> DistillResult:
    """Convert a model and train it: attention transfer (stage 1), then its task (stage 2).

    A run that was stopped, at any time and in any way, continues when it is started again. A finished run returns its
    results at once.

    Args:
        config: a :class:`DistillConfig`, nested dictionaries, or a YAML file.
        trackers: objects of accelerate's ``GeneralTracker``, in addition to those that ``config.tracking`` names.

    Returns:
        :class:`DistillResult`, the same on every process.

    Raises:
        AttnExtError: a mistake in the configuration, the data, the launch, or the output folder.

    Example:
        >>> result = distill("configs/distill/quick.yaml")  # doctest: +SKIP
        >>> result.results["scores"]["stage2"]["accuracy"]  # doctest: +SKIP
        0.81
    """
    if isinstance(config, (str, Path)):
        config = load_config(config)
    elif not isinstance(config, DistillConfig):
        config = DistillConfig.from_dict(config)
    accelerator = make_accelerator(config, trackers)
    folder = RunFolder.open(config, accelerator)
    if not folder.results.is_file():
        with _no_loading_bars():
            _Run(config, folder).run()
    folder.tidy()
    return DistillResult(folder.root, folder.model, read_json(folder.results))


@contextlib.contextmanager
def _no_loading_bars() -> Iterator[None]:
    """Hide Transformers' progress bars for loading and saving; a run has its own bars."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


class _Run:
    """One run; the methods named ``*_phase`` do nothing that a finished phase has done already."""

    def __init__(self, config: DistillConfig, folder: RunFolder):
        self.config, self.folder, self.accelerator = config, folder, folder.accelerator
        self.kernel = dataclasses.replace(config.kernel, seed=config.kernel.seed + config.seed)
        with self.accelerator.main_process_first():  # one process reads the files, the others its cache
            self.data, texts = load_texts(config)
        self.task = self.data.task_labels.task
        self.metric = task_metrics.main_metric(self.task, config.data.metric, config.data.path or "")
        self.language = self.task == LANGUAGE
        self.tokenizer = load_tokenizer(config.model)
        self.collate = Collator(self.tokenizer, self.task)
        self.teacher = open_teacher(config.model, self.data, max(config.data.max_length, stage1_length(config)))
        self.inputs = encode_all(config, self.data, texts, self.tokenizer)
        for split in self.inputs:
            check_fits(self.teacher.base_config, config.model.name, split)
        drawn = np.random.default_rng([config.data.split_seed, 6]).permutation(len(self.inputs.stage1_held_out))
        self.stage1_rows = drawn[: config.stage1.eval_sequences]

        processes = self.accelerator.num_processes
        self.steps = {
            "teacher": number_of_steps(config.teacher, len(self.inputs.train), processes),
            "stage1": number_of_steps(config.stage1, len(self.inputs.stage1_train), processes),
            "stage2": number_of_steps(config.stage2, len(self.inputs.train), processes),
        }
        self.steps["control"] = self.steps["stage2"] if config.control else 0
        self.teacher_ready = self.teacher.head_trained or self.steps["teacher"] > 0
        if config.stage2.distillation > 0 and not self.teacher_ready:
            head = "language-model head" if self.language else "classifier"
            raise AttnExtError(
                f"'stage2.distillation' needs a teacher with a trained {head}, but "
                f"{config.model.name!r} has none: set teacher.steps or teacher.epochs, or stage2.distillation: 0"
            )
        if self.steps["teacher"] and folder.result("teacher") is None:
            convert(self.load_teacher(fresh=True), self.kernel)  # what cannot be converted is not fine-tuned first
        self.journal = Journal(folder.journal, self.accelerator)

    def run(self) -> None:
        self.folder.claim(self.config)
        if self.accelerator.log_with:
            self.accelerator.init_trackers(self.config.tracking.project, flat(self.config.to_dict()))
        phases: dict[str, Callable[[], dict[str, Any]]] = {
            "teacher": self.teacher_phase,
            "converted": self.converted_phase,
            "stage1": self.stage1_phase,
            "stage2": self.stage2_phase,
        }
        if self.config.control:
            phases["control"] = self.control_phase
        results: dict[str, dict[str, Any]] = {}
        for name, phase in phases.items():
            self.say(name)
            result = self.folder.result(name)
            if result is None:
                start = time.perf_counter()
                result = phase()
                result["seconds"] = round(time.perf_counter() - start, 1)
                self.folder.finish(name, result)
            self.clear(name)
            results[name] = result
            self.journal.offset += self.steps.get(name, 0)
        self.finish(results)
        if self.accelerator.trackers:
            self.accelerator.end_training()

    # -- phases --------------------------------------------------------------------------------------------------

    def teacher_phase(self) -> dict[str, Any]:
        held_out = None
        if self.steps["teacher"]:
            model, state, held_out = self.train_task("teacher", self.load_teacher(fresh=True), self.config.teacher)
            self.save(model, self.folder.teacher, state)
        result = {"validation": held_out, **self.measure_task("teacher", self.load_teacher)}
        if self.config.stage2.distillation > 0 and not self.language:
            model = self.load_teacher().to(self.accelerator.device)
            self.folder.save_logits("teacher-train", self.predict(model, self.inputs.train))
        return result

    def converted_phase(self) -> dict[str, Any]:
        model = convert(self.load_teacher(), self.kernel).to(self.accelerator.device)
        batches = self.calibration_batches()
        if self.config.stage1.calibration_batches:
            calibrate(model, batches, device=self.accelerator.device)
        scales = output_scales(model, batches)
        for layer in converted_layers(model):
            for tensor in [*layer.feature_map.parameters(), *layer.feature_map.buffers(), scales[layer.name]]:
                tensor.data.copy_(broadcast(tensor.data, from_process=0))
        self.save_maps("converted", model, scales)
        return self.measure("converted", model)

    def stage1_phase(self) -> dict[str, Any]:
        model, scales = self.load_maps("converted")
        if not self.steps["stage1"] or not freeze_all_but_feature_maps(model):
            why = "stage1.steps is 0"
            if self.steps["stage1"]:
                why = f"kernel {self.kernel.kernel!r} has nothing to train"
            self.say(f"stage1 is skipped: {why}")
            self.save_maps("stage1", model, scales)
            return {"skipped": why, **self.measure("stage1", model)}
        config = self.config.stage1
        stage = TransferStage(model, config, scales, self.transfer_batches, self.accelerator, self.config.seed)
        train(
            stage,
            config,
            self.inputs.stage1_train,
            self.collate,
            self.accelerator,
            steps=self.steps["stage1"],
            folder=self.folder.checkpoints("stage1"),
            journal=self.journal,
            seed=self.config.seed,
            log_every=self.config.output.log_every,
            progress=self.config.output.progress,
        )
        self.save_maps("stage1", model, scales)
        return self.measure("stage1", model)

    def stage2_phase(self) -> dict[str, Any]:
        if not self.steps["stage2"]:
            self.say("stage2 is skipped: stage2.steps is 0")
            model, _ = self.load_maps("stage1")
            self.save(model, self.folder.weights("stage2"))
            return {"skipped": "stage2.steps is 0", **self.measure_task("stage2", self.load_final)}
        model, _ = self.load_maps("stage1")
        model, state, held_out = self.train_task("stage2", model, self.config.stage2)
        self.save(model, self.folder.weights("stage2"), state)
        return {"validation": held_out, **self.measure_task("stage2", self.load_final)}

    def control_phase(self) -> dict[str, Any]:
        """The same model without attention (every token is the mean of all), given the same stage 2."""
        kernel = AttnExtConfig(kernel="uniform", num_features=1, layers=self.kernel.layers)
        model = convert(self.load_teacher(), kernel)
        if not self.steps["stage2"]:
            return self.measure_task("control", lambda: model)
        model, state, held_out = self.train_task("control", model, self.config.stage2)
        self.save(model, self.folder.weights("control"), state)
        measured = self.measure_task("control", lambda: self.load_model("control"))
        return {"validation": held_out, **measured}

    def finish(self, results: dict[str, dict[str, Any]]) -> None:
        """Write ``results.json`` and ``model/``, each whole or not at all."""
        tokens = None
        if self.language:
            splits = {"train": self.inputs.train, "validation": self.inputs.validation, "test": self.inputs.test}
            tokens = {name: int((split.lengths - 1).sum()) for name, split in splits.items()}
        report = collect(results, self.config, self.folder, self.data, self.metric, self.steps, tokens)
        report["kernel"] = self.kernel.to_dict()
        if self.accelerator.is_main_process:
            model = self.load_final()
            feature_maps = converted_layers(model)
            report["feature_dim"] = feature_maps[0].feature_map.feature_dim
            with new_folder(self.folder.model) as target:
                model.save_pretrained(target)
                self.tokenizer.save_pretrained(target)
                write_json(target / "results.json", report)
            write_json(self.folder.results, report)
        self.accelerator.wait_for_everyone()

    # -- what phases share -----------------------------------------------------------------------------------------

    def train_task(
        self, name: str, model: PreTrainedModel, config: TaskConfig
    ) -> tuple[PreTrainedModel, dict[str, torch.Tensor], dict[str, float]]:
        """Fine-tune ``model``; return it, its whole state dict, and the best validation metrics."""
        if self.config.model.activation_checkpointing:
            # Transformers renamed it; the old name is removed in its next major release
            new, old = "activation_checkpointing_enable", "gradient_checkpointing_enable"
            getattr(model, new if hasattr(model, new) else old)({"use_reentrant": False})
        maps = [] if name == "teacher" else [layer.feature_map for layer in converted_layers(model)]
        follows = self.language and name != "teacher" and self.config.stage2.distillation > 0
        stage = TaskStage(
            name,
            model,
            config,
            self.task,
            self.metric,
            self.inputs.validation,
            self.collate,
            self.accelerator,
            self.folder.logits("teacher-train") if name != "teacher" else None,
            [parameter for feature_map in maps for parameter in feature_map.parameters()],
            self.load_teacher() if follows else None,
        )
        held_out = train(
            stage,
            config,
            self.inputs.train,
            self.collate,
            self.accelerator,
            steps=self.steps[name],
            folder=self.folder.checkpoints(name),
            journal=self.journal,
            seed=self.config.seed,
            log_every=self.config.output.log_every,
            progress=self.config.output.progress,
        )
        model, state = stage.release()
        return model, state, held_out

    def load_teacher(self, fresh: bool = False) -> PreTrainedModel:
        """Return the teacher as it goes into conversion (``fresh``: into its own fine-tuning)."""
        set_seed(self.config.seed)  # a new head is the same each time
        return self.teacher.load(None if fresh or not self.steps["teacher"] else self.folder.teacher)

    def load_model(self, phase: str) -> PreTrainedModel:
        return auto_class(self.task).from_pretrained(self.folder.weights(phase), dtype=torch.float32)

    def load_final(self) -> PreTrainedModel:
        return self.load_model("stage2")

    def save(self, model: PreTrainedModel, target: Path, state: dict[str, torch.Tensor] | None = None) -> None:
        if self.accelerator.is_main_process:
            with new_folder(target) as folder:
                model.save_pretrained(folder, state_dict=state)
                self.tokenizer.save_pretrained(folder)
        self.accelerator.wait_for_everyone()

    def save_maps(self, phase: str, model: nn.Module, scales: dict[str, torch.Tensor]) -> None:
        if self.accelerator.is_main_process:
            map_files.save_maps(self.folder.weights(phase), model, scales)
        self.accelerator.wait_for_everyone()

    def load_maps(self, phase: str) -> tuple[PreTrainedModel, dict[str, torch.Tensor]]:
        """Return the converted model with the feature maps of ``phase``, and the output scales."""
        model = convert(self.load_teacher(), self.kernel)
        return model, map_files.load_maps(self.folder.weights(phase), model)

    def calibration_batches(self) -> list[dict[str, torch.Tensor]]:
        """Return the first steps' batches, of all processes: their statistics set up the feature maps."""
        config, processes = self.config.stage1, self.accelerator.num_processes
        order = TrainingOrder(
            self.inputs.stage1_train.lengths,
            config.batch_size,
            config.accumulate,
            processes,
            self.config.seed,
            config.group_by_length,
        )
        rows = np.concatenate([order.step(step) for step in range(max(1, config.calibration_batches))])
        # cut in one way, however the steps are spread: a sample of keys depends on the order they come in
        parts = np.split(rows, range(CALIBRATION_ROWS, len(rows), CALIBRATION_ROWS))
        return [model_inputs(self.collate([self.inputs.stage1_train[int(row)] for row in part])) for part in parts]

    def transfer_batches(self) -> Iterable[dict[str, torch.Tensor]]:
        return evaluation_batches(
            self.inputs.stage1_held_out,
            self.collate,
            self.config.stage1.batch_size,
            self.accelerator.process_index,
            self.accelerator.num_processes,
            even=False,
            rows=self.stage1_rows,
        )

    def measure(self, name: str, model: nn.Module) -> dict[str, Any]:
        """Return how close the kernels are to softmax, and how the model does on the task."""
        if name not in self.config.measure:
            return {"scores": None}
        model.to(self.accelerator.device)
        transfer = evaluate_transfer(model, self.transfer_batches(), self.accelerator)
        return {"transfer": transfer, **self.measure_task(name, lambda: model)}

    def measure_task(self, name: str, load: Callable[[], nn.Module]) -> dict[str, Any]:
        """Return the scores on the reported split; ``None`` while the classifier is untrained, or unmeasured."""
        if name != "control" and name not in self.config.measure:
            return {"scores": None}
        if not self.teacher_ready and (name not in ("stage2", "control") or not self.steps[name]):
            return {"scores": None}
        model = load().to(self.accelerator.device)
        logits, labels = self.predict(model, self.inputs.test), self.inputs.test.labels
        self.folder.save_logits(name, logits)
        scores = score_logits(logits, labels, self.task)
        return {"scores": scores, "standard_errors": task_metrics.standard_errors(labels, logits, self.task)}

    def predict(self, model: nn.Module, split: EncodedSplit) -> np.ndarray:
        return predict(model, split, self.collate, self.accelerator, task=self.task)

    def clear(self, stage: str) -> None:
        """Delete a finished stage's checkpoints."""
        if self.accelerator.is_main_process:
            remove_folder(self.folder.checkpoints(stage))
        self.accelerator.wait_for_everyone()

    def say(self, text: str) -> None:
        if self.accelerator.is_main_process and self.config.output.progress:
            print(f"[distill] {text}", file=sys.stderr, flush=True)
