"""Capture every head's output before the output projection, during ordinary forward passes of any model.

Models look up their attention function at each call, by ``AttentionInterface.get_interface``. While a capture is open,
the look-up returns a wrapper that calls the function and then hands the call's tensors to the listeners. The model is
not changed, so its outputs are the same bits. Only the passes of captured models are wrapped: a context variable holds
the calls that the current thread is in.

The look-up itself has to be replaced while a capture is open. Eager attention is not in the interface's mapping: each
modeling file passes its own function as the default of the look-up, under names that differ, so a wrapper registered
as ``"eager"`` would not know which function to call.

For models outside the attention interface, a hook reads the input of each layer's output projection.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import AttentionInterface

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.call_arguments import arguments, check_no_cache, padding_mask
from hf_attn_ext.integration.base_models.families import causal_call, is_cross_attention
from hf_attn_ext.integration.base_models.projections import heads_of_input
from hf_attn_ext.integration.base_models.readable_layers import Layer, capturable_layers, reading_models
from hf_attn_ext.integration.modifiers import left_out

from .head_outputs import HeadOutputs
from .passes import ForwardPass, RunningCall, returned_call, running, running_calls


class _Capture:
    """One open capture: its listeners, its layers, the models whose calls are passes, and the thread that opened it."""

    def __init__(
        self, on_layer: Callable, on_end: Callable | None, layers: Sequence[Layer], models: Sequence[nn.Module]
    ) -> None:
        self.on_layer, self.on_end = on_layer, on_end
        self.layers, self.projections = layers, [layer for layer in layers if layer.projection]
        self.models, self.inside = models, {module for model in models for module in model.modules()}
        self.thread = threading.get_ident()
        # numbers of the layers that have shown which of their axes is the batch
        self.known_batch_axis: set[int] = set()

    def listens(self) -> bool:
        """Return whether a pass that begins in this thread is for this capture."""
        if any(call.capture is self for call in running_calls()):  # a call inside a pass belongs to it
            return True
        thread = threading.get_ident()
        return self.thread == thread or not any(
            other.thread == thread and self._same_model(other) for other in _OPEN_CAPTURES
        )

    def _same_model(self, other: _Capture) -> bool:
        return any(model in other.inside for model in self.models) or any(
            model in self.inside for model in other.models
        )


# Open captures; the layers that they read, by attention module; the models whose calls are passes.
_OPEN_CAPTURES: tuple[_Capture, ...] = ()
_CAPTURED_LAYERS: weakref.WeakKeyDictionary[nn.Module, dict[_Capture, Layer]] = weakref.WeakKeyDictionary()
_CAPTURED_MODELS: weakref.WeakKeyDictionary[nn.Module, tuple[_Capture, ...]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()
_ORIGINAL = AttentionInterface.get_interface


@contextlib.contextmanager
def capture(
    model: nn.Module,
    on_layer: Callable[[HeadOutputs], Any],
    on_end: Callable[[ForwardPass], Any] | None = None,
    layers: Sequence[Layer] | None = None,
) -> Iterator[None]:
    """Call ``on_layer`` with every chosen layer's heads during each forward pass in the block, on every backend.

    ``on_end`` is called for each pass when the outermost call of the model (with its head) has returned, and not if an
    exception broke it off. Both run without gradients. Captures nest, also on one model. A pass is seen by the captures
    that its own thread has opened on this model; a pass in a thread that has opened none, by all of them. Calls outside
    a forward pass of the model (the second run of a checkpointed layer, a layer called by hand) are not handed on.

    Args:
        model: a model, or a module that contains one.
        on_layer: receives a :class:`HeadOutputs` per layer and pass.
        on_end: receives the :class:`ForwardPass`.
        layers: the layers to capture; None takes those of :func:`.readable_layers.capturable_layers`.

    Raises:
        AttnExtError: see :func:`.readable_layers.capturable_layers`; inside the block, for a pass that continues a
            cache, whose earlier outputs are gone; for a mask (B, N) of values other than 0 and 1; for a projection that
            gets another shape or width, that gets as many texts as tokens before a pass has shown which axis is the
            batch, or that is not called at all.

    Example:
        >>> with capture(model, lambda call: print(call.layer.index, call.output.shape)):  # doctest: +SKIP
        ...     model(**batch)

    Source: ours.
    """
    layers = capturable_layers(model) if layers is None else layers
    opened = _Capture(on_layer, on_end, layers, reading_models(model, layers))
    handles = []
    try:
        _install(opened)
        for layer in opened.projections:
            handles.append(layer.module.register_forward_pre_hook(_projection_hook(opened)))
        for called in opened.models:
            handles.append(called.register_forward_hook(_end_hook(opened)))
        yield
    finally:
        for handle in handles:
            handle.remove()
        _remove(opened)


def _install(opened: _Capture) -> None:
    global _OPEN_CAPTURES
    with _LOCK:
        for layer in opened.layers:
            # replaced, never changed: another thread may be iterating over it
            _CAPTURED_LAYERS[layer.module] = {**_CAPTURED_LAYERS.get(layer.module, {}), opened: layer}
        for model in opened.models:
            if model not in _CAPTURED_MODELS:
                _wrap_forward(model)
            _CAPTURED_MODELS[model] = (*_CAPTURED_MODELS.get(model, ()), opened)
        _OPEN_CAPTURES = (*_OPEN_CAPTURES, opened)
        AttentionInterface.get_interface = _get_interface  # type: ignore[method-assign]  # see the module's docstring


def _remove(closed: _Capture) -> None:
    global _OPEN_CAPTURES
    with _LOCK:
        for layer in closed.layers:
            others = {o: entry for o, entry in _CAPTURED_LAYERS.get(layer.module, {}).items() if o is not closed}
            if others:
                _CAPTURED_LAYERS[layer.module] = others
            else:
                _CAPTURED_LAYERS.pop(layer.module, None)
        for model in closed.models:
            rest = tuple(other for other in _CAPTURED_MODELS.get(model, ()) if other is not closed)
            if rest:
                _CAPTURED_MODELS[model] = rest
            elif _CAPTURED_MODELS.pop(model, None):
                _unwrap_forward(model)
        _OPEN_CAPTURES = tuple(other for other in _OPEN_CAPTURES if other is not closed)
        if not _OPEN_CAPTURES:
            AttentionInterface.get_interface = _ORIGINAL  # type: ignore[method-assign]


def _wrap_forward(model: nn.Module) -> None:
    """Let ``model.forward`` enter the calls of open captures; a hook would miss a KeyboardInterrupt.

    It is a bound method, so that a copy of the model runs the copy.
    """
    instance_forward = model.__dict__.get("forward")  # set by libraries such as accelerate
    original = type(model).forward if instance_forward is None else instance_forward

    # A model that is compiled inside the block is compiled around this function, and captured all the same.
    @functools.partial(torch.compiler.disable, recursive=False)
    @functools.wraps(original)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        first = (self,) if instance_forward is None else ()
        calls = _begin(self, args, kwargs)
        if not calls:
            return original(*first, *args, **kwargs)
        with running(calls):
            return original(*first, *args, **kwargs)

    model.__dict__["forward"] = types.MethodType(forward, model)
    model.__dict__["_attn_ext_instance_forward"] = instance_forward


@torch.compiler.disable
def _begin(model: nn.Module, args: tuple, kwargs: dict) -> tuple[RunningCall, ...]:
    """Return the calls that begin, one for each capture that listens."""
    listening = [each for each in _CAPTURED_MODELS.get(model, ()) if each.listens()]
    if not listening:
        return ()
    given = arguments(model, args, kwargs)
    check_no_cache(given)
    ids, mask = given.get("input_ids"), padding_mask(given)
    return tuple(RunningCall(each, model, ForwardPass(ids, mask)) for each in listening)


def _unwrap_forward(model: nn.Module) -> None:
    instance_forward = model.__dict__.pop("_attn_ext_instance_forward", None)
    model.__dict__.pop("forward", None)
    if instance_forward is not None:
        model.__dict__["forward"] = instance_forward


@torch.compiler.disable
def _get_interface(self: AttentionInterface, attn_implementation: str, default: Callable) -> Callable:
    function = _ORIGINAL(self, attn_implementation, default)
    return functools.partial(_observed, function) if running_calls() else function


@torch.compiler.disable
def _observed(function: Callable, module: nn.Module, query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Any:
    result = function(module, query, key, *args, **kwargs)
    if module in _CAPTURED_LAYERS and not is_cross_attention(module):
        for listener, layer, passes in _listeners(module):
            with torch.no_grad():
                listener.on_layer(_interface_call(layer, _reading_pass(passes), result[0], query, key, args, kwargs))
    return result


def _projection_hook(opened: _Capture) -> Callable:
    """Return the forward pre-hook of an output projection."""

    @torch.compiler.disable
    def hook(module: nn.Module, args: tuple) -> None:
        for listener, layer, passes in _listeners(module):
            if listener is opened:
                forward = _reading_pass(passes)
                mask = forward.attention_mask
                if forward.input_ids is None and mask is None:
                    raise AttnExtError(
                        "the pass names no input_ids and no inputs_embeds: call the model with its token ids by that "
                        "name, and its padding mask as attention_mask"
                    )
                with torch.no_grad():
                    shape = None if mask is None else mask.shape
                    output = heads_of_input(layer, args, shape, opened.known_batch_axis)
                    _check_width(passes[0], opened, layer, output.shape[1] * output.shape[3])
                    opened.on_layer(HeadOutputs(layer, forward, output))

    return hook


def _check_width(outermost: ForwardPass, opened: _Capture, layer: Layer, width: int) -> None:
    """Note that the layer ran in the pass; raise if it is wider or narrower than the layers before it."""
    widths = outermost.notes.setdefault(opened, {})
    widths[layer.index] = width
    first = next(iter(widths))
    if widths[first] != width:
        raise AttnExtError(
            f"{layer.name} got {width} numbers a token and layer {first} {widths[first]}: "
            "they are not projections of one kind; name one kind"
        )


def _listeners(module: nn.Module) -> list[tuple[_Capture, Layer, list[ForwardPass]]]:
    """Return who listens to a module in this context, and the passes that it is in, the outermost first."""
    listeners = []
    for listener, layer in _CAPTURED_LAYERS.get(module, {}).items():
        passes = [call.forward for call in running_calls() if call.capture is listener]
        if passes:
            listeners.append((listener, layer, passes))
    return listeners


def _reading_pass(passes: list[ForwardPass]) -> ForwardPass:
    """Return the innermost pass that knows its tokens: a head may read the tokens and pass embeddings on."""
    return next((each for each in reversed(passes) if each.input_ids is not None), passes[-1])


def _interface_call(
    layer: Layer, forward: ForwardPass, output: Tensor, query: Tensor, key: Tensor, args: tuple, kwargs: dict
) -> HeadOutputs:
    batch, heads, length, _ = query.shape
    if output.ndim != 4 or output.shape[:3] != (batch, length, heads):
        raise AttnExtError(
            f"{layer.name} returned attention outputs of shape {tuple(output.shape)}, not (batch, tokens, heads, size) "
            f"= ({batch}, {length}, {heads}, ...): its heads cannot be told apart"
        )
    if key.shape[2] != length:
        raise AttnExtError(
            f"{layer.name} got {length} queries and {key.shape[2]} keys: the pass continues a cache; give the whole "
            "text at once, with use_cache=False"
        )
    scaling, causal, window = (kwargs.get(name) for name in ("scaling", "is_causal", "sliding_window"))
    mask = args[1] if len(args) > 1 else kwargs.get("attention_mask")
    modifiers = left_out(kwargs, "maps")
    if window is not None and length > window and getattr(mask, "ndim", 0) != 4:
        modifiers.append("sliding_window")
    return HeadOutputs(
        layer,
        forward,
        output.detach().transpose(1, 2),
        query.detach(),
        key.detach(),
        mask,
        query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        causal_call(layer.module, causal),
        tuple(modifiers),
    )


def _end_hook(opened: _Capture) -> Callable:
    """Return the forward hook of a model. torch does not call it if the call, or a hook before it, fails."""

    @torch.compiler.disable
    def hook(module: nn.Module, args: tuple, result: Any) -> None:
        call = returned_call(opened, module)
        if call is None or result is None:
            return
        ended = [*call.finished, call.forward]
        outer = [other for other in running_calls() if other.capture is opened]
        if outer:
            outer[-1].finished += ended
            return
        widths = call.forward.notes.pop(opened, {})
        silent = [layer.name for layer in opened.projections if layer.index not in widths]
        if silent:
            raise AttnExtError(
                f"{silent[0]} was not called in the pass (its weights may be used without it, as in "
                "torch.nn.MultiheadAttention): nothing can be read there; name another module"
            )
        if opened.on_end is not None:
            with torch.no_grad():
                for forward in ended:
                    opened.on_end(forward)

    return hook
