"""One mask of ``set_mask``, and that mask at the length that a call has."""

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

from .entries import alike, bits_entry, from_bits, plain_options

LARGEST = 1 << 16  # characters of config.json that one mask may take

_PROBES = (24, 96, 384, 1536, 6144)
_LONGEST = 4096  # tokens that are looked at when a mask is set


@dataclasses.dataclass(frozen=True, eq=False)
class Recipe:
    """A registered mask by its name, or a mask of one length that no registered name makes.

    Two recipes are equal where they give the same mask under the same title. Masks that are made from a recipe are kept
    in small caches of the process, which equal recipes share.

    Attributes:
        name: the name of a registered mask, or None.
        options: its options; without the option ``n`` the mask takes the length of each call.
        spec: the mask of one length where ``name`` is None.
    """

    name: str | None
    options: Mapping[str, Any]
    spec: MaskSpec | None = None

    @classmethod
    def by_name(cls, name: str, options: Mapping[str, Any]) -> Recipe:
        """Return the recipe of a registered mask."""
        known = mask_entry(name).options
        for option in options:
            if option not in known:
                near = suggest(option, known)
                raise AttnExtError(f"mask {name!r} has no option {option!r}.{near} Options: {', '.join(known)}")
        written = plain_options(options)
        if written is None:
            raise AttnExtError(f"mask {name!r}: its options cannot be written as JSON: {dict(options)!r}")
        recipe = cls(name, written)
        recipe.example()  # a wrong value raises now, not in the first forward pass
        return recipe

    @classmethod
    def of_spec(cls, spec: MaskSpec) -> Recipe:
        """Return the recipe of a mask of one length: the call that makes it if there is one, else the mask itself."""
        options = plain_options(spec.options)
        if spec.name in list_masks() and options and alike(make_mask(spec.name, **options), spec):
            return cls(spec.name, options)
        size = len(json.dumps(bits_entry(spec), separators=(",", ":")))
        if size > LARGEST:
            raise AttnExtError(
                f"{spec.title} takes {size} characters in config.json, more than {LARGEST}; register the function "
                "that makes it with hf_attn_ext.hasse.masks.register_mask and set it by its name"
            )
        return cls(None, {}, spec)

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> Recipe:
        """Return the recipe that an entry of ``config.json`` describes."""
        if "bits" in entry:
            return cls(None, {}, from_bits(entry))
        options = plain_options(entry["options"])
        if options is None or not isinstance(entry["name"], str):
            raise ValueError(f"mask {entry['name']!r} with options {entry['options']!r}")
        return cls(entry["name"], options)

    def to_entry(self) -> dict[str, Any]:
        """Return the entry of ``config.json``."""
        return {"name": self.name, "options": dict(self.options)} if self.spec is None else bits_entry(self.spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Recipe):
            return NotImplemented
        if self is other or self.spec is None or other.spec is None:
            return self is other or (self.spec is other.spec and self._key == other._key)
        return self._key == other._key and self.spec.roles == other.spec.roles and alike(self.spec, other.spec)

    def __hash__(self) -> int:
        return hash(self._key)

    @functools.cached_property
    def _key(self) -> tuple[str | None, str]:
        """``repr`` tells 1, 1.0 and True apart, which are equal but not all valid."""
        return self.name, repr(self.options) if self.spec is None else self.spec.title

    @functools.cached_property
    def title(self) -> str:
        """The name of the mask in messages."""
        if self.spec is not None:
            return repr(self.spec.title)
        words = ", ".join(f"{key}={value!r}" for key, value in self.options.items() if value is not None)
        return f"{self.name!r}" + (f" ({words})" if words else "")

    @property
    def fixed(self) -> bool:
        """Whether the mask has one length only."""
        return self.name is None or "n" in self.options or "n" not in mask_entry(self.name).options

    @property
    def causal(self) -> bool:
        """Whether it is the causal mask at every length."""
        return all(self.kind(len(spec)) == "causal" for spec in self.examples())

    def example(self) -> MaskSpec:
        """Return the mask, or a small one of its kind where it takes any length."""
        if self.fixed:
            return self._made()
        failed = AttnExtError(f"the mask {self.title} has no length")
        for n in _PROBES:
            try:
                return self._made(n)
            except AttnExtError as error:
                failed = error
        raise failed

    def examples(self, beyond: bool = False) -> list[MaskSpec]:
        """Return :meth:`example` at several lengths, shortest first; ``beyond``: one of them longer than its options.

        An option such as a window's width changes nothing at shorter lengths.
        """
        if self.fixed:
            return [self._made()]
        widths = [value for value in self.options.values() if beyond and is_whole(value)]
        longer = [min(2 * value + 2, _LONGEST) for value in widths if value >= _PROBES[2] // 2]
        specs = []
        for n in sorted({*_PROBES[:3], *longer}):
            try:
                specs.append(self._made(n))
            except AttnExtError:
                continue
        return specs or [self.example()]

    def of_length(self, length: int) -> MaskSpec:
        """Return the mask of ``length`` positions."""
        if not self.fixed:
            return self._made(self._number_of_tokens(length))
        spec = self._made()
        if len(spec) != length:
            raise AttnExtError(
                f"the mask {self.title} is for {len(spec)} positions, but the call has {length}; pad or cut the text, "
                "or set the mask by its name without n, which takes the length of each call"
            )
        return spec

    def rows(self, start: int, stop: int, device: torch.device | str) -> Tensor:
        """Return rows ``start`` to ``stop`` of the mask of ``stop`` positions, bool (stop - start, stop).

        Rows before ``start`` are those of a cache.
        """
        if start == 0:
            return self.dense(stop, str(device))
        if self.fixed:
            length = len(self._made())
            raise AttnExtError(
                f"the mask {self.title} is for {length} positions and cannot grow with a cache, which holds {start} "
                f"and gets {stop - start} more; pass use_cache=False, or set the mask by its name without n"
            )
        if self.name is not None and mask_entry(self.name).prefix_stable:
            whole = self.dense(max(64, 1 << (stop - 1).bit_length()), str(device))
            if whole[:start, start:stop].any():
                raise AttnExtError(self._not_safe(whole[:, :stop], start))
            return whole[start:stop, :stop]
        self.check_growth(start, stop)
        return self.dense(stop, str(device))[start:]

    @kept_by_name(maxsize=4)
    def dense(self, length: int, device: str) -> Tensor:
        """Return the mask (N, N) of ``length`` positions on ``device``."""
        with torch.inference_mode(False):  # what is kept must serve training later
            return self.of_length(length).dense().to(device)

    @kept_by_name(maxsize=256)
    def kind(self, length: int) -> str:
        """Return ``"full"``, ``"causal"`` or ``"other"`` for the mask of ``length`` positions."""
        full = causal = True
        start = 0
        for rows in self.of_length(length).chunks():
            full = full and bool(rows.all())
            if causal:
                below = torch.arange(start, start + len(rows))[:, None] >= torch.arange(length)
                causal = torch.equal(rows, below)
            if not full and not causal:
                return "other"
            start += len(rows)
        return "full" if full else "causal"

    @kept_by_name(maxsize=64)
    def check_growth(self, before: int, after: int) -> None:
        """Check that a cache of ``before`` positions stays valid when it grows to ``after``."""
        try:
            short, long = self.dense(before, "cpu"), self.dense(after, "cpu")
        except AttnExtError as error:
            raise AttnExtError(
                f"the mask {self.title} is not safe with a cache of {before} positions that gets {after - before} "
                f"more: {error}; pass use_cache=False"
            ) from None
        if long[:before, before:].any():
            raise AttnExtError(self._not_safe(long, before))
        if not torch.equal(long[:before, :before], short):
            raise AttnExtError(
                f"the mask {self.title} is not safe with a cache: what its first {before} positions see is another "
                f"when there are {after}; pass use_cache=False"
            )

    def _not_safe(self, mask: Tensor, start: int) -> str:
        row, column = (mask[:start, start:]).nonzero()[0].tolist()
        return (
            f"the mask {self.title} is not safe with a cache: position {row} of the {start} cached ones sees the later "
            f"{start + column}; pass use_cache=False"
        )

    @kept_by_name(maxsize=32)
    def _made(self, n: int | None = None) -> MaskSpec:
        if self.spec is not None:
            return self.spec
        if self.name is None:
            raise ValueError("a recipe needs a name or a spec")
        options = dict(self.options)
        if n is not None:
            options["n"] = n
            clipped = mask_entry(self.name).clipped
            if clipped is not None and is_whole(options.get(clipped)) and options[clipped] > n:
                options[clipped] = n
        return make_mask(self.name, **options)

    @kept_by_name(maxsize=256)
    def _number_of_tokens(self, length: int) -> int:
        """The ``n`` whose mask has ``length`` positions: from a line through two lengths, else by bisection."""

        def size(n: int) -> int:
            try:
                return len(self._made(n))
            except AttnExtError:
                return 0  # too short for the mask's other options

        top = len(self._made(length))  # an error of the options themselves comes from here
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
        raise AttnExtError(f"no n gives the mask {self.title} {length} positions ({near}); pad or cut the text")


LayerMask = Recipe | tuple[Recipe, ...]  # one mask for all heads, or one per head


def heads_of(layer: LayerMask | None) -> tuple[Recipe, ...]:
    """Return the masks of one layer: none, a single one, or one per head."""
    return layer if isinstance(layer, tuple) else () if layer is None else (layer,)
