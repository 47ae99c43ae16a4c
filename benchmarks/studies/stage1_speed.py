"""How fast is stage 1? Ours against the usual way, side by side, on the same model, batches and losses.

    python -m benchmarks.studies.stage1_speed --model .assets/minilm-roberta

The usual way: a teacher in memory next to the student, the student runs on its own kernels, every layer is compared
with the teacher's weights and outputs, and one backward pass goes through the whole network. Ours: one model on its
softmax stream, loss and backward inside each attention call. Both compute the row cross-entropy and the relative output
error of every layer and head, and update the same feature maps with Adam. Tokens are random: speed does not depend on
them.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
from accelerate import Accelerator
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, AutoModel
from transformers.masking_utils import sdpa_mask

from hf_attn_ext.attention import attention_weights, list_kernels
from hf_attn_ext.attention.losses import WEIGHT_FLOOR
from hf_attn_ext.integration import convert, converted_layers
from hf_attn_ext.training.config import Stage1Config
from hf_attn_ext.training.stages.transfer import TransferStage, output_scales

Batch = dict[str, Tensor]


def our_step(model: nn.Module, batch: Batch, config: Stage1Config) -> Callable[[], float]:
    """One step of stage 1 as the package does it."""
    scales = output_scales(model, [batch])
    stage = TransferStage(model, config, scales, lambda: [batch], Accelerator(cpu=not torch.cuda.is_available()))
    units = stage.units(batch)

    def step() -> float:
        losses = stage.backward(batch, 1.0 / units, 0)
        stage.finish_gradients(0.0)
        stage.optimizer.step()
        stage.optimizer.zero_grad()
        return float(losses["loss"]) / units

    return step


def usual_step(
    model: nn.Module, maps: nn.ModuleList, batch: Batch, config: Stage1Config, scales: list[Tensor]
) -> Callable[[], float]:
    """One step with a separate teacher and a full backward pass; ``maps`` has one feature map per layer."""
    teacher, student = copy.deepcopy(model).eval(), model.eval()
    student.requires_grad_(False)
    wanted: list[tuple[Tensor, Tensor]] = []
    losses: list[Tensor] = []

    def as_teacher(module, query, key, value, mask, scaling=None, **_):
        scores = query @ key.mT * scaling
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        weights = scores.softmax(-1)
        output = weights @ value
        wanted.append((weights, output))
        return output.transpose(1, 2), None

    def as_student(module, query, key, value, mask, scaling=None, **_):
        target, output = wanted[module.layer_idx]
        padding = None if mask is None else mask[:, 0, 0]
        weights = attention_weights(query, key, maps[module.layer_idx], key_padding_mask=padding, scaling=scaling)
        mine = weights @ value
        positive = weights.clamp_min(WEIGHT_FLOOR)
        entropy = (positive.sum(-1).log() - (target * positive.log()).sum(-1)).sum()
        error = ((mine - output).square().sum((0, 2, 3)) / scales[module.layer_idx]).sum()
        losses.append(config.cross_entropy * entropy + config.output_error * error)
        return mine.transpose(1, 2), None

    for name, function in (("speed_teacher", as_teacher), ("speed_student", as_student)):
        AttentionInterface.register(name, function)
        AttentionMaskInterface.register(name, sdpa_mask)
    teacher.config._attn_implementation, student.config._attn_implementation = "speed_teacher", "speed_student"
    optimizer = torch.optim.AdamW(maps.parameters(), lr=config.lr, weight_decay=0.0, eps=config.eps)
    units = int(batch["attention_mask"].sum())
    heads = sum(feature_map.num_heads for feature_map in maps)

    def step() -> float:
        wanted.clear()
        losses.clear()
        with torch.no_grad():
            teacher(**batch)
        student(**batch)
        loss = torch.stack(losses).sum() / units
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach()) / heads

    return step


def measure(
    model_name: str, kernel: str, num_features: int, batch_size: int, length: int, steps: int
) -> dict[str, float]:
    """Return seconds per step of both ways (median; the ways take turns) and their first losses.

    Args:
        model_name: folder or hub id of the base encoder, not converted.
        kernel, num_features: as in :class:`hf_attn_ext.AttnExtConfig`.
        batch_size, length: of the batch; no padding.
        steps: timed steps of each way, after one that is not timed.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModel.from_pretrained(model_name, dtype=torch.float32).to(device)
    ours = convert(copy.deepcopy(model), kernel=kernel, num_features=num_features)
    layers = converted_layers(ours)
    maps = nn.ModuleList(copy.deepcopy(layer.feature_map) for layer in layers)
    torch.manual_seed(0)
    ids = torch.randint(5, model.config.vocab_size, (batch_size, length), device=device)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    config = Stage1Config(lr=1e-3, affine_lr_scale=1.0)
    scales = output_scales(ours, [batch])
    ways = {
        "ours": our_step(ours, batch, config),
        "usual": usual_step(model, maps, batch, config, [scales[layer.name] for layer in layers]),
    }
    first = {name: step() for name, step in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(steps):
        for name, step in ways.items():
            start = time.perf_counter()
            step()  # returns a number, so the device has finished
            times[name].append(time.perf_counter() - start)
    seconds = {name: statistics.median(values) for name, values in times.items()}
    return {
        "ours": seconds["ours"],
        "usual": seconds["usual"],
        "ratio": seconds["usual"] / seconds["ours"],
        "first_loss_ours": first["ours"],
        "first_loss_usual": first["usual"],
    }


def main() -> None:
    """Parse the options and run the study."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=".assets/minilm-roberta", help="folder or hub id of the base encoder")
    parser.add_argument("--kernel", default="flexformer_p", choices=list_kernels())
    parser.add_argument("--num-features", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    result = measure(
        options.model, options.kernel, options.num_features, options.batch_size, options.length, options.steps
    )
    tokens = options.batch_size * options.length
    table = Table(title=f"Stage 1, {options.kernel}, {options.batch_size} x {options.length} tokens")
    for column in ("", "seconds a step", "tokens/s"):
        table.add_column(column, justify="left" if not column else "right")
    for name, title in (("usual", "separate teacher, full backward"), ("ours", "inside the attention call")):
        table.add_row(title, f"{result[name]:.3f}", f"{tokens / result[name]:,.0f}")
    table.caption = f"{result['ratio']:.2f} times as fast"
    Console().print(table)


if __name__ == "__main__":
    main()
