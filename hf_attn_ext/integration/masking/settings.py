"""What a configuration says about a model's masks, and those masks at the length that a call has.

``config.attn_ext_mask``, as ``config.json`` holds it:

    {"backend": "sdpa", "masks": [{"name": "butterfly", "options": {}}], "layers": [0, 0, null, [0, 1]]}

``layers`` has an entry a layer: the number of a mask, one number a head, or null where the model's own pattern stays.
A mask without the option ``n`` is made for the length of each call; with it, or as ``bits``, it has one length.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hf_attn_ext.errors import AttnExtError, suggest
from hf_attn_ext.hasse import MaskSpec
from hf_attn_ext.hasse.order.reading import is_whole
from hf_attn_ext.hasse.registry import kept_by_name, list_masks, make_mask, mask_entry

from .entries import FIELD, NOT_PLAIN, alike, bits_entry, dumps, from_bits, plain

BACKENDS = ("sdpa", "eager", "flex")
LARGEST = 1 << 16  # characters of config.json that one mask may take

# Masks whose first m positions are the mask of m positions whatever follows, so that a long one serves shorter calls.
_NESTED = ("causal", "prefix_lm", "sliding_window")
# A window beyond the text is the whole text, in every length that a batch may have.
_CLIPPED = {"sliding_window": "w"}
_PROBES = (24, 96, 384, 1536, 6144)
_LONGEST = 4096  # tokens that are looked at when a mask is set


@dataclasses.dataclass(frozen=True)
class Recipe:
    """One mask as the configuration holds it.

    Attributes:
        text: the JSON text of its entry; two recipes of the same text are the same mask.
    """

    text: str

    @classmethod
    def by_name(cls, name: str, options: Mapping[str, Any]) -> Recipe:
        """A mask of the table; without the option ``n`` it takes the length of each call."""
        mask_entry(name)
        known = mask_entry(name).options
        for option in options:
            if option not in known:
                near = suggest(option, known)
                raise AttnExtError(f"mask {name!r} has no option {option!r}.{near} Options: {', '.join(known)}")
        written = {option: plain(value) for option, value in options.items()}
        if any(value is NOT_PLAIN for value in written.values()):
            raise AttnExtError(f"mask {name!r}: its options cannot be written as JSON: {dict(options)!r}")
        recipe = cls(dumps({"name": name, "options": written}))
        recipe.example()  # a wrong value is found now
        return recipe

    @classmethod
    def of_spec(cls, spec: MaskSpec) -> Recipe:
        """A mask of one length, by the call that makes it where there is one, else by its bits.

        Raises:
            AttnExtError: no such call, and the bits take more room than a configuration should have.
        """
        options = {option: plain(value) for option, value in spec.options.items()}
        if spec.name in list_masks() and options and not any(value is NOT_PLAIN for value in options.values()):
            if alike(make_mask(spec.name, **options), spec):
                return cls(dumps({"name": spec.name, "options": options}))
        text = dumps(bits_entry(spec))
        if len(text) > LARGEST:
            raise AttnExtError(
                f"{spec.title} takes {len(text)} characters in config.json, more than {LARGEST}; register the function "
                "that makes it with hf_attn_ext.hasse.masks.register_mask and set it by its name"
            )
        return cls(text)

    @property
    def entry(self) -> dict[str, Any]:
        return json.loads(self.text)

    @property
    def title(self) -> str:
        """How the mask is called in messages."""
        entry = self.entry
        if "bits" in entry:
            return repr(entry["title"])
        words = ", ".join(f"{key}={value!r}" for key, value in entry["options"].items() if value is not None)
        return f"{entry['name']!r}" + (f" ({words})" if words else "")

    @property
    def fixed(self) -> bool:
        """Whether the mask has one length only."""
        entry = self.entry
        return "bits" in entry or "n" in entry["options"] or "n" not in mask_entry(entry["name"]).options

    def example(self) -> MaskSpec:
        """The mask, or a small one of its kind where it takes any length."""
        if self.fixed:
            return _made(self.text)
        failed = None
        for n in _PROBES:
            try:
                return _made(self.text, n)
            except AttnExtError as error:
                failed = error
        raise failed

    def examples(self, beyond: bool = False) -> list[MaskSpec]:
        """Like :meth:`example`, in several lengths, shortest first; ``beyond``: one of them longer than its options."""
        if self.fixed:
            return [_made(self.text)]
        found = []
        for n in sorted({*_PROBES[:3], *(self._beyond() if beyond else ())}):
            try:
                found.append(_made(self.text, n))
            except AttnExtError:
                continue
        return found or [self.example()]

    def _beyond(self) -> list[int]:
        """A length where an option such as a window's width is not clipped any more."""
        widths = [value for value in self.entry["options"].values() if is_whole(value)]
        return [min(2 * value + 2, _LONGEST) for value in widths if value >= _PROBES[2] // 2]

    def of_length(self, length: int) -> MaskSpec:
        """The mask of ``length`` positions.

        Raises:
            AttnExtError: it has another length, or none of its lengths is this one.
        """
        if not self.fixed:
            return _of_length(self.text, length)
        spec = _made(self.text)
        if len(spec) != length:
            raise AttnExtError(
                f"the mask {self.title} is for {len(spec)} positions, but the call has {length}; pad or cut the text, "
                "or set the mask by its name without n, which takes the length of each call"
            )
        return spec

    def rows(self, start: int, stop: int, device: torch.device | str) -> Tensor:
        """Rows ``start`` to ``stop`` of the mask of ``stop`` positions, bool (stop - start, stop).

        Rows before ``start`` are those of a cache.

        Raises:
            AttnExtError: no such length, or rows of the cache would be others now.
        """
        if start == 0:
            return dense(self.text, stop, str(device))
        if self.fixed:
            length = len(_made(self.text))
            raise AttnExtError(
                f"the mask {self.title} is for {length} positions and cannot grow with a cache, which holds {start} "
                f"and gets {stop - start} more; pass use_cache=False, or set the mask by its name without n"
            )
        if self.entry["name"] in _NESTED:
            whole = dense(self.text, max(64, 1 << (stop - 1).bit_length()), str(device))
            if whole[:start, start:stop].any():
                raise AttnExtError(self._not_safe(whole[:, :stop], start))
            return whole[start:stop, :stop]
        check_growth(self.text, start, stop)
        return dense(self.text, stop, str(device))[start:]

    def _not_safe(self, mask: Tensor, start: int) -> str:
        row, column = (mask[:start, start:]).nonzero()[0].tolist()
        return (
            f"the mask {self.title} is not safe with a cache: position {row} of the {start} cached ones sees the later "
            f"{start + column}; pass use_cache=False"
        )

    @property
    def causal(self) -> bool:
        """Whether it is the causal mask in whatever length it takes."""
        return all(_kind(self.text, len(spec)) == "causal" for spec in self.examples())

    def kind(self, length: int) -> str:
        """``"full"``, ``"causal"`` or ``"other"``."""
        return _kind(self.text, length)


@kept_by_name(maxsize=32)
def _made(text: str, n: int | None = None) -> MaskSpec:
    entry = json.loads(text)
    if "bits" in entry:
        return from_bits(entry)
    options = dict(entry["options"])
    if n is not None:
        options["n"] = n
        clipped = options.get(_CLIPPED.get(entry["name"], ""))
        if isinstance(clipped, int) and not isinstance(clipped, bool) and clipped > n:
            options[_CLIPPED[entry["name"]]] = n
    return make_mask(entry["name"], **options)


@kept_by_name(maxsize=256)
def _number_of_tokens(text: str, length: int) -> int:
    """The ``n`` whose mask has ``length`` positions: usually a line through two lengths tells, else halving does."""

    def size(n: int) -> int:
        try:
            return len(_made(text, n))
        except AttnExtError:
            return 0  # too short for the mask's other options

    top = len(_made(text, length))  # an error of the options themselves comes from here
    if top == length:
        return length
    slope = top - size(length - 1) if length > 1 else 0
    guess = length - (top - length) // slope if slope > 0 else 0
    if guess >= 1 and size(guess) == length:
        return guess
    low, high = 0, length
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if size(middle) > length else (middle, high)
    if low and size(low) == length:
        return low
    near = ", ".join(f"n={n} gives {size(n)}" for n in (low, high) if n and size(n))
    raise AttnExtError(f"no n gives the mask {Recipe(text).title} {length} positions ({near}); pad or cut the text")


def _of_length(text: str, length: int) -> MaskSpec:
    return _made(text, _number_of_tokens(text, length))


def _spec(text: str, length: int) -> MaskSpec:
    return Recipe(text).of_length(length)


@kept_by_name(maxsize=4)
def dense(text: str, length: int, device: str) -> Tensor:
    """The mask (N, N) on ``device``; the last few are kept."""
    with torch.inference_mode(False):  # what is kept must serve training later
        return _spec(text, length).dense().to(device)


@kept_by_name(maxsize=256)
def _kind(text: str, length: int) -> str:
    full = causal = True
    start = 0
    for rows in _spec(text, length).chunks():
        full = full and bool(rows.all())
        if causal:
            below = torch.arange(start, start + len(rows))[:, None] >= torch.arange(length)
            causal = torch.equal(rows, below)
        if not full and not causal:
            return "other"
        start += len(rows)
    return "full" if full else "causal"


@kept_by_name(maxsize=64)
def check_growth(text: str, before: int, after: int) -> None:
    """Raise unless the mask of ``before`` positions is the beginning of that of ``after``, and sees nothing behind it.

    Raises:
        AttnExtError: rows of a cache would be others now.
    """
    recipe = Recipe(text)
    try:
        short, long = dense(text, before, "cpu"), dense(text, after, "cpu")
    except AttnExtError as error:
        raise AttnExtError(
            f"the mask {recipe.title} is not safe with a cache of {before} positions that gets {after - before} more: "
            f"{error}; pass use_cache=False"
        ) from None
    if long[:before, before:].any():
        raise AttnExtError(recipe._not_safe(long, before))
    if not torch.equal(long[:before, :before], short):
        raise AttnExtError(
            f"the mask {recipe.title} is not safe with a cache: what its first {before} positions see is another when "
            f"there are {after}; pass use_cache=False"
        )


@dataclasses.dataclass(frozen=True)
class MaskSettings:
    """All masks of a model.

    Attributes:
        backend: one of :data:`BACKENDS`.
        layers: a layer's mask, one a head, or None where the model's own pattern stays.
    """

    backend: str
    layers: tuple[Recipe | tuple[Recipe, ...] | None, ...]

    @classmethod
    def of(cls, config: Any) -> MaskSettings | None:
        """The settings that a configuration holds, or None.

        Raises:
            AttnExtError: the entry is not one that :func:`hf_attn_ext.set_mask` writes.
        """
        raw = getattr(config, FIELD, None)
        return None if raw is None else _read_settings(dumps(raw))

    def to_dict(self) -> dict[str, Any]:
        """The form that ``config.json`` holds."""
        texts = list(dict.fromkeys(recipe.text for recipe in self.recipes))

        def numbered(layer: Recipe | tuple[Recipe, ...] | None) -> Any:
            if isinstance(layer, tuple):
                return [texts.index(recipe.text) for recipe in layer]
            return None if layer is None else texts.index(layer.text)

        return {
            "backend": self.backend,
            "masks": [json.loads(text) for text in texts],
            "layers": [numbered(layer) for layer in self.layers],
        }

    @property
    def recipes(self) -> list[Recipe]:
        """Every mask that is in use, in the order of layers and heads."""
        return [recipe for layer in self.layers for recipe in heads_of(layer)]

    def of_layer(self, number: int) -> Recipe | tuple[Recipe, ...] | None:
        """The mask of a layer."""
        if number >= len(self.layers):
            raise AttnExtError(f"config.{FIELD} has masks for {len(self.layers)} layers, none for layer {number}")
        return self.layers[number]


def heads_of(layer: Recipe | tuple[Recipe, ...] | None) -> tuple[Recipe, ...]:
    """The masks of one layer: none, one, or one a head."""
    return layer if isinstance(layer, tuple) else () if layer is None else (layer,)


@functools.lru_cache(maxsize=16)
def _read_settings(text: str) -> MaskSettings:
    raw = json.loads(text)
    try:
        backend, layers = raw["backend"], raw["layers"]
        recipes = [Recipe(dumps(entry)) for entry in raw["masks"]]
        if backend not in BACKENDS or not all(isinstance(recipe.title, str) for recipe in recipes):
            raise ValueError(f"backend {backend!r}")
        read = tuple(
            None if layer is None else tuple(recipes[i] for i in layer) if isinstance(layer, list) else recipes[layer]
            for layer in layers
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise AttnExtError(
            f"config.{FIELD} is broken ({type(error).__name__}: {error}); set it anew with hf_attn_ext.set_mask"
        ) from None
    for recipe in recipes:
        if "bits" not in recipe.entry:
            mask_entry(recipe.entry["name"])
    return MaskSettings(backend, read)
