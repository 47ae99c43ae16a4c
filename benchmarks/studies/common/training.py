"""One stage of the library's training loop for all objectives: cross-entropy wherever a batch has labels."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hf_attn_ext.integration import butterfly_embeddings, converted_layers
from hf_attn_ext.training import Stage2Config
from hf_attn_ext.training.data.encoding import evaluation_batches
from hf_attn_ext.training.journal import Journal
from hf_attn_ext.training.loop import train
from hf_attn_ext.training.stages.finetune import TaskStage

from .objectives import IGNORED, Batch

INPUTS = ("input_ids", "attention_mask", "position_ids", "neighbour_ids")
EVALUATED = 32  # sequences at once


def predictions(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """The logits (M, V), float32 or more, at the M positions with a label, and the labels (M,).

    The head is not computed anywhere else, so that no objective pays for predictions that nobody asks for.
    """
    inputs = {name: batch[name] for name in INPUTS if name in batch}
    if "neighbour_ids" in inputs:
        inputs = butterfly_embeddings(model, inputs)
    if model.can_generate():
        inputs["use_cache"] = False
    places = batch["labels"] != IGNORED
    logits = model.lm_head(model.base_model(**inputs).last_hidden_state[places])
    return logits.to(torch.promote_types(logits.dtype, torch.float32)), batch["labels"][places]


@torch.no_grad()
def token_losses(model: nn.Module, data: Any, collate: Any, device: torch.device) -> np.ndarray:
    """Nats of every token that ``collate`` has predicted, (S, L) float64 by sequence and place, NaN elsewhere."""
    training = model.training
    model.eval()
    if hasattr(collate, "restart"):
        collate.restart()
    found = np.full((len(data), int(data.lengths.max())), np.nan)
    for batch in evaluation_batches(data, collate, EVALUATED):
        batch = {name: tensor.to(device) for name, tensor in batch.items()}
        logits, labels = predictions(model, batch)
        losses = nn.functional.cross_entropy(logits, labels, reduction="none").double().cpu().numpy()
        rows, columns = (batch["labels"] != IGNORED).nonzero(as_tuple=True)
        found[batch["index"][rows].cpu().numpy(), batch["targets"][rows, columns].cpu().numpy()] = losses
    model.train(training)
    return found


class ObjectiveStage(TaskStage):
    """:class:`.TaskStage` for batches that say themselves what is predicted where.

    Args:
        name, model, config, held_out, collate, accelerator, feature_maps: as there.
        evaluated: makes the batches of held-out data; None: ``collate``.
    """

    def __init__(
        self,
        name: str,
        model: nn.Module,
        config: Stage2Config,
        held_out: Any,
        collate: Any,
        accelerator: Any,
        feature_maps: list[nn.Parameter],
        evaluated: Any = None,
    ):
        super().__init__(
            name,
            model,
            config,
            "language_modeling",
            "loss",
            held_out,
            collate,
            accelerator,
            feature_maps=feature_maps,
        )
        self.evaluated = collate if evaluated is None else evaluated

    def units(self, batch: Batch) -> int:
        """Return the number of predictions in a batch."""
        return int((batch["labels"] != IGNORED).sum())

    def backward(self, batch: Batch, scale: float, step: int) -> dict[str, Tensor]:
        """Add the gradients of a batch; return its summed loss."""
        logits, labels = predictions(self.model, batch)
        loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
        self.accelerator.backward(loss * scale)
        return {"loss": loss.detach()}

    def evaluate(self) -> dict[str, float]:
        """Return the loss on held-out data."""
        losses = token_losses(self.model, self.held_out, self.evaluated, self.accelerator.device)
        return {"loss": float(np.nanmean(losses))}


def fit(
    name: str,
    model: nn.Module,
    collate: Any,
    texts: Any,
    folder: Path,
    accelerator: Any,
    *,
    steps: int,
    batch_size: int,
    lr: float,
    weight_decay: float,
    seed: int,
    evaluated: Any = None,
) -> tuple[nn.Module, float]:
    """Train to the end, going on from the newest checkpoint in ``folder``; return the best model and its loss."""
    config = Stage2Config(
        steps=steps,
        batch_size=batch_size,
        lr=lr,
        weight_decay=weight_decay,
        beta2=0.95,
        schedule="cosine",
        warmup=0.1,
        max_grad_norm=1.0,
        evaluate_every=math.ceil(steps / 4),
    )
    maps = [parameter for layer in converted_layers(model) for parameter in layer.feature_map.parameters()]
    stage = ObjectiveStage(name, model, config, texts.validation, collate, accelerator, maps, evaluated)
    held_out = train(
        stage,
        config,
        texts.train,
        collate,
        accelerator,
        steps=steps,
        folder=folder / "checkpoints",
        journal=Journal(folder / "metrics.jsonl", accelerator),
        seed=seed,
        log_every=max(1, steps // 40),
        progress=True,
    )
    model, _ = stage.release()
    return model.eval(), held_out["loss"]
