"""The product over an order with all tiles at once, for GPUs and for keys of very different amplitudes.

The weights of a query are relative to the largest amplitude of all keys that it sees, over all chains. Every factor is
at most 1, so nothing overflows, and a query that sees only keys of small amplitude keeps them.
"""

from __future__ import annotations

import dataclasses
import weakref

import torch
from torch import Tensor
from torch.nn import functional

from hf_attn_ext.attention.normaliser import Stabilised, relative

from .plan import CHUNK, OrderPlan, Positions

_GROUP = 16  # running sums per product


@dataclasses.dataclass(frozen=True, eq=False)
class BatchedPlan:
    """A plan as tensors on one device. Tiles and reads are padded to ``CHUNK``.

    Attributes:
        size: N.
        keys, real: (T, CHUNK) positions of the keys, and False for padding.
        chains: (start, stop) tiles of the chains with running sums. Sum 0 is empty; sum ``s + 1`` comes after the
            ``s``-th tile of these chains, counted over all of them.
        queries, targets: (R, CHUNK) positions to read from (0 for padding) and to write to (N for padding).
        tile, state: (R,) the tile and the running sum that are read.
        sees: (R, CHUNK, CHUNK) bool, the keys of the tile that a query sees.
        late_queries, late_targets, late_state: the same for queries that read a running sum only.
        alone: positions that no other position sees.
    """

    size: int
    keys: Tensor
    real: Tensor
    chains: tuple[tuple[int, int], ...]
    queries: Tensor
    targets: Tensor
    tile: Tensor
    state: Tensor
    sees: Tensor
    late_queries: Tensor
    late_targets: Tensor
    late_state: Tensor
    alone: Tensor


_plans: weakref.WeakKeyDictionary[OrderPlan, dict[torch.device, BatchedPlan]] = weakref.WeakKeyDictionary()


def batched_plan(plan: OrderPlan, device: torch.device) -> BatchedPlan:
    """Return the plan's tensors on a device, made at first use and kept as long as the plan."""
    known = _plans.setdefault(plan, {})
    if device not in known:
        with torch.inference_mode(False):  # they may be used in training later
            known[device] = _make(plan, device)
    return known[device]


def order_sums(
    queries: Stabilised, keys: Stabilised, values: Tensor, plan: BatchedPlan
) -> tuple[Tensor, Tensor | None]:
    """Return the sums of every query, (B, H, N, d_v + 1) for :func:`.divide`, and the bound (B, H, N, 1) or None.

    Features are (B, H, N, .), values (B, H, N, d_v + 1) from :func:`.with_ones`.
    """
    scales = _scales(keys.amplitude, plan)
    weighted = _product(queries.features, keys.features, values, plan, scales)
    if keys.bound is None or queries.bound is None:
        return weighted, None
    return weighted, _product(queries.bound, keys.bound, torch.ones_like(values[..., :1]), plan, scales)


@dataclasses.dataclass
class _Scales:
    """Factors that keep exponentials in range. For keys without amplitudes they are None, or masks of 0 and 1.

    Attributes:
        pairs: (..., R, CHUNK, CHUNK), weights inside tiles, 0 for keys that are not seen.
        own: (..., T, CHUNK, 1), the weight of a key in its tile's sum, 0 for padding.
        fade, late: (..., R, CHUNK, 1), factors from the scale of a running sum to that of a query.
        alone: (..., n, 1), the same for positions that no other position sees.
        largest: (B, H, T), the largest amplitude of each tile.
    """

    pairs: Tensor
    own: Tensor
    fade: Tensor | None = None
    late: Tensor | None = None
    alone: Tensor | None = None
    largest: Tensor | None = None


