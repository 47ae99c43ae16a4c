"""The state of linear attention: sums over the keys and values so far, of constant size."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from hf_attn_ext.attention.normaliser import Stabilised, relative


@dataclasses.dataclass
class AttentionState:
    """Sums over the keys so far, with the amplitude of each key relative to ``reference``.

    Attributes:
        sums: (B, H, F, d_v + 1), ``sum_k exp(a_k - reference) phi(k) [v_k, 1]^T``, so the last column sums the
            features themselves; float32, or float64 for float64 models.
        bound_sum: (B, H, M), the same sum of the bounds; None if the kernel needs no floor.
        reference: (B, H), the largest amplitude so far, -inf before any key; None for kernels without amplitudes.
        length: (B,) int64, real tokens seen.

    Example:
        >>> out, state = causal_attention(q, k, v, feature_map)  # doctest: +SKIP
        >>> state.nbytes  # the same after 10 and after 10,000 tokens  # doctest: +SKIP
        399368
    """

    sums: Tensor
    bound_sum: Tensor | None
    reference: Tensor | None
    length: Tensor

    @property
    def batch_size(self) -> int:
        """Number of sequences."""
        return self.sums.shape[0]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        tensors = (self.sums, self.bound_sum, self.reference, self.length)
        return sum(x.nbytes for x in tensors if x is not None)

    def select(self, rows: Tensor) -> AttentionState:
        """Return the state of the batch rows ``rows``, int64 indices, in that order, as beam search needs it."""
        return self.map(lambda x: x.index_select(0, rows.to(x.device)))

    def map(self, change: Callable[[Tensor], Tensor]) -> AttentionState:
        """Return a state with ``change`` applied to every tensor."""

        def optional(x: Tensor | None) -> Tensor | None:
            return None if x is None else change(x)

        return AttentionState(
            change(self.sums), optional(self.bound_sum), optional(self.reference), change(self.length)
        )


def with_ones(values: Tensor) -> Tensor:
    """Append a column of ones, (..., d_v) to (..., d_v + 1): one product then gives numerator and denominator."""
    return functional.pad(values, (0, 1), value=1.0)


def add_keys(state: AttentionState | None, keys: Stabilised, values: Tensor, real: Tensor | int) -> AttentionState:
    """Return the state after more keys, of which ``real`` are not padding, (B,) or a number.

    Features are (B, H, N, .), values (B, H, N, d_v + 1) from :func:`with_ones`, in the features' dtype.
    """
    weight = reference = decay = None
    if keys.amplitude is not None:
        reference = keys.amplitude.detach().amax(-1)
        if state is not None and state.reference is not None:
            reference = torch.maximum(reference, state.reference)
            decay = relative(state.reference, reference)
        weight = relative(keys.amplitude, reference[..., None])[..., None]
        values = values * weight
    sums = keys.features.mT @ values
    bound_sum = None if keys.bound is None else weighted_sum(keys.bound, weight)
    if state is None:
        length = torch.as_tensor(real, device=values.device).expand(values.shape[0]).long()
    else:
        length = state.length + real
        sums = _plus(sums, state.sums, decay)
        if bound_sum is not None and state.bound_sum is not None:
            bound_sum = _plus(bound_sum, state.bound_sum, decay)
    return AttentionState(sums, bound_sum, reference, length)


def weighted_sum(x: Tensor, weight: Tensor | None) -> Tensor:
    """Return the sum of (..., N, F) over N, with weights (..., N, 1) or None."""
    return x.sum(-2) if weight is None else (x * weight).sum(-2)


def _plus(new: Tensor, old: Tensor, decay: Tensor | None) -> Tensor:
    if decay is None:
        return old + new
    return torch.addcmul(new, old, decay.reshape(*decay.shape, *[1] * (old.ndim - decay.ndim)))


def empty_state(values: Tensor, keys: Stabilised) -> AttentionState:
    """Return the state before any key, in the shapes of ``keys`` and ``values`` of :func:`add_keys`."""
    batch, heads, _, features = keys.features.shape
    return AttentionState(
        values.new_zeros(batch, heads, features, values.shape[-1]),
        None if keys.bound is None else values.new_zeros(batch, heads, keys.bound.shape[-1]),
        None if keys.amplitude is None else values.new_full((batch, heads), -torch.inf),
        torch.zeros(batch, dtype=torch.int64, device=values.device),
    )


def read(state: AttentionState, queries: Stabilised) -> tuple[Tensor, Tensor | None]:
    """Read a state with queries (B, H, N, .): (B, H, N, d_v + 1) for :func:`divide`, and the bound (B, H, N, 1)."""
    bound = None
    if state.bound_sum is not None and queries.bound is not None:
        bound = queries.bound @ state.bound_sum[..., None]
    return queries.features @ state.sums, bound
