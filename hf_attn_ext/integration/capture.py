"""Every head's output before the output projection, during ordinary forward passes of any model of the interface.

The host's models look their attention function up at each call; while a :func:`capture` is open, what they find is
wrapped, and the wrapper hands the call's tensors on after the function has run. Nothing of the model is replaced, so
its outputs are the same bits. Only the captured model's own forward passes are wrapped; when the last capture ends, the
look-up is the host's again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_utils import AttentionInterface

from ..errors import AttnExtError
from .families import (
    CACHE_ARGUMENTS,
    attention_modules,
    attention_shape,
    is_causal,
    is_cross_attention,
    supported_model_types,
)
from .running_calls import begin_call, drop_calls, drop_dead, failed, running_calls


@dataclasses.dataclass
class ForwardPass:
    """One forward pass of the captured model, from the call of the model that reads the tokens.

    Attributes:
        input_ids: (B, N), or None where the caller gave embeddings.
        attention_mask: bool (B, N), True = real token; all True where the caller gave none.
        notes: room for whoever listens: it lives as long as the pass.
    """

    input_ids: Tensor | None
    attention_mask: Tensor | None
    notes: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Layer:
    """One self-attention layer: its number from 0, its dotted name, and its number of (query) heads."""

    index: int
    name: str
    module: nn.Module
    num_heads: int


@dataclasses.dataclass
class HeadOutputs:
    """What one layer computed in one call; the tensors are detached views, not copies.

    Attributes:
        layer: which one.
        forward: the pass that the call belongs to.
        output: (B, H, N, d_v), the heads' outputs before the output projection.
        query, key: (B, H, N, d) and (B, H or fewer, N, d), as the attention function got them.
        attention_mask: as the attention function got it, in the form of its backend.
        scaling: what multiplies ``q . k``.
        causal: query i sees the keys 0..i only, where ``attention_mask`` does not say what it sees.
        modifiers: names of the host's keywords that change the weights in a way that is not followed here.
    """

    layer: Layer
    forward: ForwardPass
    output: Tensor
    query: Tensor
    key: Tensor
    attention_mask: Any
    scaling: float
    causal: bool
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
    """One open capture: its listeners, and the thread that opened it."""

    def __init__(self, on_layer: Callable, on_end: Callable | None) -> None:
        self.on_layer, self.on_end = on_layer, on_end
        self.thread = threading.get_ident()


# Captured attention modules.
_CAPTURES: weakref.WeakKeyDictionary[nn.Module, dict[_Capture, Layer]] = weakref.WeakKeyDictionary()
_LOCK = threading.Lock()
_OPEN = 0
_ORIGINAL = AttentionInterface.get_interface

# Keywords of the host's attention functions that change the weights.
_MODIFIERS = ("position_bias", "softcap", "s_aux", "cu_seq_lens_q")


def capturable_layers(model: nn.Module) -> list[Layer]:
    """The self-attention layers of ``model`` whose heads can be captured, in order.

    Raises:
        AttnExtError: no model of transformers in it, or more than one; an encoder-decoder; a compiled model; or one
            whose attention does not go through the host's attention interface (XLNet, T5).

    Example:
        >>> [layer.name for layer in capturable_layers(model)][:1]  # doctest: +SKIP
        ['bert.encoder.layer.0.attention.self']
    """
    if not isinstance(model, nn.Module):
        raise AttnExtError(f"expected a model (torch.nn.Module), got {type(model).__name__}; open it with AutoModel")
    if any(hasattr(m, "_orig_mod") or getattr(m, "_compiled_call_impl", None) for m in model.modules()):
        raise AttnExtError(
            f"{type(model).__name__} is compiled, and a compiled forward pass cannot be looked into; give the model "
            "that torch.compile was called on"
        )
    hosts = _hosts(model)
    name = type(hosts[0] if hosts else model).__name__
    if not hosts:
        raise AttnExtError(f"{name} holds no transformers model; supported: {', '.join(supported_model_types())}")
    outer = [host for host in hosts if not any(host is not o and host in set(o.modules()) for o in hosts)]
    if len(outer) > 1:
        kinds = ", ".join(type(host).__name__ for host in outer)
        raise AttnExtError(f"{type(model).__name__} holds {len(outer)} models ({kinds}); give one of them")
    if _reads_two_texts(outer[0]):
        raise AttnExtError(
            f"{name} is an encoder-decoder, with two texts a pass; give model.get_encoder() or a decoder"
        )
    modules = attention_modules(outer[0])
    if not modules:
        raise AttnExtError(
            f"{name} ({outer[0].config.model_type}) does not use transformers' attention interface, so its "
            f"heads cannot be told apart before the projection; supported: {', '.join(supported_model_types())}"
        )
    layers = []
    for index, (path, module) in enumerate(modules):
        shape = attention_shape(module)
        if shape is None:
            raise AttnExtError(f"{path} ({type(module).__name__}) does not say its number of heads and their size")
        layers.append(Layer(index, path, module, shape[0]))
    return layers


def causal_model(model: nn.Module) -> bool:
    """Whether the tokens of ``model`` see only what comes before them."""
    return any(is_causal(layer.module) for layer in capturable_layers(model))


def token_reader(model: nn.Module) -> PreTrainedModel:
    """The part of ``model`` that turns token ids into hidden states, without its head."""
    return _hosts(model)[0].base_model


def config_special_ids(model: nn.Module) -> set[int]:
    """The ids that the configuration names as special; few models' configurations name all of them."""
    config = _hosts(model)[0].config
    ids = (getattr(config, f"{name}_token_id", None) for name in ("bos", "eos", "cls", "sep", "pad", "mask"))
    flat = (one for entry in ids for one in (entry if isinstance(entry, (list, tuple)) else [entry]))
    return {one for one in flat if isinstance(one, int)}