def _scales(amplitude: Tensor | None, plan: BatchedPlan) -> _Scales:
    if amplitude is None:
        return _Scales(plan.sees, plan.real[..., None])
    own = _gather(amplitude, plan.keys).masked_fill(~plan.real, -torch.inf)  # (B, H, T, n)
    with torch.no_grad():
        largest = own.amax(-1)
        after_tiles = [largest[:, :, start:stop].cummax(-1).values for start, stop in plan.chains]
        empty = torch.full_like(amplitude[:, :, :1], -torch.inf)
        running = torch.cat([empty, *after_tiles], -1)
        before, late = _gather(running, plan.state)[..., None], _gather(running, plan.late_state)[..., None]
        inside = torch.where(plan.sees, _gather(own, plan.tile)[..., None, :], -torch.inf).amax(-1)
        seen = torch.full_like(functional.pad(amplitude, (0, 1)), -torch.inf)  # the last one is for padding
        for targets, amplitudes in (
            (plan.targets, torch.maximum(inside, before)),
            (plan.late_targets, late.expand(-1, -1, -1, CHUNK)),
            (plan.alone, _gather(amplitude, plan.alone)),
        ):
            index = targets.flatten().expand(*seen.shape[:2], -1)
            seen.scatter_reduce_(2, index, amplitudes.flatten(2), "amax")
        seen = torch.where(seen.isfinite(), seen, 0.0)
    query = _gather(seen, plan.targets)
    pairs = _gather(own, plan.tile)[..., None, :] - query[..., None]
    return _Scales(
        pairs.masked_fill(~plan.sees, -torch.inf).exp(),
        relative(own, largest[..., None])[..., None],
        relative(before, query)[..., None],
        relative(late, _gather(seen, plan.late_targets))[..., None],
        (_gather(amplitude, plan.alone) - _gather(seen, plan.alone)).exp()[..., None],
        largest,
    )


def _product(q: Tensor, k: Tensor, v: Tensor, plan: BatchedPlan, scales: _Scales) -> Tensor:
    tiles, values = _gather(k, plan.keys), _gather(v, plan.keys)
    sums_before = [v.new_zeros(*v.shape[:2], 1, k.shape[3], v.shape[3])]
    for start, stop in plan.chains:
        some = slice(start, stop)
        own = scales.own[..., some, :, :]
        sums = tiles[:, :, some].mT @ (values[:, :, some] * own)
        largest = None if scales.largest is None else scales.largest[:, :, some]
        sums_before.append(_running(sums.flatten(3), largest).unflatten(3, sums.shape[3:]))
    states = torch.cat(sums_before, 2)

    queries = _gather(q, plan.queries)
    inside = (queries @ _gather(tiles, plan.tile).mT * scales.pairs) @ _gather(values, plan.tile)
    before = queries @ _gather(states, plan.state)
    late = _gather(q, plan.late_queries) @ _gather(states, plan.late_state)
    alone = (_gather(q, plan.alone) * _gather(k, plan.alone)).sum(-1, keepdim=True)
    if scales.fade is not None and scales.late is not None and scales.alone is not None:
        before, late, alone = before * scales.fade, late * scales.late, alone * scales.alone
    out = v.new_zeros(*v.shape[:2], plan.size + 1, v.shape[3])
    out = out.index_add(2, plan.targets.flatten(), (inside + before).flatten(2, 3))
    out = out.index_add(2, plan.late_targets.flatten(), late.flatten(2, 3))
    out = out.index_add(2, plan.alone, alone * _gather(v, plan.alone))
    return out[:, :, : plan.size]


def _gather(x: Tensor, index: Tensor) -> Tensor:
    """``x[:, :, index]``, with a gradient that is summed without sorting."""
    gathered: Tensor = x.index_select(2, index.flatten()).unflatten(2, index.shape)
    return gathered


