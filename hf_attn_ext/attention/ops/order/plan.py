"""The plan of attention over an order, prepared once: tiles of keys, and the queries that read them.

A chain is cut into tiles of at most ``CHUNK`` keys. A query whose prefix of the chain ends inside a tile reads the
running sum before the tile and, densely and by a mask, the keys of the tile that belong to its prefix. Chains shorter
than a tile have no running sum; several share a tile. So do small classes that no other position sees.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from hf_attn_ext.hasse import MaskSpec, Poset
from hf_attn_ext.hasse.decomposition import ChainDecomposition, chain_decomposition

T = TypeVar("T")
CHUNK = 64  # keys
READ = 512  # queries that read a tile in one product
_RUNS = 4  # up to so many runs of neighbouring positions are slices; more are gathered
_KEPT = 32  # plans of masks in closed form in the cache

Positions = slice | Tensor  # a run, or int64


class Read(NamedTuple):
    """Queries, and the index of the mask (queries, keys) of what they see of a tile."""

    queries: Positions
    mask: int


class Tile(NamedTuple):
    """Keys, and the queries that read them.

    Attributes:
        keys: positions of the keys.
        before: whether there is a running sum before these keys, which all queries in ``inside`` see entirely.
        inside: queries that see some of the keys.
        after: queries that see the running sum up to these keys, and no more of the chain.
        carries: whether any query reads the running sum that includes these keys.
    """

    keys: Positions
    before: bool
    inside: tuple[Read, ...]
    after: tuple[Positions, ...]
    carries: bool


@dataclasses.dataclass(frozen=True, eq=False)
class OrderPlan:
    """The plan of an order of ``size`` positions; its tensors are on the CPU.

    Attributes:
        size: N.
        tiles: the tiles, in the order of the chains; ``before`` is False at the start of a chain.
        alone: positions that no other position sees.
        masks: bool (queries, keys), each once.
        scattered: whether some positions are not runs.
    """

    size: int
    tiles: tuple[Tile, ...]
    alone: tuple[Positions, ...]
    masks: tuple[Tensor, ...]
    scattered: bool
    _typed: dict[torch.dtype, tuple[Tensor, ...]] = dataclasses.field(default_factory=dict)

    def masks_in(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Return the masks as factors of a dtype."""
        if dtype not in self._typed:
            with torch.inference_mode(False):  # they may be used in training later
                self._typed[dtype] = tuple(mask.to(dtype) for mask in self.masks)
        return self._typed[dtype]


def plan_of(order: Poset | MaskSpec) -> OrderPlan:
    """Return the plan of an order, made at first use and kept as long as the order and its tables do not change.

    Plans of masks in closed form are kept by form, options and size, so a mask that is made anew for every batch is
    prepared once.

    Raises:
        AttnExtError: the mask is not dense.
    """
    key = _form_key(order)
    if key is not None:
        with _lock:
            if key not in _by_form:
                _by_form[key] = _plan(order)
                if len(_by_form) > _KEPT:
                    _by_form.popitem(last=False)
            _by_form.move_to_end(key)
            return _by_form[key]
    number, tables = id(order), _written(order)  # comparing orders themselves is slow
    known = _by_object.get(number)
    if known is None or known[0]() is not order or known[1] != tables:
        known = weakref.ref(order, lambda gone: _forget(number, gone)), tables, _plan(order)
        _by_object[number] = known
    return known[2]


def _plan(order: Poset | MaskSpec) -> OrderPlan:
    with torch.inference_mode(False):  # they may be used in training later
        return make_plan(chain_decomposition(order))


def _written(order: Poset | MaskSpec) -> list[tuple[Any, ...]]:
    """A value that changes when a table of the order is replaced or written to in place."""
    tables = order.tables if isinstance(order, MaskSpec) else ()
    # torch counts no writes to tensors of inference mode
    return [(x.data_ptr(), tuple(x.flatten().tolist()) if x.is_inference() else x._version) for x in tables]


_lock = threading.RLock()
_by_object: dict[int, tuple[weakref.ref[Poset | MaskSpec], list[tuple[Any, ...]], OrderPlan]] = {}
_by_form: OrderedDict[Hashable, OrderPlan] = OrderedDict()


def _form_key(order: Poset | MaskSpec) -> Hashable | None:
    """The function, plain options and size that determine a mask in closed form; None for other orders."""
    if not isinstance(order, MaskSpec):
        return None
    form = getattr(order, "form", None)
    if not isinstance(form, functools.partial) or form.keywords or order.tables:
        return None
    return (form.func, form.args, len(order)) if all(isinstance(arg, int | str) for arg in form.args) else None


def _forget(number: int, gone: weakref.ref[Poset | MaskSpec]) -> None:
    known = _by_object.get(number)
    if known is not None and known[0] is gone:
        del _by_object[number]


def make_plan(cover: ChainDecomposition) -> OrderPlan:
    """Return the plan of a chain decomposition, see the top of this file."""
    return _Builder(cover).plan()


