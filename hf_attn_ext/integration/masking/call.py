"""The masks of one forward pass: what the mask function returns, and what every attention call of the pass is given.

The host calls the mask function once a forward, without a layer number, and hands what it returns to every layer
unchanged. So it returns this object, which builds each layer's mask when that layer asks, and each mask only once.
It is left out of compiled graphs: which mask it is may change between two calls.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.masking_utils import (
    ALL_MASK_ATTENTION_FUNCTIONS,
    bidirectional_mask_function,
    causal_mask_function,
)

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec
from hf_attn_ext.integration.base_models.families import layer_number

from .entries import FIELD
from .recipe import LayerMask, heads_of
from .settings import MaskSettings

PACKED = "packed_sequence_mask_function"


class Streams(NamedTuple):
    """A pass as linear layers that keep a state take it, see :func:`hf_attn_ext.attention.two_stream_attention`.

    Attributes:
        clean: (B, n) bool, the clean tokens, which enter the state; True = real.
        block: (B, l) bool, the mask tokens behind them, which don't.
        group: clean tokens that see each other whole; 1: in order.
    """

    clean: Tensor
    block: Tensor
    group: int


_NONE = None, None, None, None
_GIVEN: contextvars.ContextVar[tuple] = contextvars.ContextVar("given_mask", default=_NONE)


@contextlib.contextmanager
def given_mask(
    config: Any, mask: Tensor | Callable[[], Tensor], position_ids: Tensor, streams: Streams | None = None
) -> Iterator[None]:
    """Let the forward passes inside of the model with this ``config`` use ``mask``, bool (B, Nq, Nk), where its own
    masks would be used. Other models that run inside, as a hook's may, keep theirs.

    For inference under a mask that was made for training: the pass has other positions, but sees what they would see.
    Padding is in it already. ``position_ids`` (B, Nq) are those of the mask, from 0. A function makes the mask when a
    layer asks for it. With ``streams``, which says the same of a pass with a cache, linear layers continue their state.
    """
    token = _GIVEN.set((config, mask, position_ids, streams))
    try:
        yield
    finally:
        _GIVEN.reset(token)


class MaskCall:
    """The masks of one forward pass.

    Args:
        settings: the model's masks.
        padding: (B, Nk) bool, True = real token, or None.
        q_length, q_offset: the call's tokens, and how many came before in the cache.
        kv_length, kv_offset: the keys.
        host: the keywords that the host gave the mask function, for layers that keep the model's own pattern.
    """

    # generate() with a cache of a fixed size makes the mask before it calls the model, which then hands it back to the
    # mask function unless it is a padding mask.
    ndim = 4

    def __init__(
        self,
        settings: MaskSettings,
        padding: Tensor | None,
        q_length: int,
        q_offset: int,
        kv_length: int,
        kv_offset: int,
        host: dict[str, Any],
    ) -> None:
        self.settings, self.host = settings, host
        self.q_length, self.q_offset = int(q_length), int(q_offset)
        self.kv_length, self.kv_offset = int(kv_length), int(kv_offset)
        self.stop = self.q_offset + self.q_length
        self.padding = None if padding is None or bool(padding.all()) else _widened(padding, self.kv_length)
        of, *given = _GIVEN.get()
        self._given, self.given_positions, self.streams = given if of is host.get("config") else _NONE[1:]
        self._numbers: dict[int, int] = {}
        self._built: dict[Any, Any] = {}

    def contiguous(self) -> MaskCall:
        """Itself; transformers 5.20 asks that of a mask that it made before it calls the model."""
        return self

    @functools.cached_property
    def given(self) -> Tensor | None:
        """The mask of :func:`given_mask`."""
        return self._given() if callable(self._given) else self._given

    @torch.compiler.disable
    def layer(self, module: nn.Module) -> LayerMask | None:
        """The mask of an attention module's layer; modules without a number (DistilBERT's) count in their order.

        Raises:
            AttnExtError: the layer's own pattern is one that a mask cannot stand in for.
        """
        number = layer_number(module)
        if number is None:
            number = self._numbers.setdefault(id(module), len(self._numbers))
        layer = self.settings.of_layer(number)
        if layer is not None:
            self._check_pattern(layer)
        return layer

    @torch.compiler.disable
    def allowed(self, layer: LayerMask, device: torch.device, skip: bool) -> tuple[Tensor | None, bool]:
        """The mask (1 or B, 1 or H, Nq, Nk) bool, or None where all keys are seen; and whether causality is left over.

        A row without a key that it may see, by its mask or by padding, sees itself.

        Args:
            layer: one mask, or one a head.
            device: where the attention is computed.
            skip: give ``(None, True)`` for the causal mask of a whole text without padding, as the host does for sdpa.
        """
        return self.kept(("allowed", layer, str(device), skip), lambda: self._allowed(layer, device, skip))

    def _allowed(self, layer: LayerMask, device: torch.device, skip: bool) -> tuple[Tensor | None, bool]:
        if self.given is not None:
            return self._with_own(self.given.to(device)[:, None], device), False
        distinct = set(heads_of(layer))
        if len(distinct) == 1 and self.padding is None and self.kv_length == self.stop and self.q_offset == 0:
            kind = next(iter(distinct)).kind(self.stop)
            if kind == "full" or (kind == "causal" and skip):
                return None, kind == "causal"
        rows = {recipe: recipe.rows(self.q_offset, self.stop, device) for recipe in distinct}
        if len(distinct) == 1:
            mask = next(iter(rows.values()))[None, None]
        else:
            mask = torch.stack([rows[recipe] for recipe in heads_of(layer)])[None]
        if self.kv_length > self.stop:  # a cache of a fixed size: places that hold nothing yet
            mask = nn.functional.pad(mask, (0, self.kv_length - self.stop))
        if self.q_offset and self.padding is None and bool(mask.all()):
            return None, False
        if self.padding is not None:
            mask = mask & self.padding.to(device)[:, None, None, :]
        return self._with_own(mask, device), False

    def _with_own(self, mask: Tensor, device: torch.device) -> Tensor:
        """The rule for rows that see nothing."""
        empty = ~mask.any(-1, keepdim=True)
        return mask | (empty & self._own(device)) if empty.any() else mask

    @torch.compiler.disable
    def additive(self, layer: LayerMask, device: torch.device, dtype: torch.dtype) -> Tensor | None:
        """The mask of :meth:`allowed` as what eager attention adds to its scores: 0, or the smallest number."""

        def build() -> Tensor | None:
            mask, _ = self.allowed(layer, device, skip=False)
            return None if mask is None else torch.where(mask, mask.new_zeros((), dtype=dtype), torch.finfo(dtype).min)

        return self.kept(("additive", layer, str(device), dtype), build)

    def specs(self, layer: LayerMask) -> list[MaskSpec]:
        """The masks of this call's length, one a head, or one."""
        return [recipe.of_length(self.stop) for recipe in heads_of(layer)]

    def given_orders(self) -> MaskSpec | list[MaskSpec]:
        """The given mask as an order a row, or one for all; padding is in it, as places that nobody sees."""

        def build() -> MaskSpec | list[MaskSpec]:
            own = torch.eye(self.q_length, dtype=torch.bool)
            texts, positions = self.given.cpu() | own, self.given_positions.cpu()
            if (texts == texts[:1]).all() and (positions == positions[:1]).all():
                return MaskSpec.from_mask(texts[0], position_ids=positions[0])
            return [MaskSpec.from_mask(text, position_ids=row) for text, row in zip(texts, positions, strict=True)]

        return self.kept("orders", build)

    def stock(self, backend: str) -> Tensor | None:
        """What the host's own mask function gives a layer that keeps the model's pattern."""
        return self.kept(("stock", backend), lambda: ALL_MASK_ATTENTION_FUNCTIONS[backend](**self.host))

    def check_sizes(self, module: nn.Module, query: Tensor, key: Tensor) -> None:
        """Raise unless the call has the queries and keys that the mask was asked for."""
        found = (query.shape[2], key.shape[2])
        if found != (self.q_length, self.kv_length) or self.kv_offset:
            raise AttnExtError(
                f"{type(module).__name__} attends with {found[0]} queries and {found[1]} keys (from {self.kv_offset}), "
                f"but the model asked for a mask of {self.q_length} and {self.kv_length}; a mask of set_mask cannot "
                "stand in here"
            )

    def _own(self, device: torch.device) -> Tensor:
        """(Nq, Nk): where a query's own key is."""
        queries = torch.arange(self.q_offset, self.stop, device=device)
        return queries[:, None] == torch.arange(self.kv_length, device=device)

    def _check_pattern(self, layer: LayerMask) -> None:
        asked = self.host["mask_function"]
        if asked in (bidirectional_mask_function, causal_mask_function):
            return
        names = pattern_names(asked)
        if PACKED in names and names <= {PACKED, "remap_positions_for_packed_sequence", "causal_mask_function"}:
            # Position ids that start again are packed texts to the host, but also the layout of many a mask here.
            if all(_starts_again(spec.position_ids) for spec in self.specs(layer)):
                return
            raise AttnExtError(
                "position_ids start again, as for packed texts, but the mask "
                f"{heads_of(layer)[0].title} is for one text; use the mask 'document', or pass attention_mask"
            )
        raise AttnExtError(
            f"this layer's own attention pattern is {' and '.join(sorted(names))!r}, which a mask of set_mask would "
            "replace unseen; leave the layer out (per_layer={number: None})"
        )

    def kept(self, key: Any, build: Callable[[], Any]) -> Any:
        """Return what ``build`` returned when ``key`` was first asked for in this pass."""
        if key not in self._built:
            self._built[key] = build()
        return self._built[key]


