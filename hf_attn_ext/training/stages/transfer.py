"""Stage 1: attention transfer (:mod:`hf_attn_ext.integration.linear.transfer`) as a stage of the training loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from hf_attn_ext.attention.affine import AffineMap
from hf_attn_ext.attention.losses import attention_losses
from hf_attn_ext.integration import AttentionCall, converted_layers, freeze_all_but_feature_maps
from hf_attn_ext.integration.linear.transfer import run_softmax_stream, transfer_backward
from hf_attn_ext.training.config import Stage1Config

Batch = dict[str, Tensor]


def evaluate_transfer(
    model: nn.Module, batches: Iterable[Batch], accelerator: Accelerator | None = None
) -> dict[str, Any]:
    """Measure how close the kernels come to softmax attention, layer by layer, in :func:`.softmax_stream`.

    Args:
        model: a converted model.
        batches: dictionaries with ``input_ids`` and ``attention_mask`` (B, N); every real token is a query.
        accelerator: of a run of several processes, each of which has its own batches; its device is used.

    Returns:
        ``output_error`` (relative squared error of a head's output, sum|o - o*|^2 / sum|o*|^2 over all queries, then
        mean over heads), ``root_output_error`` (its root, head by head, then the mean), ``kl`` (nats per query, mean
        over heads), ``queries``, and ``layers``: the same numbers for each layer, with its ``name`` and ``layer_idx``.

    Example:
        >>> evaluate_transfer(model, batches)["output_error"]  # doctest: +SKIP
        0.36
    """
    layers = converted_layers(model)
    device = accelerator.device if accelerator else next(model.parameters()).device
    sums = {layer.name: torch.zeros(3, layer.feature_map.num_heads, device=device) for layer in layers}
    sums = {name: value.double() for name, value in sums.items()} if device.type != "mps" else sums
    queries = torch.zeros((), device=device)

    def measure(call: AttentionCall) -> None:
        losses = attention_losses(
            call.query,
            call.key,
            call.value,
            call.feature_map,
            call.scaling,
            call.key_padding_mask,
            with_entropy=True,
            causal=call.causal,
        )
        assert losses.entropy is not None  # asked for
        parts = (losses.cross_entropy - losses.entropy, losses.squared_error, losses.squared_norm)
        for row, part in zip(sums[call.name], parts, strict=True):
            row += part.sum((0, 2), dtype=row.dtype)

    with torch.no_grad():
        for batch in batches:
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            run_softmax_stream(model, batch, measure, accelerator.autocast() if accelerator else None)
            queries += batch["attention_mask"].sum()
    if accelerator is not None:
        queries = accelerator.reduce(queries, reduction="sum")
        sums = {name: accelerator.reduce(value, reduction="sum") for name, value in sums.items()}

    report = []
    for layer in layers:
        kl, error, norm = sums[layer.name]
        tiny = torch.finfo(norm.dtype).tiny
        report.append(
            {
                "name": layer.name,
                "layer_idx": layer.layer_idx,
                "output_error": float((error / norm.clamp_min(tiny)).mean()),
                "root_output_error": float((error / norm.clamp_min(tiny)).sqrt().mean()),
                "kl": float((kl / queries).mean()),
            }
        )
    return {
        **{
            name: float(np.mean([layer[name] for layer in report]))
            for name in ("output_error", "root_output_error", "kl")
        },
        "queries": int(queries),
        "layers": report,
    }


def output_scales(model: nn.Module, batches: Iterable[Batch]) -> dict[str, Tensor]:
    """Return the mean squared norm of each layer's softmax output, (H,) float32, by which output errors are divided.

    These constants come from a calibration pass. With the mean of each batch instead, the loss would not be a sum over
    queries.
    """
    device = next(model.parameters()).device
    sums: dict[str, Tensor] = {}
    count = 0

    def measure(call: AttentionCall) -> None:
        squared = call.output.detach().double().square().sum(-1)
        if call.key_padding_mask is not None:
            squared = squared.masked_fill(~call.key_padding_mask[:, None], 0.0)
        sums[call.name] = sums.get(call.name, 0) + squared.sum((0, 2))

    with torch.no_grad():
        for batch in batches:
            batch = {name: tensor.to(device) for name, tensor in batch.items()}
            run_softmax_stream(model, batch, measure)
            count += int(batch["attention_mask"].sum())
    return {name: (total / count).clamp_min(1e-12).float() for name, total in sums.items()}


class TransferStage:
    """Stage 1 for the training loop (:class:`hf_attn_ext.training.loop.Stage`).

    The model is not wrapped for several processes: the maps' gradients are summed once a step in one buffer.

    Args:
        model: a converted model; all other parameters than its feature maps are frozen.
        config: the ``stage1`` section.
        scales: from :func:`output_scales`.
        held_out: called for the held-out batches of this process.
        accelerator: the run's.
        seed: draws the subset of queries.

    Raises:
        AttnExtError: the kernels have nothing to train.
    """

    name = "stage1"

    def __init__(
        self,
        model: nn.Module,
        config: Stage1Config,
        scales: dict[str, Tensor],
        held_out: Callable[[], Iterable[Batch]],
        accelerator: Accelerator,
        seed: int = 0,
    ):
        self.model, self.config, self.held_out = model.to(accelerator.device), config, held_out
        self.accelerator, self.seed = accelerator, seed
        self.scales = {name: scale.to(accelerator.device) for name, scale in scales.items()}
        self.parameters = freeze_all_but_feature_maps(model)
        layers = converted_layers(model)
        self.heads = sum(layer.feature_map.num_heads for layer in layers)
        self.maps = nn.ModuleList([layer.feature_map for layer in layers])
        affine = {
            id(parameter)
            for module in self.maps.modules()
            if isinstance(module, AffineMap)
            for parameter in module.parameters()
        }
        groups = [
            ([p for p in self.parameters if id(p) not in affine], config.lr),
            ([p for p in self.parameters if id(p) in affine], config.lr * config.affine_lr_scale),
        ]
        groups = [(parameters, lr) for parameters, lr in groups if parameters]
        self.peaks = [lr for _, lr in groups]
        self.optimizer = torch.optim.AdamW(
            [{"params": parameters, "lr": lr} for parameters, lr in groups],
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            weight_decay=config.weight_decay,
        )

    def units(self, batch: Batch) -> int:
        """Return how many queries, examples or predicted tokens the losses of a batch are summed over."""
        real = batch["attention_mask"].sum(1)
        if self.config.queries_per_sequence is not None:
            real = real.clamp_max(self.config.queries_per_sequence)
        return int(real.sum())

    def backward(self, batch: Batch, scale: float, step: int) -> dict[str, Tensor]:
        """Add the gradient of ``scale`` times the summed loss; return the sums of the losses by name."""
        config = self.config
        index, mask = self._queries(batch, step)
        full = bool(batch["attention_mask"].all())  # packed sequences need none of the masking
        sums = dict.fromkeys(("loss", "cross_entropy", "output_error"), torch.zeros((), device=self.accelerator.device))

        def learn(call: AttentionCall) -> None:
            if full:
                call = dataclasses.replace(call, key_padding_mask=None)
            output_error = config.output_error / self.scales[call.name]
            sums_of_layer = transfer_backward(call, config.cross_entropy, output_error, scale, index, mask)
            if sums_of_layer is None:
                return
            entropies, errors = sums_of_layer
            entropy, error = entropies.sum(), (errors / self.scales[call.name]).sum()
            loss = config.cross_entropy * entropy + config.output_error * error
            # per head and layer, so that the numbers don't depend on the model's size
            for name, value in (("loss", loss), ("cross_entropy", entropy), ("output_error", error)):
                sums[name] = sums[name] + value / self.heads

        with torch.no_grad():
            run_softmax_stream(self.model, batch, learn, self.accelerator.autocast())
        return sums

    def _queries(self, batch: Batch, step: int) -> tuple[Tensor | None, Tensor | None]:
        """Draw positions of real tokens, (B, Q) and their mask, by seed, step and example: not by process."""
        limit = self.config.queries_per_sequence
        if limit is None:
            return None, None
        positions = torch.zeros(len(batch["index"]), limit, dtype=torch.int64)
        mask = torch.zeros(len(batch["index"]), limit, dtype=torch.bool)
        for row, (example, real) in enumerate(zip(batch["index"].tolist(), batch["attention_mask"].cpu(), strict=True)):
            tokens = np.flatnonzero(real.numpy())
            drawn = np.random.default_rng([self.seed, 5, step, example]).permutation(tokens)[:limit]
            positions[row, : len(drawn)] = torch.from_numpy(np.sort(drawn))
            mask[row, : len(drawn)] = True
        device = batch["index"].device
        return positions.to(device), mask.to(device)

    def finish_gradients(self, max_norm: float) -> None:
        """Complete the gradients of a step: sum over processes where needed, then clip."""
        gradients = []
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        if self.accelerator.num_processes > 1:
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            flat = self.accelerator.reduce(flat, reduction="sum")
            sizes = [gradient.numel() for gradient in gradients]
            for gradient, part in zip(gradients, flat.split(sizes), strict=True):
                gradient.copy_(part.view_as(gradient))
        if max_norm > 0:
            nn.utils.clip_grad_norm_(self.parameters, max_norm)

    def evaluate(self) -> dict[str, float]:
        """Return the metrics on held-out data, ``"loss"`` among them."""
        measured = evaluate_transfer(self.model, self.held_out(), self.accelerator)
        config = self.config
        loss = config.cross_entropy * measured["kl"] + config.output_error * measured["output_error"]
        return {"loss": loss, "output_error": measured["output_error"], "kl": measured["kl"]}

    def score(self, metrics: dict[str, float]) -> float:
        """Return the number by which the best checkpoint is chosen; higher is better."""
        return -metrics["loss"]

    def save_state(self, folder: Path) -> None:
        """Write weights and optimizer to ``folder``."""
        if self.accelerator.is_main_process:
            state = {"maps": self.maps.state_dict(), "optimizer": self.optimizer.state_dict()}
            torch.save(state, folder / "maps.pt")

    def load_state(self, folder: Path) -> None:
        """Restore what :meth:`save_state` wrote."""
        state = torch.load(folder / "maps.pt", weights_only=True, map_location=self.accelerator.device)
        self.maps.load_state_dict(state["maps"])
        self.optimizer.load_state_dict(state["optimizer"])
