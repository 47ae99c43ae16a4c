"""Every head's output before the output projection, during ordinary forward passes of any model of the interface.

The host's models look their attention function up at each call; while a :func:`capture` is open, what they find is
wrapped, and the wrapper hands the call's tensors on after the function has run. Nothing of the model is replaced, so
its outputs are the same bits. Only the captured model's own forward passes are wrapped; when the last capture ends, the
look-up is the host's again.

Of other models, a hook reads what each layer's output projection is given (:mod:`.projections`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import AttentionInterface

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.call_arguments import arguments, check_no_cache, padding_mask
from hf_attn_ext.integration.base_models.families import is_cross_attention
from hf_attn_ext.integration.base_models.projections import heads_of_input
from hf_attn_ext.integration.base_models.readable_layers import Layer, capturable_layers, reading_hosts

from .running_calls import begin_call, drop_calls, drop_dead, failed, running_calls


@dataclasses.dataclass
class ForwardPass:
    """One forward pass of the captured model, from the call of the model that reads the tokens.

    Attributes:
        input_ids: (B, N), or None where the caller gave embeddings.
        attention_mask: bool (B, N), True = real token; all True where the caller gave none. Of a mask with more axes,
            padding is what no query may see, see :func:`.call_arguments.padding_mask`.
        notes: room for whoever listens: it lives as long as the pass.
    """

    input_ids: Tensor | None
    attention_mask: Tensor | None
    notes: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class HeadOutputs:
    """What one layer computed in one call; the tensors are detached views, not copies.

    Attributes:
        layer: which one.
        forward: the pass that the call belongs to.
        output: (B, H, N, d_v), the heads' outputs before the output projection.
        query, key: (B, H, N, d) and (B, H or fewer, N, d), as the attention function got them; None where heads are
            read at the projection.
        attention_mask: as the attention function got it, in the form of its backend.
        scaling: what multiplies ``q . k``.
        causal: query i sees the keys 0..i only, where ``attention_mask`` does not say what it sees.
        modifiers: names of the host's keywords that change the weights in a way that is not followed here.
    """

    layer: Layer
    forward: ForwardPass
    output: Tensor
    query: Tensor | None = None
    key: Tensor | None = None
    attention_mask: Any = None
    scaling: float = 1.0
    causal: bool = False
    modifiers: tuple[str, ...] = ()

    def check_single(self, listener: Any) -> None:
        """Raise where ``listener`` got this layer in the same pass before: whose heads would be mixed up.

        Raises:
            AttnExtError: it did.
        """
        seen = self.forward.notes.setdefault((listener, "layers"), set())
        if self.layer.index in seen:
            raise AttnExtError(
                f"{self.layer.name} ran more than once in a pass: layers that share weights are not told apart"
            )
        seen.add(self.layer.index)


class _Capture:
    """One open capture: its listeners, its layers, the models whose calls are passes, and the thread that opened it."""

    def __init__(
        self, on_layer: Callable, on_end: Callable | None, layers: Sequence[Layer], hosts: Sequence[nn.Module]
    ) -> None:
        self.on_layer, self.on_end = on_layer, on_end
        self.projections = [layer for layer in layers if layer.projection]
        self.hosts, self.inside = hosts, {module for host in hosts for module in host.modules()}
        self.thread = threading.get_ident()
        # numbers of the layers that have shown which of their axes is the batch
        self.told: set[int] = set()

    def hears(self) -> bool:
        """Whether a pass that begins in this thread is for this capture."""
        here = threading.get_ident()
        return self.thread == here or not any(one.thread == here and self._same_model(one) for one in _OPEN)

    def _same_model(self, other: _Capture) -> bool:
        return any(host in other.inside for host in self.hosts) or any(host in self.inside for host in other.hosts)


# Captured attention modules.
_CAPTURES: weakref.WeakKeyDictionary[nn.Module, dict[_Capture, Layer]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()
_OPEN: tuple[_Capture, ...] = ()
_ORIGINAL = AttentionInterface.get_interface

# Keywords of the host's attention functions that change the weights.
_MODIFIERS = ("position_bias", "softcap", "s_aux", "cu_seq_lens_q")


@contextlib.contextmanager
def capture(
    model: nn.Module,
    on_layer: Callable[[HeadOutputs], Any],
    on_end: Callable[[ForwardPass], Any] | None = None,
    layers: Sequence[Layer] | None = None,
) -> Iterator[None]:
    """Inside, ``on_layer`` gets every chosen layer's heads during each forward pass, on every backend.

    ``on_end`` is called for each pass when the outermost call of the model (with its head) has come to its end, and not
    where that was broken off by an exception. Both run without gradients. Captures nest, on one model too. A pass is
    seen by the captures that its own thread has opened on this model; a pass in a thread that has opened none, by all
    of them. Calls outside a forward pass of the model (the second run of a checkpointed layer, a layer called by hand)
    are not handed on.

    Raises:
        AttnExtError: see :func:`.capturable.capturable_layers`; inside the block, for a pass that continues a cache:
            the earlier tokens' outputs are gone; for a mask (B, N) of other values than 0 and 1; for a projection that
            is given another shape or width, as many texts as tokens before it has shown which is which, or is not
            called at all.

    Example:
        >>> with capture(model, lambda call: print(call.layer.index, call.output.shape)):  # doctest: +SKIP
        ...     model(**batch)
    """
    layers = capturable_layers(model) if layers is None else layers
    one = _Capture(on_layer, on_end, layers, reading_hosts(model, layers))
    handles = []
    try:
        _install(one, layers)
        for layer in one.projections:
            handles.append(layer.module.register_forward_pre_hook(_entered(one)))
        for host in one.hosts:
            handles.append(host.register_forward_pre_hook(_begin(one), with_kwargs=True))
            handles.append(host.register_forward_hook(_end(one), always_call=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
        _remove(one, layers)
        drop_calls(lambda call: call.capture is one)


def _install(one: _Capture, layers: Sequence[Layer]) -> None:
    global _OPEN
    with _LOCK:
        for layer in layers:
            # replaced, never changed: another thread may be walking through it
            _CAPTURES[layer.module] = {**_CAPTURES.get(layer.module, {}), one: layer}
        _OPEN = (*_OPEN, one)
        AttentionInterface.get_interface = _get_interface


def _remove(one: _Capture, layers: Sequence[Layer]) -> None:
    global _OPEN
    with _LOCK:
        for layer in layers:
            rest = {other: its for other, its in _CAPTURES.get(layer.module, {}).items() if other is not one}
            if rest:
                _CAPTURES[layer.module] = rest
            else:
                _CAPTURES.pop(layer.module, None)
        _OPEN = tuple(other for other in _OPEN if other is not one)
        if not _OPEN:
            AttentionInterface.get_interface = _ORIGINAL


# A model that is compiled inside the block is traced around what is disabled here, and captured all the same.
@torch.compiler.disable
def _get_interface(self: AttentionInterface, attn_implementation: str, default: Callable) -> Callable:
    function = _ORIGINAL(self, attn_implementation, default)
    return functools.partial(_observed, function) if running_calls() else function


@torch.compiler.disable
def _observed(function: Callable, module: nn.Module, query: Tensor, key: Tensor, *args: Any, **kwargs: Any) -> Any:
    result = function(module, query, key, *args, **kwargs)
    if module in _CAPTURES and not is_cross_attention(module):
        for one, layer, stack in _listeners(module):
            with torch.no_grad():
                one.on_layer(_interface_call(layer, _nearest(stack), result[0], query, key, args, kwargs))
    return result


def _entered(one: _Capture) -> Callable:
    """The hook of an output projection."""

    @torch.compiler.disable
    def entered(module: nn.Module, args: tuple) -> None:
        for listener, layer, stack in _listeners(module):
            if listener is one:
                forward = _nearest(stack)
                mask = forward.attention_mask
                if forward.input_ids is None and mask is None:
                    raise AttnExtError(
                        "the pass names no input_ids and no inputs_embeds: call the model with its token ids by that "
                        "name, and its padding mask as attention_mask"
                    )
                with torch.no_grad():
                    output = heads_of_input(layer, args, None if mask is None else mask.shape, one.told)
                    ran = stack[0].notes.setdefault(one, {})
                    ran[layer.index] = output.shape[1] * output.shape[3]
                    first = next(iter(ran))
                    if ran[first] != ran[layer.index]:
                        raise AttnExtError(
                            f"{layer.name} got {ran[layer.index]} numbers a token and layer {first} {ran[first]}: "
                            "they are not projections of one kind; name one kind"
                        )
                    one.on_layer(HeadOutputs(layer, forward, output))

    return entered


def _listeners(module: nn.Module) -> list[tuple[_Capture, Layer, list[ForwardPass]]]:
    """Who listens to a module in this thread, and the passes that it is in, the outermost first."""
    drop_dead()
    found = []
    for one, layer in _CAPTURES.get(module, {}).items():
        stack = [call.forward for call in running_calls() if call.capture is one]
        if stack:
            found.append((one, layer, stack))
    return found


def _nearest(stack: list[ForwardPass]) -> ForwardPass:
    """A head may read the tokens and hand embeddings on: the pass is then the nearest one that knows its tokens."""
    return next((its for its in reversed(stack) if its.input_ids is not None), stack[-1])


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
    modifiers = [name for name in _MODIFIERS if kwargs.get(name) is not None]
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
        bool(getattr(layer.module, "is_causal", True) if causal is None else causal),
        tuple(modifiers),
    )


def _begin(one: _Capture) -> Callable:
    @torch.compiler.disable
    def begin(module: nn.Module, args: tuple, kwargs: dict) -> None:
        drop_dead()
        # whose pass it is is decided where it begins: a call inside it belongs to it
        if not any(call.capture is one for call in running_calls()) and not one.hears():
            return
        given = arguments(module, args, kwargs)
        check_no_cache(given)
        begin_call(one, module, ForwardPass(given.get("input_ids"), padding_mask(given)))

    return begin


def _end(one: _Capture) -> Callable:
    @torch.compiler.disable
    def end(module: nn.Module, args: tuple, result: Any) -> None:
        mine = [call for call in running_calls() if call.capture is one]
        places = [place for place, call in enumerate(mine) if call.module is module]
        if not places:  # its own beginning was refused
            return
        call, over = mine[places[-1]], mine[places[-1] :]
        drop_calls(lambda other: other in over)
        # a hook of somebody else may fail behind the model: the result is there, and the call has failed all the same
        if result is None or failed(call):
            return
        ended = [*call.over, call.forward]
        if places[-1]:
            mine[places[-1] - 1].over += ended
            return
        ran = call.forward.notes.pop(one, {})
        silent = [layer.name for layer in one.projections if layer.index not in ran]
        if silent:
            raise AttnExtError(
                f"{silent[0]} was not called in the pass (its weights may be used without it, as in "
                "torch.nn.MultiheadAttention): nothing can be read there; name another module"
            )
        if one.on_end is not None:
            with torch.no_grad():
                for forward in ended:
                    one.on_end(forward)

    return end
