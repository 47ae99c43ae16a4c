"""Linear attention over any partial order: exact, in time ``O(N w d d')`` for ``w`` chains. Source: ours.

Every row of a dense mask is a down-set, and a down-set contains a prefix of every chain of the order. So the result of
a query is a sum over chains of a running sum along the chain, read at the end of the query's prefix, plus its own class
if no other position sees that. Causal attention is the case of one chain. Only chains that some position sees count:
block two-stream attention has one, butterfly attention two. See ``docs/evidence/linear-attention-over-orders.md``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hf_attn_ext.attention.feature_map import FeatureMap
from hf_attn_ext.attention.normaliser import Stabilised, divide, empty_rows, relative
from hf_attn_ext.attention.ops.bidirectional import split
from hf_attn_ext.attention.ops.causal import NARROW
from hf_attn_ext.attention.ops.inputs import (
    Outputs,
    accumulation_dtype,
    block_size,
    drop_tokens,
    mapper,
    padded_positions,
    token_positions,
)
from hf_attn_ext.attention.ops.state import with_ones
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec, Poset

from .batched import batched_plan, order_sums
from .plan import CHUNK, OrderPlan, plan_of
from .product import order_product

Order = Poset | MaskSpec


# a graph with every tile would take minutes to compile
@torch.compiler.disable  # type: ignore[untyped-decorator]  # torch does not annotate it
def order_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feature_map: FeatureMap,
    order: Order | list[Order],
    key_padding_mask: Tensor | None,
    scaling: float | None,
    dropout_p: float,
) -> Tensor:
    """Compute attention in which every query sees the real keys of its down-set.

    The arguments are those of :func:`linear_attention`, which has checked all but ``order``.

    Raises:
        AttnExtError: ``order`` has another type or length, is a list of another length than the batch, or has a mask
            that is not dense.
    """
    orders = _read(order, q, k)
    plans = [plan_of(row_order) for row_order in orders]
    dtype, length = accumulation_dtype(q), q.shape[2]
    size = max(1, length) if any(plan.scattered for plan in plans) else block_size(k, feature_map, CHUNK)
    query_map = mapper(feature_map, "query", dtype, scaling)
    key_map = mapper(feature_map, "key", dtype, scaling)
    queries, keys, values = [], [], []
    for xs, ys, zs, padded, positions in zip(
        q.split(size, 2),
        k.split(size, 2),
        v.split(size, 2),
        split(padded_positions(key_padding_mask), size, 2),
        split(_positions(feature_map, orders, k, key_padding_mask), size, 1),
        strict=False,
    ):
        queries.append(query_map(xs, positions))
        keys.append(key_map(ys, positions, padded))
        values.append(with_ones(drop_tokens(zs.to(dtype), dropout_p)))
    parts: list[Tensor] = []
    done: list[int] = []  # batch rows in the order of ``parts``, if there are several plans
    for plan, rows in _rows(plans):
        some = queries, keys, values
        if len(rows) < len(plans):
            chosen = torch.tensor(rows, device=q.device)
            some = (
                [_select(block, chosen) for block in queries],
                [_select(block, chosen) for block in keys],
                [block[chosen] for block in values],
            )
            done += rows
        outputs = Outputs(v[: len(rows)] if done else v, length)
        for weighted, bound in _sums(*some, plan, feature_map.rho):
            outputs.add(divide(weighted, bound, feature_map.rho))
        parts.append(outputs.join())
    return torch.cat(parts)[torch.tensor(done, device=q.device).argsort()] if done else parts[0]


Sums = list[tuple[Tensor, Tensor | None]]


def _sums(queries: list[Stabilised], keys: list[Stabilised], values: list[Tensor], plan: OrderPlan, rho: float) -> Sums:
    """Numerator and denominator (B, H, n, d_v + 1) of every query and its bound (B, H, n, 1) or None, in blocks.

    Amplitudes close to each other become one factor per key. Not on a GPU, which would have to be waited for.
    """
    amplitudes = [key.amplitude for key in keys if key.amplitude is not None]
    reference = torch.stack([x.detach().amax(-1) for x in amplitudes]).amax(0) if amplitudes else None
    if values[0].device.type == "cpu" and _one_scale(amplitudes, reference):
        sums = _on_one_scale(queries, keys, values, plan, reference)
        if reference is None or not _hidden([empty_rows(*parts, rho) for parts in sums], amplitudes, plan):
            return sums
    whole = batched_plan(plan, values[0].device)
    return [order_sums(_join(queries), _join(keys), torch.cat(values, 2), whole)]


def _on_one_scale(
    queries: list[Stabilised], keys: list[Stabilised], values: list[Tensor], plan: OrderPlan, reference: Tensor | None
) -> Sums:
    if reference is None:
        weights = [torch.ones_like(value[..., :1]) for value in values]
    else:
        amplitudes = [key.amplitude for key in keys if key.amplitude is not None]
        weights = [relative(amplitude, reference[..., None])[..., None] for amplitude in amplitudes]
        values = [value * weight for value, weight in zip(values, weights, strict=True)]
    weighted = order_product([x.features for x in queries], [x.features for x in keys], values, plan)
    query_bounds, key_bounds = ([x.bound for x in blocks if x.bound is not None] for blocks in (queries, keys))
    if not key_bounds:
        return [(part, None) for part in weighted]
    bounds = order_product(query_bounds, key_bounds, weights, plan)
    return list(zip(weighted, bounds, strict=True))


def _hidden(empty: list[Tensor], amplitudes: list[Tensor], plan: OrderPlan) -> bool:
    """Return whether a row (B, H, n), in blocks, looks empty although it sees a key, which its own scale may show."""
    if not any(bool(rows.any()) for rows in empty):
        return False
    real = [x.detach().isfinite().to(torch.float32)[..., None] for x in amplitudes]
    seen = order_product([torch.ones_like(x) for x in real], real, [torch.ones_like(x) for x in real], plan)
    return any(bool((rows & (count.squeeze(-1) > 0)).any()) for rows, count in zip(empty, seen, strict=True))


def _one_scale(amplitudes: list[Tensor], reference: Tensor | None) -> bool:
    """Return whether all keys can be taken relative to ``reference`` (B, H). Only used on a CPU."""
    if reference is None:
        return True
    lowest = (reference - NARROW)[..., None]
    return not any(bool(((x < lowest) & x.isfinite()).any()) for x in amplitudes)


def _join(blocks: list[Stabilised]) -> Stabilised:
    if len(blocks) == 1:
        return blocks[0]
    features, bounds, amplitudes = zip(*blocks, strict=True)
    bound, amplitude = (None if parts[0] is None else torch.cat(parts, 2) for parts in (bounds, amplitudes))
    return Stabilised(torch.cat(features, 2), bound, amplitude)


def _select(part: Stabilised, rows: Tensor) -> Stabilised:
    """Some batch rows."""
    bound, amplitude = (None if x is None else x[rows] for x in part[1:])
    return Stabilised(part.features[rows], bound, amplitude)


def _read(order: Any, q: Tensor, k: Tensor) -> list[Order]:
    """The order as a list: one for all batch rows, or one per row."""
    batch, length = q.shape[0], q.shape[2]
    if k.shape[2] != length:
        raise AttnExtError(f"an order takes as many queries as keys, got {length} and {k.shape[2]}")
    orders = list(order) if isinstance(order, list | tuple) else [order]
    if isinstance(order, list | tuple) and len(orders) != batch:
        raise AttnExtError(f"order holds {len(orders)} orders for {batch} batch rows: give one for all, or one per row")
    for row, given in enumerate(orders):
        name = f"order[{row}]" if isinstance(order, list | tuple) else "order"
        if not isinstance(given, Order):
            hint = "; of a mask make Poset.from_mask(mask)" if hasattr(given, "shape") else ""
            hint = "; give its poset" if isinstance(getattr(given, "poset", None), Poset) else hint
            raise AttnExtError(f"{name} must be a hasse.Poset or MaskSpec, got {type(given).__name__}{hint}")
        size = len(given) if isinstance(given, MaskSpec) else len(given.class_of)
        if size != length:
            raise AttnExtError(
                f"{name} has {size} positions, but query and key have {length}: make it for {length} (key_padding_mask "
                "hides the end of shorter texts)"
            )
    return orders


def _rows(plans: list[OrderPlan]) -> list[tuple[OrderPlan, list[int]]]:
    """Each plan with its batch rows; a single plan for all rows has row 0."""
    rows: dict[int, tuple[OrderPlan, list[int]]] = {}
    for number, plan in enumerate(plans):
        rows.setdefault(id(plan), (plan, []))[1].append(number)
    return list(rows.values())


def _positions(
    feature_map: FeatureMap, orders: list[Order], k: Tensor, key_padding_mask: Tensor | None
) -> Tensor | None:
    """Positions (B, N) for maps that use them: those of a MaskSpec, or for a Poset those among the real tokens."""
    counted = token_positions(feature_map, k, key_padding_mask)
    if counted is None or not any(isinstance(order, MaskSpec) for order in orders):
        return counted
    known = [
        order.position_ids.to(k.device) if isinstance(order, MaskSpec) else counted[row]
        for row, order in enumerate(orders)
    ]
    return torch.stack(known).expand(k.shape[0], -1)
