"""The causal product, the core of causal attention on a CPU, with its gradient in closed form. Source: ours.

    out_i = q_i . state + sum_{j <= i} (q_i . k_j) v_j        state' = state + sum_j k_j v_j^T

It is computed chunk by chunk: dense weights inside the chunk, and one running sum that is updated in place and stays in
the cache. Autograd would store the sum of every chunk for the backward pass; here it is computed again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hf_attn_ext.errors import AttnExtError


class _CausalProduct(torch.autograd.Function):
    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor, state: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
        out, state = torch.empty_like(v), state.clone()
        for o, x, y, z in zip(*(tensor.split(chunk, 1) for tensor in (out, q, k, v)), strict=True):
            inside = torch.bmm(x, y.mT).tril_()
            o.copy_(torch.bmm(inside, z).baddbmm_(x, state))
            state.baddbmm_(y.mT, z)
        return out, state

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor, int], output: Any) -> None:
        *tensors, ctx.chunk = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_state: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        return *_Gradients.apply(*tensors, grad, grad_state, ctx.chunk), None  # type: ignore[no-untyped-call]  # torch does not annotate Function.apply


class _Gradients(torch.autograd.Function):
    """The gradients of :class:`_CausalProduct`.

    ``once_differentiable`` is not enough: it only raises if no other path leads to the tensor. Otherwise gradients of
    gradients would silently lack a part.
    """

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, state: Tensor, grad: Tensor, grad_state: Tensor, chunk: int
    ) -> tuple[Tensor, ...]:
        grad, state, grad_state = grad.contiguous(), state.clone(), grad_state.clone()
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        parts = (tensor.split(chunk, 1) for tensor in (q, k, v, grad, grad_q, grad_k, grad_v))
        chunks = list(zip(*parts, strict=True))
        for x, y, z, g, to_q, to_k, to_v in chunks:
            pairs = torch.bmm(g, z.mT).tril_()
            to_q.copy_(torch.bmm(pairs, y).baddbmm_(g, state.mT))
            to_k.copy_(torch.bmm(pairs.mT, x))
            to_v.copy_(torch.bmm(torch.bmm(x, y.mT).tril_().mT, g))
            state.baddbmm_(y.mT, z)
        for x, y, z, g, _, to_k, to_v in reversed(chunks):
            to_k += torch.bmm(z, grad_state.mT)
            to_v += torch.bmm(y, grad_state)
            grad_state.baddbmm_(x.mT, g)
        return grad_q, grad_k, grad_v, grad_state

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *unused: Tensor) -> None:
        raise AttnExtError("linear causal attention has no gradients of gradients: use naive_attention")


def causal_product(q: Tensor, k: Tensor, v: Tensor, state: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Return the sums above, (B, H, N, D), and the new state (B, H, F, D), with dense weights for ``chunk`` tokens."""
    size = q.shape[:2]
    flat = [x.reshape(-1, *x.shape[2:]) for x in (q, k, v, state)]
    out, state = _CausalProduct.apply(*flat, chunk)  # type: ignore[no-untyped-call]  # torch does not annotate Function.apply
    return out.unflatten(0, size), state.unflatten(0, size)