def _running(sums: Tensor, largest: Tensor | None) -> Tensor:
    """Running sums over tiles (B, H, T, .), relative to the largest amplitude so far instead of each tile's own."""
    if largest is None:
        return sums.cumsum(2)
    count = sums.shape[2]
    highest = largest.cummax(-1).values
    if count <= 2 * _GROUP:
        mix = relative(largest[..., None, :], highest[..., :, None]).tril()
        return mix @ sums
    fill = -count % _GROUP
    groups = functional.pad(sums, (0, 0, 0, fill)).unflatten(2, (-1, _GROUP))
    tops = functional.pad(largest, (0, fill), value=-torch.inf).unflatten(2, (-1, _GROUP))
    inner = tops.cummax(-1).values  # (B, H, G, n), within each group
    mix = relative(tops[..., None, :], inner[..., :, None]).tril()
    within = mix @ groups
    before = _running(within[:, :, :-1, -1], inner[:, :, :-1, -1])
    before = functional.pad(before, (0, 0, 1, 0))[..., None, :]
    outer = functional.pad(inner[..., -1].cummax(-1).values[..., :-1], (1, 0), value=-torch.inf)[..., None]
    top = torch.maximum(inner, outer)
    joined = within * relative(inner, top)[..., None] + before * relative(outer, top)[..., None]
    running: Tensor = joined.flatten(2, 3)[:, :, :count]
    return running


def _make(plan: OrderPlan, device: torch.device) -> BatchedPlan:
    keys: list[Tensor] = []
    real: list[Tensor] = []
    chains: list[list[int]] = []
    reads: list[tuple[Tensor, int, int, Tensor]] = []
    late: list[tuple[Tensor, int]] = []
    states = 0
    for number, tile in enumerate(plan.tiles):
        positions = _positions(tile.keys)
        keys.append(functional.pad(positions, (0, CHUNK - len(positions))))
        real.append(torch.arange(CHUNK) < len(positions))
        state = states if tile.before else 0
        if tile.carries or tile.before:
            if not tile.before:
                chains.append([number, number])
            chains[-1][1] = number + 1
            states += 1
        for read in tile.inside:
            queries, mask = _positions(read.queries), plan.masks[read.mask]
            mask = functional.pad(mask, (0, CHUNK - mask.shape[1]))
            reads += [
                (some, number, state, rows) for some, rows in zip(queries.split(CHUNK), mask.split(CHUNK), strict=True)
            ]
        for after in tile.after:
            late += [(some, states) for some in _positions(after).split(CHUNK)]

    def filled(parts: list[Tensor], value: int) -> Tensor:
        rows = [functional.pad(part, (0, CHUNK - len(part)), value=value) for part in parts]
        return torch.stack(rows) if rows else torch.empty(0, CHUNK, dtype=torch.int64)

    sees = [functional.pad(rows, (0, 0, 0, CHUNK - len(rows))) for *_, rows in reads]
    made = {
        "keys": torch.stack(keys) if keys else torch.empty(0, CHUNK, dtype=torch.int64),
        "real": torch.stack(real) if real else torch.empty(0, CHUNK, dtype=torch.bool),
        "queries": filled([queries for queries, *_ in reads], 0),
        "targets": filled([queries for queries, *_ in reads], plan.size),
        "tile": torch.tensor([tile for _, tile, _, _ in reads], dtype=torch.int64),
        "state": torch.tensor([state for _, _, state, _ in reads], dtype=torch.int64),
        "sees": torch.stack(sees) if sees else torch.empty(0, CHUNK, CHUNK, dtype=torch.bool),
        "late_queries": filled([queries for queries, _ in late], 0),
        "late_targets": filled([queries for queries, _ in late], plan.size),
        "late_state": torch.tensor([state for _, state in late], dtype=torch.int64),
        "alone": torch.cat([torch.empty(0, dtype=torch.int64), *map(_positions, plan.alone)]),
    }
    spans = tuple((start, stop) for start, stop in chains)
    return BatchedPlan(plan.size, chains=spans, **{name: tensor.to(device) for name, tensor in made.items()})


def _positions(positions: Positions) -> Tensor:
    return torch.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
