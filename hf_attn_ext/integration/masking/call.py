"""The masks of one forward pass: the object that the mask function returns and that every attention call receives.

Transformers calls the mask function once per forward pass, without a layer number, and passes its result to every layer
unchanged. So it returns this object, which builds a layer's mask when the layer asks, each mask only once. Compiled
graphs do not contain it, because the masks may change between two calls.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, bidirectional_mask_function, causal_mask_function

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec
from hf_attn_ext.integration.base_models.families import layer_number

from .entries import FIELD
from .recipe import LayerMask, heads_of
from .settings import MaskSettings

PACKED = "packed_sequence_mask_function"


class Streams(NamedTuple):
    """The two streams of a pass that continues a state, see :func:`hf_attn_ext.attention.two_stream_attention`.

    Attributes:
        clean: (B, n) bool, True = real, the clean tokens, which enter the state.
        block: (B, l) bool, True = real, the mask tokens after them, which do not enter it.
        group: size of the groups of clean tokens that see each other both ways; 1 is the causal order.
    """

    clean: Tensor
    block: Tensor
    group: int


class _Given(NamedTuple):
    """The arguments of :func:`given_mask`."""

    config: Any = None
    mask: Tensor | Callable[[], Tensor] | None = None
    position_ids: Tensor | None = None
    streams: Streams | None = None


_NOTHING = _Given()
_GIVEN: contextvars.ContextVar[_Given] = contextvars.ContextVar("given_mask", default=_NOTHING)


@contextlib.contextmanager
def given_mask(
    config: Any, mask: Tensor | Callable[[], Tensor], position_ids: Tensor, streams: Streams | None = None
) -> Iterator[None]:
    """Use another mask in the forward passes of the model with this ``config``, in place of the masks of ``set_mask``.

    For inference under a mask that was made for training: the pass has other positions, which see what the positions of
    training would see. The mask is bool (B, Nq, Nk) with padding in it, or a function that returns it, called when a
    layer asks; ``position_ids`` (B, Nq) are its positions, from 0. ``streams`` are the same pattern for a pass with a
    cache, in which linear layers continue their state.
    """
    token = _GIVEN.set(_Given(config, mask, position_ids, streams))
    try:
        yield
    finally:
        _GIVEN.reset(token)


class MaskCall:
    """The masks of one forward pass, for its queries and keys by their lengths and offsets.

    ``padding`` is (B, Nk) bool, True = real token, or None. ``asked`` are the keywords of the mask function, for layers
    that keep the model's own pattern.
    """

    # generate() with a cache of a fixed size makes the mask before it calls the model, which then passes it to the mask
    # function again unless it is a padding mask.
    ndim = 4

    def __init__(
        self,
        settings: MaskSettings,
        padding: Tensor | None,
        q_length: int,
        q_offset: int,
        kv_length: int,
        kv_offset: int,
        asked: dict[str, Any],
    ) -> None:
        self.settings, self.asked = settings, asked
        self.q_length, self.q_offset = int(q_length), int(q_offset)
        self.kv_length, self.kv_offset = int(kv_length), int(kv_offset)
        self.stop = self.q_offset + self.q_length
        self.padding = None if padding is None or bool(padding.all()) else _widened(padding, self.kv_length)
        given = _GIVEN.get()
        if given.config is not asked.get("config"):
            given = _NOTHING
        self._given, self.given_positions, self.streams = given.mask, given.position_ids, given.streams
        self._numbers: dict[int, int] = {}
        self._built: dict[Any, Any] = {}

    def contiguous(self) -> MaskCall:
        """Return the object itself; Transformers 5.20 calls this on every mask that it prepares for ``generate()``."""
        return self

    @functools.cached_property
    def given(self) -> Tensor | None:
        """The mask of :func:`given_mask`, or None."""
        return self._given() if callable(self._given) else self._given

    @torch.compiler.disable
    def layer(self, module: nn.Module) -> LayerMask | None:
        """Return the mask of an attention module's layer; modules without a number (DistilBERT) are counted."""
        number = layer_number(module)
        if number is None:
            number = self._numbers.setdefault(id(module), len(self._numbers))
        layer = self.settings.of_layer(number)
        if layer is not None:
            self._check_pattern(layer)
        return layer

    @torch.compiler.disable
    def allowed(self, layer: LayerMask, device: torch.device, skip: bool) -> tuple[Tensor | None, bool]:
        """Return a layer's mask, or its masks per head, with padding: bool (1 or B, 1 or H, Nq, Nk).

        A row that may see no key sees itself. The mask is None where every key is seen. The second value says whether
        the attention function must be causal itself: with ``skip``, for the causal mask of a whole text without
        padding, as Transformers does for sdpa.
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
        if self.kv_length > self.stop:  # a cache of a fixed size: its rest holds nothing yet
            mask = nn.functional.pad(mask, (0, self.kv_length - self.stop))
        if self.q_offset and self.padding is None and bool(mask.all()):
            return None, False
        if self.padding is not None:
            mask = mask & self.padding.to(device)[:, None, None, :]
        return self._with_own(mask, device), False

    def _with_own(self, mask: Tensor, device: torch.device) -> Tensor:
        """The mask in which a row that sees nothing sees itself."""
        empty = ~mask.any(-1, keepdim=True)
        return mask | (empty & self._own(device)) if empty.any() else mask

    @torch.compiler.disable
    def additive(self, layer: LayerMask, device: torch.device, dtype: torch.dtype) -> Tensor | None:
        """Return the mask of :meth:`allowed` in additive form: 0, or the smallest number of ``dtype``."""

        def build() -> Tensor | None:
            mask, _ = self.allowed(layer, device, skip=False)
            return None if mask is None else torch.where(mask, mask.new_zeros((), dtype=dtype), torch.finfo(dtype).min)

        return self.kept(("additive", layer, str(device), dtype), build)

    def specs(self, layer: LayerMask) -> list[MaskSpec]:
        """Return a layer's masks at the length of this call, one per head, or a single one."""
        return [recipe.of_length(self.stop) for recipe in heads_of(layer)]

    def given_orders(self) -> MaskSpec | list[MaskSpec]:
        """Return the mask of :func:`given_mask` as one order per text, or one for all; no text sees its padding."""

        def build() -> MaskSpec | list[MaskSpec]:
            if self.given is None or self.given_positions is None:
                raise ValueError("this call has no given mask")
            own = torch.eye(self.q_length, dtype=torch.bool)
            texts, positions = self.given.cpu() | own, self.given_positions.cpu()
            if (texts == texts[:1]).all() and (positions == positions[:1]).all():
                return MaskSpec.from_mask(texts[0], position_ids=positions[0])
            return [MaskSpec.from_mask(text, position_ids=row) for text, row in zip(texts, positions, strict=True)]

        return self.kept("orders", build)

    def stock(self, backend: str) -> Tensor | None:
        """Return the mask of Transformers' own mask function, for a layer that keeps the model's pattern."""
        return self.kept(("base", backend), lambda: ALL_MASK_ATTENTION_FUNCTIONS[backend](**self.asked))

    def check_sizes(self, module: nn.Module, query: Tensor, key: Tensor) -> None:
        """Raise AttnExtError unless the call has the queries and keys that the mask was made for."""
        sizes = (query.shape[2], key.shape[2])
        if sizes != (self.q_length, self.kv_length) or self.kv_offset:
            raise AttnExtError(
                f"{type(module).__name__} attends with {sizes[0]} queries and {sizes[1]} keys (from {self.kv_offset}), "
                f"but the model asked for a mask of {self.q_length} and {self.kv_length}; set_mask cannot mask this "
                "layer"
            )

    def _own(self, device: torch.device) -> Tensor:
        """Bool (Nq, Nk), True at each query's own key."""
        queries = torch.arange(self.q_offset, self.stop, device=device)
        return queries[:, None] == torch.arange(self.kv_length, device=device)

    def _check_pattern(self, layer: LayerMask) -> None:
        pattern = self.asked["mask_function"]
        if pattern in (bidirectional_mask_function, causal_mask_function):
            return
        names = pattern_names(pattern)
        if PACKED in names and names <= {PACKED, "remap_positions_for_packed_sequence", "causal_mask_function"}:
            # Position ids that restart mean packed texts to Transformers, but are also the layout of many masks here.
            if all(_restarts(spec.position_ids) for spec in self.specs(layer)):
                return
            raise AttnExtError(
                "position_ids start again, as for packed texts, but the mask "
                f"{heads_of(layer)[0].title} is for one text; use the mask 'document', or pass attention_mask"
            )
        raise AttnExtError(
            f"this layer's own attention pattern is {' and '.join(sorted(names))!r}, which a mask of set_mask would "
            "replace silently; leave the layer out (per_layer={number: None})"
        )

    def kept(self, key: Any, build: Callable[[], Any]) -> Any:
        """Return what ``build`` returned when ``key`` was first asked for in this pass."""
        if key not in self._built:
            self._built[key] = build()
        return self._built[key]


