"""The product over an order, the core of its form on a CPU, with its gradient in closed form. Source: ours.

    out_i = sum over the keys j that i sees of (q_i . k_j) v_j

Tile after tile, as :mod:`.order_plan` cuts the order's chains: dense weights inside a tile, and one running sum a
chain, which never leaves the cache. Nothing of the size ``N x N``, nor a running sum a position, exists at any time;
the backward pass computes the sums again. Tensors come in blocks of positions, as the feature maps make them: large
new memory costs more than what is computed in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hf_attn_ext.errors import AttnExtError

from .plan import OrderPlan, Places

_ALONE = 512  # positions at once


class _Blocks:
    """A tensor (B', N, .) that lies in blocks of ``size`` positions, the last one shorter."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self.parts, self.size = parts, parts[0].shape[1]

    def take(self, places: Places) -> Tensor:
        """(B', n, .), a view where the places are a run inside one block."""
        if not isinstance(places, slice):
            return self._whole().index_select(1, places)
        pieces = [self.parts[number][:, inside] for number, inside in self._pieces(places)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)

    def add(self, places: Places, part: Tensor) -> None:
        """Add ``part`` in place."""
        if not isinstance(places, slice):
            self._whole().index_add_(1, places, part)
            return
        done = 0
        for number, inside in self._pieces(places):
            count = inside.stop - inside.start
            self.parts[number][:, inside].add_(part[:, done : done + count])
            done += count

    def zeros(self) -> _Blocks:
        return _Blocks([torch.zeros_like(part, memory_format=torch.contiguous_format) for part in self.parts])

    def _whole(self) -> Tensor:
        (part,) = self.parts  # orders of scattered positions are not cut
        return part

    def _pieces(self, places: slice) -> list[tuple[int, slice]]:
        pieces, start = [], places.start
        while start < places.stop:
            number, first = divmod(start, self.size)
            stop = min(places.stop, (number + 1) * self.size)
            pieces.append((number, slice(first, first + stop - start)))
            start = stop
        return pieces


class _OrderProduct(torch.autograd.Function):
    @staticmethod
    def forward(plan: OrderPlan, *tensors: Tensor) -> tuple[Tensor, ...]:
        q, k, v = _three(tensors)
        out, state, masks = v.zeros(), _state(q, v), plan.masks_in(tensors[0].dtype)
        for tile in plan.tiles:
            y, z = k.take(tile.keys), v.take(tile.keys)
            for queries, mask in tile.inside:
                x = q.take(queries)
                part = torch.bmm(torch.bmm(x, y.mT).mul_(masks[mask]), z)
                out.add(queries, part.baddbmm_(x, state) if tile.before else part)
            if tile.carries:
                state.baddbmm_(y.mT, z, beta=int(tile.before))
            for queries in tile.after:
                out.add(queries, torch.bmm(q.take(queries), state))
        for place in _pieces(plan.alone):
            weight = (q.take(place) * k.take(place)).sum(-1, keepdim=True)
            out.add(place, weight * v.take(place))
        return tuple(out.parts)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.plan, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_Gradients.apply(ctx.plan, len(grads), *ctx.saved_tensors, *grads)


class _Gradients(torch.autograd.Function):
    """Of :class:`_OrderProduct`. ``once_differentiable`` would not do, see forms/products.py."""

    @staticmethod
    def forward(plan: OrderPlan, blocks: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        (q, k, v), grad = _three(tensors[:-blocks]), _Blocks(tensors[-blocks:])
        grad_q, grad_k, grad_v = q.zeros(), k.zeros(), v.zeros()
        state, masks = _state(q, v), plan.masks_in(tensors[-1].dtype)
        for tile in plan.tiles:  # what queries get, and what passes inside tiles
            y, z = k.take(tile.keys), v.take(tile.keys)
            to_y = to_z = None
            for queries, mask in tile.inside:
                x, g = q.take(queries), grad.take(queries)
                pairs, weights = torch.bmm(g, z.mT).mul_(masks[mask]), torch.bmm(x, y.mT).mul_(masks[mask])
                part = torch.bmm(pairs, y)
                grad_q.add(queries, part.baddbmm_(g, state.mT) if tile.before else part)
                to_y = torch.bmm(pairs.mT, x) if to_y is None else to_y.baddbmm_(pairs.mT, x)
                to_z = torch.bmm(weights.mT, g) if to_z is None else to_z.baddbmm_(weights.mT, g)
            if to_y is not None:
                grad_k.add(tile.keys, to_y)
                grad_v.add(tile.keys, to_z)
            if tile.carries:
                state.baddbmm_(y.mT, z, beta=int(tile.before))
            for queries in tile.after:
                grad_q.add(queries, torch.bmm(grad.take(queries), state.mT))
        fresh = True
        for tile in reversed(plan.tiles):  # what passes through the running sums, from a chain's end
            for queries in tile.after:
                state.baddbmm_(q.take(queries).mT, grad.take(queries), beta=int(not fresh))
                fresh = False
            if tile.carries:
                grad_k.add(tile.keys, torch.bmm(v.take(tile.keys), state.mT))
                grad_v.add(tile.keys, torch.bmm(k.take(tile.keys), state))
            if tile.before:
                for queries, _ in tile.inside:
                    state.baddbmm_(q.take(queries).mT, grad.take(queries), beta=int(not fresh))
                    fresh = False
            else:
                fresh = True
        for place in _pieces(plan.alone):
            x, y, z, g = (tensor.take(place) for tensor in (q, k, v, grad))
            change = (g * z).sum(-1, keepdim=True)
            grad_q.add(place, change * y)
            grad_k.add(place, change * x)
            grad_v.add(place, (x * y).sum(-1, keepdim=True) * g)
        return *grad_q.parts, *grad_k.parts, *grad_v.parts

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *unused: Tensor) -> None:
        raise AttnExtError(
            "linear attention over an order has no gradients of gradients: use naive_attention with mask=spec.dense()"
        )


def order_product(q: Sequence[Tensor], k: Sequence[Tensor], v: Sequence[Tensor], plan: OrderPlan) -> tuple[Tensor, ...]:
    """The sums above for every batch row and head.

    Args:
        q, k: (B, H, n, F) each; blocks of as many positions, but the last; one block of an order that is scattered.
        v: (B, H, n, D), in the same blocks.
        plan: of an order of N positions.

    Returns:
        (B, H, n, D), in the same blocks.
    """
    size = q[0].shape[:2]
    flat = [x.reshape(-1, *x.shape[2:]) for x in (*q, *k, *v)]
    return tuple(out.unflatten(0, size) for out in _OrderProduct.apply(plan, *flat))


def _three(tensors: Sequence[Tensor]) -> tuple[_Blocks, _Blocks, _Blocks]:
    count = len(tensors) // 3
    return tuple(_Blocks(tensors[start : start + count]) for start in (0, count, 2 * count))


def _state(q: _Blocks, v: _Blocks) -> Tensor:
    return q.parts[0].new_empty(len(q.parts[0]), q.parts[0].shape[2], v.parts[0].shape[2])


def _pieces(alone: tuple[Places, ...]) -> list[Places]:
    pieces: list[Places] = []
    for places in alone:
        if isinstance(places, slice):
            starts = range(places.start, places.stop, _ALONE)
            pieces += [slice(start, min(start + _ALONE, places.stop)) for start in starts]
        else:
            pieces += places.split(_ALONE)
    return pieces
