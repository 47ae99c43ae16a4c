"""Performer: positive orthogonal random features (FAVOR+), fixed. Source: arXiv 2009.14794."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hf_attn_ext.attention.feature_map import FeatureMap, Features, Side
from hf_attn_ext.attention.registry import register_kernel


@register_kernel("performer")
class Performer(FeatureMap):
    """``phi(x) = n^-1/2 exp(w_i.x' - |x'|^2 / 2)`` with ``x' = x d^-1/4``; w are random orthogonal directions.

    The features are positive and estimate softmax without bias; feature_dim is n. Nothing is trainable: the projection
    is a buffer, saved with the model.

    Args:
        num_heads, head_dim, num_features, seed: see :func:`make_feature_map`.
    """

    projection: Tensor

    def __init__(self, num_heads: int, head_dim: int, num_features: int, seed: int = 0) -> None:
        super().__init__(num_heads, head_dim, num_features, num_features)
        generator = torch.Generator().manual_seed(seed)
        heads = [_orthogonal_gaussian(num_features, head_dim, generator) for _ in range(num_heads)]
        self.register_buffer("projection", torch.stack(heads))

    def forward(self, x: Tensor, side: Side) -> Features:
        """Return the n positive random features of ``x`` (B, H, N, head_dim)."""
        x = x * self.head_dim**-0.25
        log_scale = x @ self.projection.to(x.dtype).mT - x.square().sum(-1, keepdim=True) / 2
        return Features(log_scale - math.log(self.num_features) / 2, None)


def _orthogonal_gaussian(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """(rows, columns) with orthogonal rows in blocks of ``columns`` and the row norms of a Gaussian matrix."""
    blocks = []
    for start in range(0, rows, columns):
        directions, triangle = torch.linalg.qr(torch.randn(columns, columns, generator=generator))
        # without these signs the directions are not uniform, and the estimate of softmax is biased
        directions = directions * triangle.diagonal().sign()
        norms = torch.randn(columns, columns, generator=generator).norm(dim=-1, keepdim=True)
        blocks.append((directions * norms)[: rows - start])
    return torch.cat(blocks)