def max_tokens(model: nn.Module) -> int | None:
    """How many tokens a text may have, special tokens included; None where the configuration does not say."""
    config = _hosts(model)[0].config
    length = getattr(config, "max_position_embeddings", None)
    for module in model.modules():
        table = module._modules.get("position_embeddings")
        if isinstance(table, nn.Embedding) and table.padding_idx is not None:
            return table.num_embeddings - table.padding_idx - 1
    return length if isinstance(length, int) else None


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in evaluation mode; then each of its modules is in the mode that it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


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
        AttnExtError: see :func:`capturable_layers`; inside the block, for a pass that continues a cache: the earlier
            tokens' outputs are gone.

    Example:
        >>> with capture(model, lambda call: print(call.layer.index, call.output.shape)):  # doctest: +SKIP
        ...     model(**batch)
    """
    layers = capturable_layers(model) if layers is None else layers
    one = _Capture(on_layer, on_end)
    handles = []
    try:
        _install(one, layers)
        for host in _hosts(model):
            handles.append(host.register_forward_pre_hook(_begin(one), with_kwargs=True))
            handles.append(host.register_forward_hook(_end(one), always_call=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
        _remove(one, layers)
        drop_calls(lambda call: call.capture is one)


def _hosts(model: nn.Module) -> list[PreTrainedModel]:
    return [module for module in model.modules() if isinstance(module, PreTrainedModel)]


def _reads_two_texts(host: PreTrainedModel) -> bool:
    if not getattr(host.config, "is_encoder_decoder", False):
        return False
    return "Decoder" in type(host).__name__ or any(name.endswith("decoder") for name, _ in host.named_modules())


def _install(one: _Capture, layers: Sequence[Layer]) -> None:
    global _OPEN
    with _LOCK:
        for layer in layers:
            # replaced, never changed: another thread may be walking through it
            _CAPTURES[layer.module] = {**_CAPTURES.get(layer.module, {}), one: layer}
        _OPEN += 1
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
        _OPEN -= 1
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
    captures = _CAPTURES.get(module)
    if captures and not is_cross_attention(module):
        mine = [one for one in captures if one.thread == threading.get_ident()]
        drop_dead()
        for one in mine or captures:
            stack = [call.forward for call in running_calls() if call.capture is one]
            if stack:
                with torch.no_grad():
                    _deliver(one, captures[one], stack, result[0], query, key, args, kwargs)
    return result


def _deliver(
    one: _Capture, layer: Layer, stack: list, output: Tensor, query: Tensor, key: Tensor, args: tuple, kwargs: dict
) -> None:
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
    # a head may read the tokens and hand embeddings on: the pass is then the nearest one that knows its tokens
    forward = next((its for its in reversed(stack) if its.input_ids is not None), stack[-1])
    scaling, causal, window = (kwargs.get(name) for name in ("scaling", "is_causal", "sliding_window"))
    mask = args[1] if len(args) > 1 else kwargs.get("attention_mask")
    modifiers = [name for name in _MODIFIERS if kwargs.get(name) is not None]
    if window is not None and length > window and getattr(mask, "ndim", 0) != 4:
        modifiers.append("sliding_window")
    one.on_layer(
        HeadOutputs(
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
    )


def _begin(one: _Capture) -> Callable:
    @torch.compiler.disable
    def begin(module: nn.Module, args: tuple, kwargs: dict) -> None:
        given = _arguments(module, args, kwargs)
        cache = next((given[name] for name in CACHE_ARGUMENTS if given.get(name) is not None), None)
        seen = cache.get_seq_length() if hasattr(cache, "get_seq_length") else 0
        if isinstance(seen, int) and seen > 0:
            raise AttnExtError(
                f"the pass continues a cache of {seen} tokens, whose outputs are gone; give the whole text at once, "
                "with use_cache=False, or leave the block before generating"
            )
        begin_call(one, module, ForwardPass(given.get("input_ids"), _padding_mask(given)))

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
        elif one.on_end is not None:
            with torch.no_grad():
                for forward in ended:
                    one.on_end(forward)

    return end


@functools.cache
def _signature(cls: type) -> inspect.Signature:
    return inspect.signature(cls.forward)


def _arguments(module: nn.Module, args: tuple, kwargs: dict) -> dict[str, Any]:
    """A call's arguments by name; a wrong call is left to the model, whose message is the better one."""
    try:
        return dict(_signature(type(module)).bind_partial(module, *args, **kwargs).arguments) | kwargs
    except TypeError:
        return dict(kwargs)


def _padding_mask(given: dict[str, Any]) -> Tensor | None:
    ids, mask = given.get("input_ids"), given.get("attention_mask")
    if torch.is_tensor(mask) and mask.ndim == 2:
        return mask.to(torch.bool)
    like = ids if ids is not None else given.get("inputs_embeds")
    return None if like is None else torch.ones(like.shape[:2], dtype=torch.bool, device=like.device)
