"""The product over an order, the core of order attention on a CPU, with its gradient in closed form. Source: ours.

    out_i = sum over the keys j that i sees of (q_i . k_j) v_j

It is computed tile by tile, as :mod:`.plan` cuts the chains of the order: dense weights inside a tile, and one running
sum per chain, which stays in the cache. There is no ``N x N`` matrix and no running sum per position at any time; the
backward pass computes the sums again. Tensors are lists of blocks of positions, as the feature maps return them,
because allocating large tensors costs more than the computation in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from hf_attn_ext.errors import AttnExtError

from .plan import OrderPlan, Positions

_ALONE = 512  # positions per product


class _Blocks:
    """A tensor (B', N, .) stored in blocks of ``size`` positions, the last one shorter."""

    def __init__(self, parts: Sequence[Tensor]) -> None:
        self.parts, self.size = parts, parts[0].shape[1]

    def take(self, positions: Positions) -> Tensor:
        """(B', n, .), a view if the positions are a run inside one block."""
        if not isinstance(positions, slice):
            return self._whole().index_select(1, positions)
        pieces = [self.parts[number][:, inside] for number, inside in self._pieces(positions)]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)

    def add(self, positions: Positions, part: Tensor) -> None:
        """Add ``part`` in place."""
        if not isinstance(positions, slice):
            self._whole().index_add_(1, positions, part)
            return
        done = 0
        for number, inside in self._pieces(positions):
            count = inside.stop - inside.start
            self.parts[number][:, inside].add_(part[:, done : done + count])
            done += count

    def zeros(self) -> _Blocks:
        return _Blocks([torch.zeros_like(part, memory_format=torch.contiguous_format) for part in self.parts])

    def _whole(self) -> Tensor:
        (part,) = self.parts  # scattered positions are not cut into blocks
        return part

    def _pieces(self, positions: slice) -> list[tuple[int, slice]]:
        pieces, start = [], positions.start
        while start < positions.stop:
            number, first = divmod(start, self.size)
            stop = min(positions.stop, (number + 1) * self.size)
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
        for some in _pieces(plan.alone):
            weight = (q.take(some) * k.take(some)).sum(-1, keepdim=True)
            out.add(some, weight * v.take(some))
        return tuple(out.parts)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.plan, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tensors = *ctx.saved_tensors, *grads
        return None, *_Gradients.apply(ctx.plan, len(grads), *tensors)  # type: ignore[no-untyped-call]  # torch does not annotate Function.apply


class _Gradients(torch.autograd.Function):
    """The gradients of :class:`_OrderProduct`; ``once_differentiable`` is not enough, see ops/causal_product.py."""

    @staticmethod
    def forward(plan: OrderPlan, blocks: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        (q, k, v), grad = _three(tensors[:-blocks]), _Blocks(tensors[-blocks:])
        to_inputs = grad_q, grad_k, grad_v = q.zeros(), k.zeros(), v.zeros()
        state, masks = _state(q, v), plan.masks_in(tensors[-1].dtype)
        for tile in plan.tiles:  # gradients of queries, and of keys and values inside tiles
            y, z = k.take(tile.keys), v.take(tile.keys)
            to_y, to_z = torch.empty_like(y), torch.empty_like(z)
            for number, (queries, mask) in enumerate(tile.inside):
                x, g = q.take(queries), grad.take(queries)
                pairs, weights = torch.bmm(g, z.mT).mul_(masks[mask]), torch.bmm(x, y.mT).mul_(masks[mask])
                part = torch.bmm(pairs, y)
                grad_q.add(queries, part.baddbmm_(g, state.mT) if tile.before else part)
                to_y.baddbmm_(pairs.mT, x, beta=min(number, 1))
                to_z.baddbmm_(weights.mT, g, beta=min(number, 1))
            if tile.inside:
                grad_k.add(tile.keys, to_y)
                grad_v.add(tile.keys, to_z)
            if tile.carries:
                state.baddbmm_(y.mT, z, beta=int(tile.before))
            for queries in tile.after:
                grad_q.add(queries, torch.bmm(grad.take(queries), state.mT))
        _through_running_sums(plan, (q, k, v), grad, to_inputs, state)
        for some in _pieces(plan.alone):
            x, y, z, g = (tensor.take(some) for tensor in (q, k, v, grad))
            change = (g * z).sum(-1, keepdim=True)
            grad_q.add(some, change * y)
            grad_k.add(some, change * x)
            grad_v.add(some, (x * y).sum(-1, keepdim=True) * g)
        return *grad_q.parts, *grad_k.parts, *grad_v.parts

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *unused: Tensor) -> None:
        raise AttnExtError(
            "linear attention over an order has no gradients of gradients: use naive_attention with mask=spec.dense()"
        )


def _through_running_sums(plan: OrderPlan, inputs: _Three, grad: _Blocks, to_inputs: _Three, state: Tensor) -> None:
    """Add the gradients of keys and values through the running sums, from the end of each chain."""
    (q, k, v), (_, grad_k, grad_v) = inputs, to_inputs
    fresh = True
    for tile in reversed(plan.tiles):
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


def order_product(q: Sequence[Tensor], k: Sequence[Tensor], v: Sequence[Tensor], plan: OrderPlan) -> tuple[Tensor, ...]:
    """Return the sums above in blocks (B, H, n, D), for blocks q and k (B, H, n, F) and v (B, H, n, D).

    Blocks have equal sizes, except the last; there is a single one if the plan is scattered.
    """
    size = q[0].shape[:2]
    flat = [x.reshape(-1, *x.shape[2:]) for x in (*q, *k, *v)]
    outputs = _OrderProduct.apply(plan, *flat)  # type: ignore[no-untyped-call]  # torch does not annotate Function.apply
    return tuple(out.unflatten(0, size) for out in outputs)


_Three = tuple[_Blocks, _Blocks, _Blocks]


def _three(tensors: Sequence[Tensor]) -> _Three:
    count = len(tensors) // 3
    return _Blocks(tensors[:count]), _Blocks(tensors[count : 2 * count]), _Blocks(tensors[2 * count :])


def _state(q: _Blocks, v: _Blocks) -> Tensor:
    return q.parts[0].new_empty(len(q.parts[0]), q.parts[0].shape[2], v.parts[0].shape[2])


def _pieces(alone: tuple[Positions, ...]) -> list[Positions]:
    pieces: list[Positions] = []
    for positions in alone:
        if isinstance(positions, slice):
            starts = range(positions.start, positions.stop, _ALONE)
            pieces += [slice(start, min(start + _ALONE, positions.stop)) for start in starts]
        else:
            pieces += positions.split(_ALONE)
    return pieces
