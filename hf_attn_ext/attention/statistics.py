"""Moments and a sample of the queries and keys of a layer, for data-aware initialisation."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_attn_ext.errors import AttnExtError

SAMPLE_PER_UPDATE = 64
SAMPLE_LIMIT = 2048


class QKStatistics:
    """Additive float64 moments of a layer's queries and keys, per head, and a sample of its keys.

    Args:
        num_heads: H.
        head_dim: d.

    Attributes:
        count: number of real tokens seen.
        key_sample: (H, S, d) float32 on the CPU: up to 64 keys of every update, evenly spaced; S is at most 2,048.

    Example:
        >>> statistics = QKStatistics(num_heads=2, head_dim=4)
        >>> statistics.update(torch.randn(1, 2, 8, 4), torch.randn(1, 2, 8, 4))
        >>> statistics.query_mean.shape, statistics.key_covariance.shape
        (torch.Size([2, 4]), torch.Size([2, 4, 4]))
    """

    def __init__(self, num_heads: int, head_dim: int) -> None:
        self.num_heads, self.head_dim = num_heads, head_dim
        self.count = 0
        self.key_sample = torch.zeros(num_heads, 0, head_dim)
        self._first = torch.zeros(2, num_heads, head_dim, dtype=torch.float64)
        self._second = torch.zeros(2, num_heads, head_dim, head_dim, dtype=torch.float64)

    @torch.no_grad()
    def update(self, query: Tensor, key: Tensor, key_padding_mask: Tensor | None = None) -> None:
        """Add the real tokens of ``query`` and ``key`` (B, H, N, d); ``key_padding_mask`` (B, N), True = real."""
        for side, x in enumerate((query, key)):
            if x.ndim != 4 or x.shape[1] != self.num_heads or x.shape[3] != self.head_dim:
                raise AttnExtError(
                    f"statistics of {self.num_heads} heads x {self.head_dim} got a tensor of shape {tuple(x.shape)}"
                )
            x = x.detach().double()
            if key_padding_mask is not None:
                x = x.masked_fill(~key_padding_mask.bool()[:, None, :, None], 0.0)
            self._first[side] += x.sum((0, 2)).cpu()
            self._second[side] += torch.einsum("bhnd,bhne->hde", x, x).cpu()
        keys = key.detach().transpose(1, 2).flatten(0, 1)
        if key_padding_mask is not None:
            keys = keys[key_padding_mask.bool().flatten()]
        indices = torch.linspace(0, max(len(keys) - 1, 0), min(len(keys), SAMPLE_PER_UPDATE), device=keys.device)
        self._add_sample(keys[indices.round().long()].transpose(0, 1).float().cpu())
        batch, _, length, _ = query.shape
        self.count += batch * length if key_padding_mask is None else int(key_padding_mask.sum())

    def merge(self, other: QKStatistics) -> None:
        """Add the moments of the same layer from elsewhere, such as another process."""
        self.count += other.count
        self._first += other._first
        self._second += other._second
        self._add_sample(other.key_sample)

    def _add_sample(self, keys: Tensor) -> None:
        self.key_sample = torch.cat([self.key_sample, keys], 1)[:, :SAMPLE_LIMIT]

    @property
    def query_mean(self) -> Tensor:
        """Mean of the queries, (H, d) float64."""
        return self._mean(0)

    @property
    def key_mean(self) -> Tensor:
        """Mean of the keys, (H, d) float64."""
        return self._mean(1)

    @property
    def second_moment(self) -> Tensor:
        """Mean of ``x x^T`` over queries and keys together, (H, d, d) float64."""
        self._mean(0)
        return self._second.mean(0) / self.count

    @property
    def query_covariance(self) -> Tensor:
        """Covariance of the queries, (H, d, d) float64."""
        return self._covariance(0)

    @property
    def key_covariance(self) -> Tensor:
        """Covariance of the keys, (H, d, d) float64."""
        return self._covariance(1)

    def _mean(self, side: int) -> Tensor:
        if not self.count:
            raise AttnExtError("the statistics hold no token: give calibrate at least one batch with a real token")
        return self._first[side] / self.count

    def _covariance(self, side: int) -> Tensor:
        mean = self._mean(side)
        return self._second[side] / self.count - mean[:, :, None] * mean[:, None, :]