class _Builder:
    """Makes the plan of a chain decomposition."""

    def __init__(self, cover: ChainDecomposition) -> None:
        self.cover = cover
        self.tiles: list[Tile] = []
        self.masks: list[Tensor] = []
        self.numbers: dict[tuple[tuple[int, ...], bytes], int] = {}

    def plan(self) -> OrderPlan:
        cover = self.cover
        short = []
        for number, chain in enumerate(cover.chains):
            if len(chain) > CHUNK:
                self._chain(chain, cover.prefix[number])
            elif len(chain):
                short.append(number)
        short.sort(key=lambda number: cover.chains[number].min())
        for numbers in _packed(short, [len(cover.chains[number]) for number in short]):
            self._short_chains(np.array(numbers))
        single: list[np.ndarray] = []
        small: list[np.ndarray] = []
        for members in _groups(cover.group):
            if len(members) > CHUNK:
                self._large_class(members)
            elif len(members) > 1:
                small.append(members)
            else:
                single.append(members)
        for some in _packed(small, list(map(len, small))):
            members = np.sort(np.concatenate(some))
            own = cover.group[members]
            self._tile(members, False, own[:, None] == own, members, False)
        alone = _positions(np.concatenate(single)) if single else ()
        used = [*alone]
        for tile in self.tiles:
            used += [tile.keys, *(read.queries for read in tile.inside), *tile.after]
        scattered = not all(isinstance(positions, slice) for positions in used)
        return OrderPlan(len(cover.group), tuple(self.tiles), alone, tuple(self.masks), scattered)

    def _chain(self, chain: np.ndarray, prefix: np.ndarray) -> None:
        """Tiles of a long chain; a query belongs to the tile in which its prefix ends."""
        queries = np.flatnonzero(prefix)
        tile = (prefix[queries] - 1) // CHUNK
        queries = queries[np.argsort(tile, kind="stable")]
        counts = np.bincount(tile, minlength=-(-len(chain) // CHUNK))
        last = int(np.flatnonzero(counts)[-1])
        for number, some in enumerate(np.split(queries, np.cumsum(counts)[:-1])):
            start = number * CHUNK
            keys, rank = _sorted_keys(chain[start : start + CHUNK])
            sees = (prefix[some] - start)[:, None] > rank
            self._tile(keys, number > 0, sees, some, number < last)
            if number == last:
                break

    def _short_chains(self, numbers: np.ndarray) -> None:
        """One tile of several chains, of which every query sees its prefixes."""
        chains = [self.cover.chains[number] for number in numbers]
        rank = np.concatenate([np.arange(len(chain)) for chain in chains])
        keys, order = _sorted_keys(np.concatenate(chains))
        prefix = self.cover.prefix[numbers]
        queries = np.flatnonzero(prefix.any(0))
        owner = np.repeat(np.arange(len(chains)), list(map(len, chains)))[order]
        self._tile(keys, False, rank[order] < prefix[owner][:, queries].T, queries, False)

    def _large_class(self, members: np.ndarray) -> None:
        """A class that no other position sees: its sum, which all of its positions then read."""
        for start in range(0, len(members), CHUNK):
            keys = members[start : start + CHUNK]
            after = _positions(members) if start + CHUNK >= len(members) else ()
            self.tiles.append(Tile(_run(keys), start > 0, (), after, True))

    def _tile(self, keys: np.ndarray, before: bool, sees: np.ndarray, queries: np.ndarray, continues: bool) -> None:
        """Add a tile; queries that see all of it read the sum after it."""
        inside, after = [], []
        for part in _parts(queries):
            rows = sees[part]
            if rows.all() and (continues or before):
                after.append(_run(queries[part]))
            else:
                inside += [
                    Read(_run(queries[part][start : start + READ]), self._mask(rows[start : start + READ]))
                    for start in range(0, len(rows), READ)
                ]
        carries = continues or bool(after)
        self.tiles.append(Tile(_run(keys), before, tuple(inside), tuple(after), carries))

    def _mask(self, mask: np.ndarray) -> int:
        key = mask.shape, np.packbits(mask).tobytes()
        if key not in self.numbers:
            self.numbers[key] = len(self.masks)
            self.masks.append(torch.from_numpy(np.ascontiguousarray(mask)))
        return self.numbers[key]


def _sorted_keys(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The keys in rising order if they are a run then, and the index of each in the given order."""
    order = np.argsort(keys)
    rising = keys[order]
    if rising[-1] - rising[0] + 1 == len(keys):
        return rising, order
    return keys, np.arange(len(keys))


def _parts(positions: np.ndarray) -> list[slice]:
    """Runs of neighbours among rising positions; a single part if there are many runs."""
    cuts = [0, *(np.flatnonzero(np.diff(positions) != 1) + 1).tolist(), len(positions)]
    if len(cuts) - 1 > _RUNS or not len(positions):
        return [slice(0, len(positions))] if len(positions) else []
    return [slice(start, stop) for start, stop in itertools.pairwise(cuts)]


def _positions(positions: np.ndarray) -> tuple[Positions, ...]:
    return tuple(_run(positions[part]) for part in _parts(positions))


def _run(positions: np.ndarray) -> Positions:
    """A run of positions as a slice, others as int64."""
    first, count = int(positions[0]), len(positions)
    if positions[-1] - first + 1 == count and (np.diff(positions) == 1).all():
        return slice(first, first + count)
    return torch.from_numpy(positions.astype(np.int64))


def _packed(items: list[T], sizes: list[int]) -> Iterator[list[T]]:
    """Groups of successive items that fit into a tile together."""
    some: list[T] = []
    total = 0
    for item, size in zip(items, sizes, strict=True):
        if total + size > CHUNK:
            yield some
            some, total = [], 0
        some.append(item)
        total += size
    if some:
        yield some


def _groups(group: np.ndarray) -> list[np.ndarray]:
    """The positions of each group, sorted by the first."""
    members = np.flatnonzero(group >= 0)
    if not len(members):
        return []
    members = members[np.argsort(group[members], kind="stable")]
    parts = np.split(members, np.flatnonzero(np.diff(group[members])) + 1)
    return sorted(parts, key=lambda positions: positions[0])
