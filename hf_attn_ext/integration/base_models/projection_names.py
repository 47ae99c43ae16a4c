"""What names, classes and neighbours tell of a module that is said to be attention's output projection."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from transformers.pytorch_utils import Conv1D

from hf_attn_ext.errors import AttnExtError

from .families import HEAD_COUNTS, first_int, is_cross_attention

# Projections of a layer's input, by the names that models have for them.
_OF_THE_INPUT = {
    *("q", "k", "v", "query", "key", "value", "qkv", "wq", "wk", "wv", "wqkv", "q_lin", "k_lin", "v_lin", "c_attn"),
    *("q_proj", "k_proj", "v_proj", "qkv_proj", "query_proj", "key_proj", "value_proj", "in_proj", "query_key_value"),
    *("to_q", "to_k", "to_v", "to_qkv"),
}
_CROSS = ("cross", "encoder_attn", "encdec")
# What wraps a projection, or is kept beside it and runs behind it.
_BESIDE = ("base_layer", "dense", "dropout", "parametrizations", "norm", "layernorm", "layer_norm", "ln")


def input_width(module: nn.Module) -> int | None:
    """How many numbers a token it takes, or None where it does not say."""
    width = module.weight.shape[0] if isinstance(module, Conv1D) else getattr(module, "in_features", None)
    return width if isinstance(width, int) else None


def check_kind(model: nn.Module, name: str, module: nn.Module) -> None:
    """Raise where ``module`` is no output projection of self-attention, as far as it can be told.

    Raises:
        AttnExtError: it is cross-attention's, reads the layer's input, holds more than a projection or no weights.
    """
    parts = name.split(".")
    block = len(_block(name).split(".")) if _block(name) else 0
    around = [model.get_submodule(".".join(parts[:end])) for end in range(1, len(parts) + 1)]
    # inside the block alone: a block with both kinds may have a name of both, and so may a model
    named_so = any(mark in part.lower() for part in parts[block:] for mark in _CROSS)
    if named_so or any(map(is_cross_attention, around[block:])):
        raise AttnExtError(f"{name} is of cross-attention, whose keys are of another text; name self-attention alone")
    inner = [part for part in parts if not part.isdecimal()]
    if inner and inner[-1].lower() in _OF_THE_INPUT:
        raise AttnExtError(f"{name} is given the layer's input, not the heads' outputs; name the output projection")
    if any("ConvBert" in type(one).__name__ for one in around):
        raise AttnExtError(
            f"{name} is given attention heads and a convolution side by side (ConvBERT); such heads cannot be read"
        )
    more = [child for child, _ in module.named_children() if not _beside(module, child)]
    if more:
        raise AttnExtError(
            f"{name} ({type(module).__name__}) holds {more[0]!r}, more than a projection: it may be given the layer's "
            "input; name the projection inside it"
        )
    weights = [*module.parameters(), *module.buffers()]
    if not isinstance(module, nn.Identity) and not any(weight.ndim > 1 for weight in weights):
        raise AttnExtError(f"{name} ({type(module).__name__}) has no matrix of weights: it is no projection")


def _beside(module: nn.Module, child: str) -> bool:
    if isinstance(module, nn.Sequential):
        return input_width(module[0]) is not None
    return child.startswith("lora_") or child.lower() in _BESIDE


def check_declared_heads(model: nn.Module, name: str, heads: int) -> None:
    """Raise where the attention around the projection ``name``, in its block, says another number of heads.

    Raises:
        AttnExtError: it does.
    """
    parts = name.split(".")
    for end in range(len(parts) - 1, 0, -1):
        path = ".".join(parts[:end])
        module, is_block = model.get_submodule(path), parts[end - 1].isdecimal()
        # of a block only its own word: it may hold other things with heads
        said = {first_int(one, HEAD_COUNTS) for one in ([module] if is_block else module.modules())} - {None}
        if said - {heads}:
            raise AttnExtError(
                f"{name} is read as {heads} heads, the attention in {path} says {min(said - {heads})}; give num_heads, "
                "or name other modules"
            )
        if said or is_block:
            return


def check_blocks(names: Sequence[str]) -> None:
    """Raise where two of the modules are in one block.

    Raises:
        AttnExtError: they are.
    """
    seen: dict[str, str] = {}
    for name in names:
        block = _block(name)
        if block is not None and block in seen:
            raise AttnExtError(
                f"{seen[block]} and {name} are both in {block}: name one projection a layer, attention's own"
            )
        seen[block or name] = name


def block_numbers(model: nn.Module, names: Sequence[str]) -> list[int] | None:
    """The number of each module's block, or None where names do not tell it.

    It is the first number of the path in which the names differ; of a single name, its only number, or the only one
    that has others beside it. What stands before it must be the same in all of them.

    Example:
        >>> block_numbers(model, ["encoder.layer.2.attention.output.dense"])  # doctest: +SKIP
        [2]
    """
    paths = [(_block(name) or "").split(".") for name in names]
    if len(paths) == 1:
        places = [at for at, part in enumerate(paths[0]) if part.isdecimal()]
        if len(places) > 1:
            several = [at for at in places if len(list(model.get_submodule(".".join(paths[0][:at])).children())) > 1]
            places = several or places[:1]
        return [int(paths[0][places[0]])] if len(places) == 1 else None
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            told = all(part.isdecimal() for part in parts) and len(set(map(int, parts))) == len(parts)
            return [int(part) for part in parts] if told else None
    return None


def _block(name: str) -> str | None:
    """The path up to its last number, not counting numbers at its end (``to_out.0``) where there are others."""
    parts = name.split(".")
    end = len(parts)
    while end and parts[end - 1].isdecimal():
        end -= 1
    places = [at for at, part in enumerate(parts[:end]) if part.isdecimal()] or [
        at for at, part in enumerate(parts) if part.isdecimal()
    ]
    return ".".join(parts[: places[-1] + 1]) if places else None