@torch.compiler.disable
def mask_call(asked: dict[str, Any]) -> MaskCall:
    """Return the masks of a forward pass from the keywords of a mask function, ``config`` among them."""
    padding, settings = asked.get("attention_mask"), MaskSettings.of(asked.get("config"))
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
        asked["q_length"],
        asked.get("q_offset", 0),
        asked["kv_length"],
        asked.get("kv_offset", 0),
        asked,
    )


def wrong_mask(attention_mask: Any) -> str:
    """Return the error message for a mask that is no padding mask."""
    shape, dtype = tuple(getattr(attention_mask, "shape", ())), getattr(attention_mask, "dtype", "none")
    return (
        f"attention_mask has shape {shape} and dtype {dtype}, but this model's mask is the one of set_mask; pass the "
        "padding mask (batch, tokens), 1 = real token"
    )


def pattern_names(mask_function: Any) -> set[str]:
    """Return the names of the functions that a mask function of Transformers combines."""
    name = getattr(mask_function, "__qualname__", repr(mask_function)).split(".")[0]
    cells = [cell.cell_contents for cell in getattr(mask_function, "__closure__", None) or ()]
    if name in ("and_masks", "or_masks"):
        parts = [part for cell in cells if isinstance(cell, tuple) for part in cell]
        return {inner for part in parts for inner in pattern_names(part)}
    inner = {each for cell in cells if callable(cell) for each in pattern_names(cell)}
    return {name} | inner


def _restarts(position_ids: Tensor) -> bool:
    return bool((position_ids.diff() != 1).any())


def _widened(padding: Tensor, kv_length: int) -> Tensor:
    """The padding mask (B, Nk): keys beyond it are no tokens, as in Transformers' own masks."""
    short = kv_length - padding.shape[1]
    return nn.functional.pad(padding, (0, short)) if short > 0 else padding[:, :kv_length]
