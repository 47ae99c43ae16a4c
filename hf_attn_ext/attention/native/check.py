"""The check of a freshly compiled native op, which finds a compiler's mistake before a model uses the op."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_attn_ext.errors import AttnExtError

from .operators import softmax_attention

_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}


def check_native_op() -> None:
    """Compare values and gradients with dense weights, at sizes that no block size divides.

    Raises:
        AttnExtError: the numbers differ.
    """
    for dtype, tolerance in _TOLERANCES.items():
        for causal in (True, False):
            results = []
            for attend in (_compiled, _dense):
                tensors = _tensors(dtype)
                out = attend(*tensors, causal=causal)
                results.append([out, *torch.autograd.grad((out * out.detach().cos()).sum(), tensors)])
            for compiled, dense in zip(*results, strict=True):
                if not torch.allclose(compiled, dense, rtol=tolerance, atol=tolerance):
                    raise AttnExtError(
                        f"the compiled native op computes wrong numbers in {dtype}. Set CXX to another compiler"
                    )


def _tensors(dtype: torch.dtype) -> list[Tensor]:
    """Return q, k, v and the weights of ``SoftmaxFeatures``."""
    generator = torch.Generator().manual_seed(0)
    heads, d, f = 2, 5, 19
    sizes = [(1, heads, 75, d)] * 2 + [(1, heads, 75, 7)] + [(heads, d, f), (heads, f)] * 2
    sizes += [(heads, d, d), (heads, d), (heads,), (heads,)]
    tensors = [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]
    tensors[7] = tensors[7] @ tensors[7].mT / d
    tensors[9:] = [0.3 * x for x in tensors[9:]]
    return [x.to(dtype).requires_grad_() for x in tensors]


def _compiled(q: Tensor, k: Tensor, v: Tensor, *weights: Tensor, causal: bool) -> Tensor:
    sums = q.new_zeros(*q.shape[:2], weights[0].shape[-1], v.shape[-1] + 1)
    before = sums, q.new_full(q.shape[:2], -torch.inf)
    out: Tensor = softmax_attention(q, k, v, None, *weights, *before, causal, 1.0)[0]
    return out


def _dense(q: Tensor, k: Tensor, v: Tensor, *weights: Tensor, causal: bool) -> Tensor:
    query_weight, query_bias, key_weight, key_bias, matrix, shift, norm_weight, total_weight = weights
    query, key = q @ query_weight + query_bias[:, None], k @ key_weight + key_bias[:, None]
    away = k - shift[:, None]
    norm = ((away @ matrix) * away).sum(-1)
    amplitude = norm_weight[:, None] * norm + total_weight[:, None] * key.logsumexp(-1)
    scores = (query.softmax(-1) @ key.softmax(-1).mT).log() + amplitude[..., None, :]
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    return scores.softmax(-1) @ v