@torch.compiler.disable
def mask_call(host: dict[str, Any]) -> MaskCall:
    """Make the object from the keywords that the host gives a mask function, ``config`` among them.

    Raises:
        AttnExtError: no mask is set, or ``attention_mask`` is no padding mask.
    """
    padding, settings = host.get("attention_mask"), MaskSettings.of(host.get("config"))
    if isinstance(padding, MaskCall):
        return padding
    if settings is None:
        raise AttnExtError(
            f"attn_implementation='hasse', but no mask is set (config.{FIELD} is missing): call "
            "hf_attn_ext.set_mask(model, ...), or choose another attn_implementation"
        )
    if padding is not None and padding.ndim != 2:
        raise AttnExtError(wrong_mask(padding))
    return MaskCall(
        settings,
        None if padding is None else padding.to(torch.bool),
        host["q_length"],
        host.get("q_offset", 0),
        host["kv_length"],
        host.get("kv_offset", 0),
        host,
    )


def wrong_mask(attention_mask: Any) -> str:
    """What is wrong with a mask that is no padding mask."""
    shape, dtype = tuple(getattr(attention_mask, "shape", ())), getattr(attention_mask, "dtype", "none")
    return (
        f"attention_mask has shape {shape} and dtype {dtype}, but this model's mask is the one of set_mask; pass the "
        "padding mask (batch, tokens), 1 = real token"
    )


def pattern_names(mask_function: Any) -> set[str]:
    """What a mask function of the host is made of, by name."""
    name = getattr(mask_function, "__qualname__", repr(mask_function)).split(".")[0]
    cells = [cell.cell_contents for cell in getattr(mask_function, "__closure__", None) or ()]
    if name in ("and_masks", "or_masks"):
        return {found for cell in cells if isinstance(cell, tuple) for part in cell for found in pattern_names(part)}
    inner = {found for cell in cells if callable(cell) for found in pattern_names(cell)}
    return {name} | inner


def _starts_again(position_ids: Tensor) -> bool:
    return bool((position_ids.diff() != 1).any())


def _widened(padding: Tensor, kv_length: int) -> Tensor:
    """(B, Nk): keys that the padding mask does not reach yet are no tokens, as in the host's own masks."""
    short = kv_length - padding.shape[1]
    return nn.functional.pad(padding, (0, short)) if short > 0 else padding[:, :kv_length]
