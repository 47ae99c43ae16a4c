"""Check by names, classes and neighbours that a module can be an output projection of self-attention."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from transformers.pytorch_utils import Conv1D

from hf_attn_ext.errors import AttnExtError

from .families import HEAD_COUNTS, first_int, is_cross_attention

# Names of projections of a layer's input.
_INPUT_PROJECTIONS = {
    *("q", "k", "v", "query", "key", "value", "qkv", "wq", "wk", "wv", "wqkv", "q_lin", "k_lin", "v_lin", "c_attn"),
    *("q_proj", "k_proj", "v_proj", "qkv_proj", "query_proj", "key_proj", "value_proj", "in_proj", "query_key_value"),
    *("to_q", "to_k", "to_v", "to_qkv"),
}
_CROSS = ("cross", "encoder_attn", "encdec")
# Modules that wrap a projection or run after it.
_COMPANIONS = ("base_layer", "dense", "dropout", "parametrizations", "norm", "layernorm", "layer_norm", "ln")


def input_width(module: nn.Module) -> int | None:
    """Return how many numbers per token a module takes, or None where it does not say."""
    width = module.weight.shape[0] if isinstance(module, Conv1D) else getattr(module, "in_features", None)
    return width if isinstance(width, int) else None


def check_kind(model: nn.Module, name: str, module: nn.Module) -> None:
    """Check that ``module`` can be an output projection of self-attention."""
    parts = name.split(".")
    block_path = _block(name)
    block = len(block_path.split(".")) if block_path else 0
    around = [model.get_submodule(".".join(parts[:end])) for end in range(1, len(parts) + 1)]
    # only inside the block: a block with both kinds may be named after both, and so may a model
    crossed = any(mark in part.lower() for part in parts[block:] for mark in _CROSS)
    if crossed or any(map(is_cross_attention, around[block:])):
        raise AttnExtError(f"{name} is of cross-attention, whose keys are of another text; name self-attention alone")
    inner = [part for part in parts if not part.isdecimal()]
    if inner and inner[-1].lower() in _INPUT_PROJECTIONS:
        raise AttnExtError(f"{name} is given the layer's input, not the heads' outputs; name the output projection")
    if any("ConvBert" in type(each).__name__ for each in around):
        raise AttnExtError(
            f"{name} is given attention heads and a convolution side by side (ConvBERT); such heads cannot be read"
        )
    more = [child for child, _ in module.named_children() if not _is_companion(module, child)]
    if more:
        raise AttnExtError(
            f"{name} ({type(module).__name__}) holds {more[0]!r}, more than a projection: it may be given the layer's "
            "input; name the projection inside it"
        )
    weights = [*module.parameters(), *module.buffers()]
    if not isinstance(module, nn.Identity) and not any(weight.ndim > 1 for weight in weights):
        raise AttnExtError(f"{name} ({type(module).__name__}) has no matrix of weights: it is no projection")


def _is_companion(module: nn.Module, child: str) -> bool:
    if isinstance(module, nn.Sequential):
        return input_width(module[0]) is not None
    return child.startswith("lora_") or child.lower() in _COMPANIONS


def check_declared_heads(model: nn.Module, name: str, heads: int) -> None:
    """Check the number of heads against what the attention around a projection declares, within its block."""
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        path = ".".join(parts[:end])
        module, is_block = model.get_submodule(path), parts[end - 1].isdecimal()
        # a block's own number only: it may hold other modules with heads
        holders = [module] if is_block else module.modules()
        declared = {number for each in holders if (number := first_int(each, HEAD_COUNTS)) is not None}
        if declared - {heads}:
            raise AttnExtError(
                f"{name} is read as {heads} heads, but the attention in {path} declares {min(declared - {heads})}; "
                "give num_heads, or name other modules"
            )
        if declared or is_block:
            return


def check_blocks(names: Sequence[str]) -> None:
    """Check that no two of the modules are in one block."""
    seen: dict[str, str] = {}
    for name in names:
        block = _block(name)
        if block is not None and block in seen:
            raise AttnExtError(
                f"{seen[block]} and {name} are both in {block}; name one projection per layer, that of attention"
            )
        seen[block or name] = name


def block_numbers(model: nn.Module, names: Sequence[str]) -> list[int] | None:
    """Return the number of each module's block, or None where the names do not show it.

    It is the first number in which the paths differ; everything before it must be the same. For a single name it is
    its only number, or the only one whose module has siblings.
    """
    paths = [(_block(name) or "").split(".") for name in names]
    if len(paths) == 1:
        numbers = [i for i, part in enumerate(paths[0]) if part.isdecimal()]
        if len(numbers) > 1:
            parents = {i: model.get_submodule(".".join(paths[0][:i])) for i in numbers}
            numbers = [i for i in numbers if len(list(parents[i].children())) > 1] or numbers[:1]
        return [int(paths[0][numbers[0]])] if len(numbers) == 1 else None
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            distinct = all(part.isdecimal() for part in parts) and len(set(map(int, parts))) == len(parts)
            return [int(part) for part in parts] if distinct else None
    return None


def _block(name: str) -> str | None:
    """The path up to its last number, not counting numbers at its end (``to_out.0``) where there are others."""
    parts = name.split(".")
    end = len(parts)
    while end and parts[end - 1].isdecimal():
        end -= 1
    numbers = [i for i, part in enumerate(parts) if part.isdecimal()]
    numbers = [i for i in numbers if i < end] or numbers
    return ".".join(parts[: numbers[-1] + 1]) if numbers else None
