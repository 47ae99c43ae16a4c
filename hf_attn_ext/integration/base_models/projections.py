"""Heads of models outside the attention interface: the input of each layer's output projection, split into heads."""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from hf_attn_ext.errors import AttnExtError, short, suggest

from .families import HEAD_COUNTS, HEAD_DIMS, configured_layers, first_int
from .projection_names import block_numbers, check_blocks, check_declared_heads, check_kind, input_width
from .readable_layers import Layer, checked_model


def projection_layers(model: nn.Module, patterns: Sequence[str] | str, num_heads: int | None = None) -> list[Layer]:
    """Return the layers of ``model`` by the names of their output projections, in the model's order.

    A layer's heads are read from the input of its projection, (batch, tokens, heads * size) with the first head's
    numbers first, as nearly every model has it. A shape cannot show whether a model interleaves its heads, nor whether
    a linear layer of the right width reads the heads at all. So names, classes and declared numbers of heads are
    checked.

    A layer's number is that of its block in the module's name (``2`` in ``encoder.layer.2.attention.output.dense``).
    Where the names do not tell blocks apart, numbers count the matches, and ``Layer.counted`` is True.

    Args:
        model: the model, of Transformers or not.
        patterns: patterns of module names, such as ``"*.attention.output.dense"`` (``*`` matches dots too); each
            matched module is one layer's projection.
        num_heads: the number of heads of every layer; None reads it from the model's configuration.
    """
    base = checked_model(model) or model
    matches = _matched(model, patterns)
    config = getattr(base, "config", None)
    heads = _heads(num_heads, config, type(base).__name__)
    depth = configured_layers(config)
    if depth is not None and len(matches) > depth:
        first = ", ".join(repr(name) for name, _ in matches[:2])
        raise AttnExtError(
            f"{short(patterns)} matches {len(matches)} modules, {first}, but the model has {depth} layers; "
            "name the output projections of attention alone"
        )
    for name, module in matches:
        check_kind(model, name, module)
    size = None if num_heads is not None else _head_size(config, heads)
    numbers = block_numbers(model, [name for name, _ in matches])
    layers = [
        Layer(i if numbers is None else numbers[i], name, module, heads, True, size, numbers is None)
        for i, (name, module) in enumerate(matches)
    ]
    widths = {name: width for name, module in matches if (width := input_width(module)) is not None}
    for layer in layers:
        if layer.name in widths:
            _check_width(layer, widths[layer.name])
    if len(set(widths.values())) > 1:
        shown = ", ".join(f"{name} {width}" for name, width in list(widths.items())[:3])
        raise AttnExtError(
            f"{short(patterns)} matches modules with inputs of several widths ({shown}); match one kind only"
        )
    check_blocks([name for name, _ in matches])
    for name, _ in matches:
        check_declared_heads(model, name, heads)
    return sorted(layers, key=lambda layer: layer.index)


def heads_of_input(layer: Layer, given: tuple, shape: Sequence[int] | None, known_batch_axis: set[int]) -> Tensor:
    """Return the heads' outputs (B, H, N, d), a view of the input of a projection that was called with ``given``.

    ``shape`` is (B, N) of the pass, or None. ``known_batch_axis`` holds the numbers of the layers whose first axis is
    known to be the batch, because a pass had another number of texts than of tokens; this pass may add its own.
    """
    x = given[0] if given else None
    sizes = tuple(getattr(x, "shape", ()))
    if not isinstance(x, Tensor) or len(sizes) != 3 or (shape is not None and sizes[:2] != tuple(shape)):
        expected = "(batch, tokens, heads * size)" + ("" if shape is None else f" = ({shape[0]}, {shape[1]}, ...)")
        what = f"a tensor of shape {sizes}" if isinstance(x, Tensor) else f"{short(x)}"
        raise AttnExtError(f"{layer.name} got {what}, not {expected}: its heads cannot be told apart")
    _check_width(layer, sizes[2])
    if sizes[0] != sizes[1]:
        known_batch_axis.add(layer.index)
    elif sizes[0] > 1 and layer.index not in known_batch_axis:
        raise AttnExtError(
            f"{layer.name} got {sizes[0]} texts of {sizes[1]} tokens: the batch axis cannot be identified; run the "
            "first pass with a number of texts that differs from the number of tokens"
        )
    return x.detach().unflatten(2, (layer.num_heads, -1)).transpose(1, 2)


def call_options(reader: nn.Module) -> dict[str, Any]:
    """Return the keywords that feeding texts adds to a call of ``reader``: no cache, where it may have one."""
    parameters = inspect.signature(type(reader).forward).parameters
    any_name = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    missing = [name for name in ("input_ids", "attention_mask") if name not in parameters]
    if missing and not any_name:
        raise AttnExtError(
            f"feed calls the model with input_ids and attention_mask, but {type(reader).__name__}.forward has no "
            f"{missing[0]!r}; call the model yourself inside the block, with its token ids as input_ids"
        )
    return {"use_cache": False} if "use_cache" in parameters else {}


def _matched(model: nn.Module, patterns: Sequence[str] | str) -> list[tuple[str, nn.Module]]:
    listed = [patterns] if isinstance(patterns, str) or not isinstance(patterns, Iterable) else list(patterns)
    if not listed or not all(isinstance(pattern, str) and pattern for pattern in listed):
        raise AttnExtError(
            f"projections must be patterns of module names such as '*.attention.output.dense', got {short(patterns)}"
        )
    modules = dict(model.named_modules())
    for pattern in listed:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in modules):
            linear = [name for name, module in modules.items() if name and not list(module.children())]
            raise AttnExtError(f"no module matches {pattern!r}.{suggest(pattern, linear)}")
    matches = [(n, m) for n, m in modules.items() if any(fnmatch.fnmatchcase(n, pattern) for pattern in listed)]
    for name, module in matches:
        inside = [inner for inner, other in matches if other is not module and other in set(module.modules())]
        if inside:
            raise AttnExtError(
                f"{short(patterns)} matches {name!r} and {inside[0]!r} inside it; match the projections only"
            )
    return matches


def _heads(given: int | None, config: Any, name: str) -> int:
    if given is not None:
        if not isinstance(given, int) or isinstance(given, bool) or given < 1:
            raise AttnExtError(f"num_heads must be a whole number of at least 1, got {short(given)}")
        return given
    heads = first_int(config, HEAD_COUNTS)
    if heads is None:
        raise AttnExtError(f"the configuration of {name} does not say how many heads a layer has; give num_heads")
    return heads


def _head_size(config: Any, heads: int) -> int | None:
    """The size of a head by the configuration, or None."""
    size = first_int(config, (*HEAD_DIMS, "d_kv"))
    width = first_int(config, ("embed_dim", "hidden_size", "d_model"))
    return size if size is not None or not width or width % heads else width // heads


def _check_width(layer: Layer, width: int) -> None:
    if layer.head_dim is not None and width != layer.num_heads * layer.head_dim:
        raise AttnExtError(
            f"{layer.name} takes {width} numbers per token, but {layer.num_heads} heads of {layer.head_dim} give "
            f"{layer.num_heads * layer.head_dim}; name their output projection, or give num_heads"
        )
    if width % layer.num_heads:
        raise AttnExtError(f"{layer.name} takes {width} numbers per token, which {layer.num_heads} heads do not divide")
