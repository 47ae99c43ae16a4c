"""The one training loop: stage 1, stage 2 and the teacher's fine-tuning all run through :func:`train`.

What differs between them is a :class:`Stage`: how a batch becomes gradients, and what held-out data says.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Protocol

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from hf_attn_ext._util.progress import Progress
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.training.data.encoding import Collator, EncodedSplit, TrainingOrder

from .checkpoints import CheckpointStore, LoopState
from .config import TrainConfig
from .journal import Journal

Batch = dict[str, torch.Tensor]


class Stage(Protocol):
    """The interface of a stage of the loop. All methods run on every process."""

    name: str
    peaks: list[float]  # the peak learning rate of each of the optimizer's groups

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the stage's parameters."""

    def units(self, batch: Batch) -> int:
        """Return how many queries or examples the batch's losses are summed over."""

    def backward(self, batch: Batch, scale: float, step: int) -> dict[str, torch.Tensor]:
        """Add the gradient of ``scale`` times the summed loss; return the sums of the losses by name."""

    def finish_gradients(self, max_norm: float) -> None:
        """Called once a step before the optimizer's: sum over processes where that is left to do, and clip."""

    def evaluate(self) -> dict[str, float]:
        """Measure on held-out data; a ``loss`` is always among the numbers."""

    def score(self, metrics: dict[str, float]) -> float:
        """Return the number that the best checkpoint has the highest of."""

    def save_state(self, folder: Path) -> None:
        """Write weights and optimizer to ``folder``."""

    def load_state(self, folder: Path) -> None:
        """Restore what :meth:`save_state` wrote."""


def number_of_steps(config: TrainConfig, examples: int, processes: int) -> int:
    """Return ``config.steps``, or the steps of ``config.epochs`` passes over the examples."""
    if config.steps is not None:
        return config.steps
    return math.ceil(config.epochs * examples / (config.batch_size * config.accumulate * processes))


def learning_rate_factor(config: TrainConfig, step: int, steps: int) -> float:
    """Return the share of the peak learning rate at ``step`` (from 0) of ``steps``. No state, so nothing to resume."""
    warm = round(config.warmup * steps)
    if step < warm:
        return (step + 1) / warm
    if config.schedule == "constant":
        return 1.0
    done = (step - warm) / max(1, steps - warm)
    return 1 - done if config.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))


def train(
    stage: Stage,
    config: TrainConfig,
    data: EncodedSplit,
    collate: Collator,
    accelerator: Accelerator,
    *,
    steps: int,
    folder: Path,
    journal: Journal,
    seed: int,
    log_every: int = 10,
    progress: bool = True,
) -> dict[str, float]:
    """Train ``stage`` to the end and leave it with the weights of its best evaluation.

    Training continues from the newest checkpoint in ``folder``, if there is one, as if it had never stopped.

    Args:
        stage: what is trained.
        config: the stage's section.
        data: training examples.
        collate: makes batches of them.
        accelerator: one for the whole run.
        steps: number of steps.
        folder: for the checkpoints of this stage.
        journal: gets training losses and evaluations.
        seed: determines the data order and dropout.
        log_every: steps between records of the training losses.
        progress: show a progress bar.

    Returns:
        The held-out metrics of the best weights, measured again after they were loaded.

    Raises:
        AttnExtError: a loss is not finite; a checkpoint is damaged; the reloaded best weights measure differently.
    """
    set_seed(seed, device_specific=True)  # every process draws its own dropout masks
    order = TrainingOrder(
        data.lengths,
        config.batch_size,
        config.accumulate,
        accelerator.num_processes,
        seed,
        config.group_by_length,
    )
    every = config.evaluate_every or max(1, math.ceil(steps / 10))
    save_every = config.checkpoint_every or every
    store = CheckpointStore(folder, config.keep_checkpoints, accelerator)
    state = LoopState()
    if store.steps():
        state = store.load(store.steps()[-1], stage)
    journal.rewind(stage.name, state.step)
    shown = progress and accelerator.is_main_process
    with Progress(stage.name, steps, state.step, shown) as bar:
        while state.step < steps:
            _one_step(stage, config, state, steps, order, data, collate, accelerator)
            if state.step % log_every == 0 or state.step == steps:
                _log(stage, state, journal, accelerator, bar, learning_rate_factor(config, state.step - 1, steps))
            improved = False
            if state.step % every == 0 or state.step == steps:
                bar.note("evaluating")
                metrics = stage.evaluate()
                journal.write(stage.name, state.step, "eval", metrics)
                score = stage.score(metrics)
                if not math.isfinite(score):
                    raise _not_finite(stage.name, state.step, "the held-out loss")
                improved = state.best_score is None or score > state.best_score
                if improved:
                    state.best_step, state.best_score, state.best_metrics = state.step, score, metrics
            if improved or state.step % save_every == 0 or state.step == steps:
                store.save(state, stage)
            bar.advance()
    return _load_best(stage, state, store, journal)


