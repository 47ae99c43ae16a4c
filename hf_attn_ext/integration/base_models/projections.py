"""Heads of models outside the attention interface: what enters each layer's output projection, split into heads."""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from hf_attn_ext.errors import AttnExtError, short, suggest

from .families import HEAD_COUNTS, HEAD_DIMS, configured_layers, first_int
from .projection_names import block_numbers, check_blocks, check_declared_heads, check_kind, input_width
from .readable_layers import Layer, checked_host


def projection_layers(model: nn.Module, patterns: Sequence[str] | str, num_heads: int | None = None) -> list[Layer]:
    """The layers of ``model`` by the names of their output projections, in the model's order.

    A layer's heads are read from what its projection is given: (batch, tokens, heads * size), the first head's numbers
    first (head-major), as nearly every model has it. That no shape can show: of a model that interleaves its heads the
    numbers would be wrong. Nor can it show that a linear layer of the right width reads something else than the heads;
    what names, classes and declared numbers of heads tell is refused.

    A layer's number is its block's, from the module's name (``2`` in ``encoder.layer.2.attention.output.dense``); where
    the names do not tell blocks apart, numbers count the matches, and ``Layer.counted`` is True.

    Args:
        patterns: of module names, such as ``"*.attention.output.dense"`` (``*`` matches dots too); each matched module
            is one layer's projection.
        num_heads: of every layer; None reads it from the model's configuration.

    Raises:
        AttnExtError: nothing matches, or more than projections do (one inside another, more than the model has layers,
            two in one block, cross-attention, an input projection or a module that holds more than a projection,
            widths that differ or are not those of the heads); a number of heads that is not known, or is not what the
            attention beside the projection says; ConvBERT, half of whose heads are a convolution; a compiled model; an
            encoder-decoder, or several models.

    Example:
        >>> [layer.name for layer in projection_layers(model, "*.attention.output.dense")][:1]  # doctest: +SKIP
        ['encoder.layer.0.attention.output.dense']
    """
    host = checked_host(model)
    found = _matched(model, patterns)
    config = getattr(model if host is None else host, "config", None)
    heads = _heads(num_heads, config, type(model if host is None else host).__name__)
    depth = configured_layers(config)
    if depth is not None and len(found) > depth:
        raise AttnExtError(
            f"{short(patterns)} matches {len(found)} modules, {_few(found)}, the model has {depth} layers; name the "
            "output projections of attention alone"
        )
    for name, module in found:
        check_kind(model, name, module)
    size = None if num_heads is not None else _head_size(config, heads)
    numbers = block_numbers(model, [name for name, _ in found])
    layers = [
        Layer(at if numbers is None else numbers[at], name, module, heads, True, size, numbers is None)
        for at, (name, module) in enumerate(found)
    ]
    widths = {name: width for name, module in found if (width := input_width(module)) is not None}
    for layer in layers:
        if layer.name in widths:
            _check_width(layer, widths[layer.name])
    if len(set(widths.values())) > 1:
        shown = ", ".join(f"{name} {width}" for name, width in list(widths.items())[:3])
        raise AttnExtError(f"{short(patterns)} matches modules with inputs of several widths ({shown}); name one kind")
    check_blocks([name for name, _ in found])
    for name, _ in found:
        check_declared_heads(model, name, heads)
    return sorted(layers, key=lambda layer: layer.index)


def heads_of_input(layer: Layer, given: tuple, shape: Sequence[int] | None, told: set[int]) -> Tensor:
    """(B, H, N, d), a view of what a projection is given; ``shape`` is (B, N) of the pass, or None.

    ``told`` has the numbers of the layers of which a pass has shown that the batch is the first axis; this one may add
    its own.

    Raises:
        AttnExtError: it is no (batch, tokens, width) of that pass, or of a width that is not the heads'; or there are
            as many texts as tokens, and no pass before has told them apart.
    """
    x = given[0] if given else None
    found = tuple(getattr(x, "shape", ()))
    if len(found) != 3 or (shape is not None and found[:2] != tuple(shape)):
        expected = "(batch, tokens, heads * size)" + ("" if shape is None else f" = ({shape[0]}, {shape[1]}, ...)")
        what = f"a tensor of shape {found}" if isinstance(x, Tensor) else f"{short(x)}"
        raise AttnExtError(f"{layer.name} got {what}, not {expected}: its heads cannot be told apart")
    _check_width(layer, found[2])
    if found[0] != found[1]:
        told.add(layer.index)
    elif found[0] > 1 and layer.index not in told:
        raise AttnExtError(
            f"{layer.name} got {found[0]} texts of {found[1]} tokens: which axis is the batch cannot be told; let the "
            "first pass have another number of texts, or of tokens"
        )
    return x.detach().unflatten(2, (layer.num_heads, -1)).transpose(1, 2)


def call_options(reader: nn.Module) -> dict[str, Any]:
    """What :meth:`feed` adds to a call of ``reader``: no cache, where it may have one.

    Raises:
        AttnExtError: it does not take ``input_ids`` and ``attention_mask`` by name.
    """
    parameters = inspect.signature(type(reader).forward).parameters
    any_name = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    missing = [name for name in ("input_ids", "attention_mask") if name not in parameters]
    if missing and not any_name:
        raise AttnExtError(
            f"feed calls the model with input_ids and attention_mask, {type(reader).__name__}.forward has no "
            f"{missing[0]!r}; call the model yourself inside the block, its token ids as input_ids"
        )
    return {"use_cache": False} if "use_cache" in parameters else {}


def _matched(model: nn.Module, patterns: Sequence[str] | str) -> list[tuple[str, nn.Module]]:
    listed = [patterns] if isinstance(patterns, str) else patterns
    listed = list(listed) if isinstance(listed, Iterable) else [listed]
    if not listed or not all(isinstance(one, str) and one for one in listed):
        raise AttnExtError(
            f"projections must be patterns of module names such as '*.attention.output.dense', got {short(patterns)}"
        )
    modules = dict(model.named_modules())
    for pattern in listed:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in modules):
            linear = [name for name, module in modules.items() if name and not list(module.children())]
            raise AttnExtError(f"no module matches {pattern!r}.{suggest(pattern, linear)}")
    found = [(n, m) for n, m in modules.items() if any(fnmatch.fnmatchcase(n, pattern) for pattern in listed)]
    for name, module in found:
        inside = [other for other, its in found if its is not module and its in set(module.modules())]
        if inside:
            raise AttnExtError(
                f"{short(patterns)} matches {name!r} and {inside[0]!r} inside it; name the projections alone"
            )
    return found


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
    """What the configuration says of a head's size."""
    size = first_int(config, (*HEAD_DIMS, "d_kv"))
    width = first_int(config, ("embed_dim", "hidden_size", "d_model"))
    return size if size is not None or not width or width % heads else width // heads


def _check_width(layer: Layer, width: int) -> None:
    if layer.head_dim is not None and width != layer.num_heads * layer.head_dim:
        raise AttnExtError(
            f"{layer.name} takes {width} numbers a token, {layer.num_heads} heads of {layer.head_dim} give "
            f"{layer.num_heads * layer.head_dim}: it is not their projection, or give num_heads"
        )
    if width % layer.num_heads:
        raise AttnExtError(f"{layer.name} takes {width} numbers a token, which {layer.num_heads} heads do not divide")


def _few(found: list[tuple[str, nn.Module]]) -> str:
    return ", ".join(repr(name) for name, _ in found[:2])
