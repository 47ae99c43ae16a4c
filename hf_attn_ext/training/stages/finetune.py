"""Stage 2 and the teacher's fine-tuning: a classifier, a regressor or a language model trained on its task.

Optionally the converted model also follows the teacher's logits. A classifier's are computed once, before training: no
second model in memory, and none to be wrapped by mistake. A language model's would fill a disk: there the teacher
itself runs on the same batches, frozen and unwrapped.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, gather_object
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.evaluation import evaluating
from hf_attn_ext.training import metrics as task_metrics
from hf_attn_ext.training.config import Stage2Config, TaskConfig
from hf_attn_ext.training.data.encoding import Collator, EncodedSplit, evaluation_batches, model_inputs
from hf_attn_ext.training.data.labels import LANGUAGE

from .losses import distillation_loss, language_loss, predicted_tokens, task_loss

Batch = dict[str, Tensor]
logger = logging.getLogger(__name__)
EVALUATED_LOGITS = 2**26  # of a language model, at once: 256 MiB


def predict(
    model: nn.Module,
    data: EncodedSplit,
    collate: Collator,
    accelerator: Accelerator,
    batch_size: int = 64,
    task: str = "classification",
) -> np.ndarray:
    """Return one row an example, in order, the same on every process.

    Returns:
        The logits (n, outputs), float32. For language modelling (n, 2) float64: the sum over a sequence of the losses
        of its tokens, and how many were predicted.
    """
    rows = []
    if task == LANGUAGE:
        batch_size = language_batch_size(model, data, batch_size)
    batches = evaluation_batches(data, collate, batch_size, accelerator.process_index, accelerator.num_processes)
    with evaluating(model), torch.no_grad(), accelerator.autocast():
        for batch in batches:
            index = batch["index"].numpy()
            batch = {name: tensor.to(accelerator.device) for name, tensor in batch.items()}
            logits = model(**model_inputs(batch, causal=task == LANGUAGE)).logits
            rows.append((index, _sequence_losses(logits, batch) if task == LANGUAGE else logits.float().cpu().numpy()))
    if accelerator.num_processes > 1:
        rows = gather_object(rows)
    result = np.empty((len(data), rows[0][1].shape[1]), dtype=rows[0][1].dtype)
    for index, part in rows:
        result[index] = part
    return result


def language_batch_size(model: nn.Module, data: EncodedSplit, most: int = 64) -> int:
    """Return how many sequences to give a language model at once: their logits shall fit in 256 MiB."""
    vocabulary = getattr(getattr(model, "module", model).config, "vocab_size", None) or 1
    return max(1, min(most, EVALUATED_LOGITS // (vocabulary * int(data.lengths.max()))))


def _sequence_losses(logits: Tensor, batch: Batch) -> np.ndarray:
    losses = language_loss(logits, batch["input_ids"], batch["attention_mask"], "none")
    counts = predicted_tokens(batch["attention_mask"]).sum(1)
    return np.stack([losses.cpu().double().sum(1).numpy(), counts.cpu().double().numpy()], 1)


def score_logits(logits: np.ndarray, labels: np.ndarray | None, task: str) -> dict[str, float]:
    """Return the task's metrics and its mean ``loss``.

    Args:
        logits: what :func:`predict` returns.
        labels: (n,); ``None`` for language modelling.
        task: ``classification``, ``regression`` or ``language_modeling``.
    """
    if not np.isfinite(logits).all():
        raise AttnExtError("the model's logits are not finite")
    if task == LANGUAGE:
        return task_metrics.compute(None, logits, task)
    assert labels is not None  # the other tasks have labels
    loss = float(task_loss(torch.from_numpy(logits).double(), torch.from_numpy(labels), task)) / len(labels)
    return {**task_metrics.compute(labels, logits, task), "loss": loss}


def evaluate_task(
    model: nn.Module,
    data: EncodedSplit,
    collate: Collator,
    task: str,
    accelerator: Accelerator,
    batch_size: int = 64,
) -> dict[str, float]:
    """Return the metrics of a model on labelled examples, or the perplexity of a language model.

    Args:
        model: returns ``logits``; converted or not.
        data: encoded examples, with labels if the task has any.
        collate: makes batches.
        task: ``classification``, ``regression`` or ``language_modeling``.
        accelerator: says the device, and spreads the work over processes.
        batch_size: sequences in one forward pass; no result depends on it.
    """
    return score_logits(predict(model, data, collate, accelerator, batch_size, task), data.labels, task)


class TaskStage:
    """Fine-tuning for the training loop (:class:`hf_attn_ext.training.loop.Stage`).

    Args:
        name: ``teacher``, ``stage2`` or ``control``.
        model: gives ``logits``.
        config: the stage's section.
        task: ``classification``, ``regression`` or ``language_modeling``.
        metric: what the best checkpoint is chosen by.
        held_out: encoded examples for that.
        collate: makes batches.
        accelerator: the run's; wraps the model.
        teacher_logits: (n, outputs) by training example, for ``config.distillation`` > 0.
        teacher: the teacher itself, for ``config.distillation`` > 0 of a language model; is frozen.
        feature_maps: the parameters of feature maps, which have a learning rate of their own.
    """

    def __init__(
        self,
        name: str,
        model: PreTrainedModel,
        config: TaskConfig,
        task: str,
        metric: str,
        held_out: EncodedSplit,
        collate: Collator,
        accelerator: Accelerator,
        teacher_logits: np.ndarray | None = None,
        feature_maps: Iterable[nn.Parameter] = (),
        teacher: nn.Module | None = None,
    ):
        self.name, self.config, self.task, self.metric = name, config, task, metric
        self.held_out, self.collate, self.accelerator = held_out, collate, accelerator
        self.share = config.distillation if isinstance(config, Stage2Config) else 0.0
        self.temperature = config.temperature if isinstance(config, Stage2Config) else 1.0
        self.teacher_logits = None if teacher_logits is None else torch.from_numpy(teacher_logits)
        self.teacher = None
        if self.share > 0 and task == LANGUAGE and teacher is not None:
            self.teacher = teacher.to(accelerator.device).eval().requires_grad_(False)
        if self.share > 0 and self.teacher is None and teacher_logits is None:
            raise AttnExtError(f"'{name}.distillation' is {self.share}, but there are no teacher's logits")
        model.to(accelerator.device).train()
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        groups = self._groups(model, {id(parameter) for parameter in feature_maps})
        if accelerator.num_processes > 1:
            _freeze_unused(model, collate([held_out[0]]), accelerator, name, task == LANGUAGE)
        self.peaks = [group["lr"] for group in groups]
        # fused: on a CPU the plain one spends as long on a small batch's update as on its forward pass
        optimizer = torch.optim.AdamW(groups, betas=(config.beta1, config.beta2), eps=config.eps, fused=True)
        if accelerator.distributed_type == DistributedType.DEEPSPEED:  # it asks for these, and sees no loader of ours
            settings = accelerator.state.deepspeed_plugin.deepspeed_config
            settings["train_micro_batch_size_per_gpu"] = config.batch_size
            settings["gradient_accumulation_steps"] = config.accumulate
        accelerator.gradient_accumulation_steps = config.accumulate
        accelerator.step = 0
        self.model, self.optimizer = accelerator.prepare(model, optimizer)

    def _groups(self, model: nn.Module, maps: set[int]) -> list[dict]:
        """Split into matrices and the rest (no weight decay), and into the model's own weights and feature maps."""
        config = self.config
        map_lr = getattr(config, "feature_map_lr", None)
        groups: dict[tuple, dict] = {}
        for parameter in model.parameters():
            is_map = id(parameter) in maps
            if is_map and map_lr == 0:
                parameter.requires_grad_(False)
                continue
            decay = config.weight_decay if parameter.ndim > 1 and not is_map else 0.0
            lr = map_lr if is_map and map_lr is not None else config.lr
            group = groups.setdefault((lr, decay), {"params": [], "lr": lr, "weight_decay": decay})
            group["params"].append(parameter)
        return list(groups.values())

    def units(self, batch: Batch) -> int:
        """Return how many queries, examples or predicted tokens the losses of a batch are summed over."""
        if self.task == LANGUAGE:
            return int(predicted_tokens(batch["attention_mask"]).sum())
        return len(batch["labels"])

    def backward(self, batch: Batch, scale: float, step: int) -> dict[str, Tensor]:
        """Add the gradient of ``scale`` times the summed loss; return the sums of the losses by name."""
        accelerator = self.accelerator
        with accelerator.accumulate(self.model):
            logits = self.model(**model_inputs(batch, causal=self.task == LANGUAGE)).logits
            if self.task == LANGUAGE:
                hard = language_loss(logits, batch["input_ids"], batch["attention_mask"])
            else:
                hard = task_loss(logits, batch["labels"], self.task)
            sums = {"loss": hard}
            if self.share > 0:
                soft = self._follow_teacher(logits, batch)
                sums = {
                    "loss": (1 - self.share) * hard + self.share * soft,
                    "task_loss": hard,
                    "distillation_loss": soft,
                }
            # the wrappers average over processes and accelerate divides by the accumulation; `scale` has done both
            accelerator.backward(sums["loss"] * (scale * accelerator.num_processes * self.config.accumulate))
        return {name: value.detach() for name, value in sums.items()}

    def _follow_teacher(self, logits: Tensor, batch: Batch) -> Tensor:
        """The distance from the teacher's logits, summed over examples or predicted tokens."""
        if self.teacher is None:
            assert self.teacher_logits is not None  # the constructor has checked it
            teacher = self.teacher_logits[batch["index"].cpu()].to(logits.device)
            return distillation_loss(logits, teacher, self.task, self.temperature)
        with torch.no_grad(), self.accelerator.autocast():
            teacher = self.teacher(**model_inputs(batch, causal=True)).logits
        # only tokens that are followed by a real token: a padding token is not predicted
        predicted = predicted_tokens(batch["attention_mask"])
        return distillation_loss(logits[predicted], teacher[predicted], self.task, self.temperature)

    def finish_gradients(self, max_norm: float) -> None:
        """Complete the gradients of a step: sum over processes where needed, then clip."""
        if max_norm > 0:
            self.accelerator.clip_grad_norm_(self.model.parameters(), max_norm)

    def evaluate(self) -> dict[str, float]:
        """Return the metrics on held-out data, ``"loss"`` among them."""
        size = max(self.config.batch_size, 32)
        return evaluate_task(self.model, self.held_out, self.collate, self.task, self.accelerator, size)

    def score(self, metrics: dict[str, float]) -> float:
        """Return the number by which the best checkpoint is chosen; higher is better."""
        value = metrics[self.metric]
        return -value if self.metric in task_metrics.LOWER_IS_BETTER else value

    def save_state(self, folder: Path) -> None:
        """Write weights and optimizer to ``folder``."""
        # of every tied head it says that one of the two names is left out, as it must be
        log = logging.getLogger("accelerate.utils.other")
        level = log.level
        log.setLevel(logging.ERROR)
        try:
            self.accelerator.save_state(str(folder))
        finally:
            log.setLevel(level)

    def load_state(self, folder: Path) -> None:
        """Restore what :meth:`save_state` wrote."""
        self.accelerator.load_state(str(folder))

    def release(self) -> tuple[PreTrainedModel, dict[str, Tensor]]:
        """Return the plain model and its whole state dict, and release the wrappers."""
        state = self.accelerator.get_state_dict(self.model)
        model = self.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
        self.model = self.optimizer = self.teacher = None
        self.accelerator.free_memory()
        return model, state


def _freeze_unused(model: nn.Module, batch: Batch, accelerator: Accelerator, name: str, causal: bool = False) -> None:
    """Freeze parameters that the logits don't depend on: several processes would wait for their gradients forever."""
    if accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED):
        return
    model.eval()
    batch = {key: tensor.to(accelerator.device) for key, tensor in batch.items()}
    model(**model_inputs(batch, causal)).logits.sum().backward()
    unused = [key for key, p in model.named_parameters() if p.requires_grad and p.grad is None]
    for key in unused:
        model.get_parameter(key).requires_grad_(False)
    model.zero_grad(set_to_none=True)
    model.train()
    if unused and accelerator.is_main_process:
        logger.info("%s: %d parameters take no part in the task and stay as they are", name, len(unused))