def _one_step(
    stage: Stage,
    config: TrainConfig,
    state: LoopState,
    steps: int,
    order: TrainingOrder,
    data: EncodedSplit,
    collate: Collator,
    accelerator: Accelerator,
) -> None:
    rows = order.rank_batches(state.step, accelerator.process_index)
    batches = [collate([data[int(row)] for row in batch]) for batch in rows]
    units = total = float(sum(stage.units(batch) for batch in batches))
    if accelerator.num_processes > 1:
        total = float(accelerator.reduce(torch.tensor(units, device=accelerator.device), reduction="sum"))
    for group, peak in zip(stage.optimizer.param_groups, stage.peaks, strict=True):
        group["lr"] = peak * learning_rate_factor(config, state.step, steps)
    for batch in batches:
        batch = {name: tensor.to(accelerator.device) for name, tensor in batch.items()}
        for name, value in stage.backward(batch, 1.0 / total, state.step).items():
            # not read here: that would make the CPU wait for the device
            state.window[name] = state.window.get(name, 0.0) + value
    stage.finish_gradients(config.max_grad_norm)
    stage.optimizer.step()
    stage.optimizer.zero_grad()
    state.units += units
    state.step += 1


def _log(
    stage: Stage, state: LoopState, journal: Journal, accelerator: Accelerator, bar: Progress, factor: float
) -> None:
    """Write the mean training losses since the last record, over all processes."""
    names = sorted(state.window)
    sums = torch.tensor([*(float(state.window[name]) for name in names), state.units], dtype=torch.float64)
    sums = accelerator.reduce(sums.to(accelerator.device, torch.float32), reduction="sum").tolist()
    losses = {name: value / sums[-1] for name, value in zip(names, sums, strict=False)}
    bad = [name for name, value in losses.items() if not math.isfinite(value)]
    if bad:
        raise _not_finite(stage.name, state.step, bad[0])
    journal.write(stage.name, state.step, "train", {**losses, "lr": stage.peaks[0] * factor, "time": time.time()})
    bar.losses(losses)
    state.window, state.units = {}, 0.0


def _load_best(stage: Stage, state: LoopState, store: CheckpointStore, journal: Journal) -> dict[str, float]:
    """Load the best checkpoint's weights and prove it: they must measure what they measured."""
    if state.best_step is None:
        metrics = stage.evaluate()
        journal.write(stage.name, state.step, "final", metrics)
        return metrics
    if state.best_step != state.step:
        store.load(state.best_step, stage)
    metrics = stage.evaluate()
    # the loss, not the score: it moves with any change of the weights, where an accuracy may stay
    before, after = state.best_metrics["loss"], metrics["loss"]
    if not math.isclose(before, after, rel_tol=1e-3, abs_tol=1e-5):
        raise AttnExtError(
            f"{stage.name}: the best checkpoint (step {state.best_step}) had held-out loss {before:.6g}, reloaded it "
            f"has {after:.6g}: its files were changed, or this machine does not compute reproducibly"
        )
    journal.write(stage.name, state.step, "final", {**metrics, "best_step": state.best_step})
    return metrics


def _not_finite(stage: str, step: int, what: str) -> AttnExtError:
    return AttnExtError(
        f"{stage}: {what} is not finite at step {step}; lower '{stage}.lr', or train in bf16 or float32"
    )
