"""Losses between a kernel's attention and softmax attention. Every loss is a *sum* over queries.

Sums can be added over micro-batches and processes and divided once by the total number of queries. Accumulation and
several processes then give exactly the gradient of the large batch, for any padding.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .feature_maps import FeatureMap
from .ops import attention_weights
from .softmax import masked_softmax

# Signed kernels give weights below 0 and above 1; without this the "cross-entropy" falls below the teacher's entropy.
WEIGHT_FLOOR = 1e-6


class AttentionLosses(NamedTuple):
    """Losses per query, (B, H, Q), in float32 (float64 for float64 inputs); 0 for queries that are padding.

    Attributes:
        cross_entropy: of the kernel's weights under the softmax weights, in nats.
        entropy: of the softmax weights, or None without ``with_entropy``; ``cross_entropy - entropy`` is the KL
            divergence.
        squared_error: squared distance between the head's two outputs.
        squared_norm: squared length of the softmax output.
    """

    cross_entropy: Tensor
    entropy: Tensor | None
    squared_error: Tensor
    squared_norm: Tensor


def attention_losses(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    feature_map: FeatureMap,
    scaling: float | None = None,
    key_padding_mask: Tensor | None = None,
    query_index: Tensor | None = None,
    query_mask: Tensor | None = None,
    with_entropy: bool = False,
    causal: bool = False,
) -> AttentionLosses:
    """Compare the kernel attention of each head with its softmax attention, on the same queries, keys and values.

    The cross-entropy is the paper's loss [P]. Negative kernel weights are raised to 1e-6 and the row is renormalised
    before the logarithm. They get no gradient from it, so there is the output error as well [R].

    Args:
        query, key, value: (B, H, N, d), any floating dtype; computed in float32 at least.
        feature_map: the layer's kernel.
        scaling: factor on the scores; ``None``: d**-0.5.
        key_padding_mask: (B, N) bool, True = real token.
        query_index: (B, Q) positions of the queries to use; ``None`` takes all.
        query_mask: (B, Q) bool, True = counts; ``None``: ``key_padding_mask`` at those positions.
        with_entropy: also return the entropy of the softmax weights.
        causal: a query sees the keys up to its own position only.

    Returns:
        :class:`AttentionLosses`; gradients reach the feature map's parameters (and the inputs, if they ask).
    """
    query, key, value, scaling, query_mask, visible, target = _prepare(
        query, key, value, scaling, key_padding_mask, query_index, query_mask, causal
    )
    wanted = target @ value

    weights = _kernel_weights(query, key, feature_map, scaling, key_padding_mask, query_index, causal)
    squared_error = (weights @ value - wanted).square().sum(-1)
    squared_norm = wanted.square().sum(-1)

    positive = weights.clamp_min(WEIGHT_FLOOR)
    total = positive if visible is None else positive.masked_fill(~visible, 0.0)
    # the target's row sums to 1, so the renormalisation is one logarithm per row, without a division of the matrix
    cross_entropy = total.sum(-1).log() - (target * positive.log()).sum(-1)
    entropy = torch.special.entr(target).sum(-1) if with_entropy else None

    if query_mask is not None:
        hidden = ~query_mask[:, None]
        cross_entropy, squared_error, squared_norm = (
            part.masked_fill(hidden, 0.0) for part in (cross_entropy, squared_error, squared_norm)
        )
        entropy = None if entropy is None else entropy.masked_fill(hidden, 0.0)
    return AttentionLosses(cross_entropy, entropy, squared_error, squared_norm)


def attention_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    feature_map: FeatureMap,
    scaling: float | None = None,
    key_padding_mask: Tensor | None = None,
    query_index: Tensor | None = None,
    query_mask: Tensor | None = None,
    *,
    cross_entropy: float = 1.0,
    output_error: Tensor | float = 1.0,
    scale: float | Tensor = 1.0,
    causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """Add the gradient of ``scale * (cross_entropy * CE + sum_h output_error_h * |o - o*|^2)`` to the feature map's.

    It gives the numbers of the backward pass of :func:`attention_losses`, in fewer passes over the N x N matrices: the
    gradients of both losses with respect to the kernel's weights are computed in closed form.

    Args:
        query to query_mask, causal: as in :func:`attention_losses`.
        cross_entropy: factor of the cross-entropy.
        output_error: factor of each head's squared error, a number or (H,).
        scale: factor of the gradient, not of the returned sums.

    Returns:
        Sums over the queries, per head (H,): the cross-entropy and the squared error, without factors.
    """
    with torch.no_grad():
        query, key, value, scaling, query_mask, visible, target = _prepare(
            query, key, value, scaling, key_padding_mask, query_index, query_mask, causal
        )
    with torch.enable_grad():
        weights = _kernel_weights(query, key, feature_map, scaling, key_padding_mask, query_index, causal)
    with torch.no_grad():
        rows = None if query_mask is None else query_mask[:, None, :, None].to(value.dtype)
        plain = weights.detach()
        positive = plain.clamp_min(WEIGHT_FLOOR)
        total = positive if visible is None else positive.masked_fill(~visible, 0.0)
        total = total.sum(-1, keepdim=True)
        entropy = total.log() - torch.linalg.vecdot(target, positive.log()).unsqueeze(-1)
        difference = (plain - target) @ value
        error = difference.square().sum(-1, keepdim=True)
        if rows is not None:
            entropy, error, difference = entropy * rows, error * rows, difference * rows
        factors = torch.as_tensor(output_error, dtype=value.dtype, device=value.device).reshape(-1, 1, 1)
        difference = difference * (2 * scale * factors)
        if cross_entropy:
            slope = torch.addcdiv(1 / total, target, positive, value=-1)
            # where a weight was raised to the floor, the cross-entropy does not see it: gradient 0, in one pass
            gradient = torch.ops.aten.threshold_backward(slope, plain, WEIGHT_FLOOR)
            if rows is not None:
                gradient.mul_(rows)
            gradient.mul_(scale * cross_entropy).add_(difference @ value.transpose(-1, -2))
        else:
            gradient = difference @ value.transpose(-1, -2)
    weights.backward(gradient)
    return entropy.sum((0, 2, 3)), error.sum((0, 2, 3))


def _prepare(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    key_padding_mask: Tensor | None,
    query_index: Tensor | None,
    query_mask: Tensor | None,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor, float, Tensor | None, Tensor | None, Tensor]:
    """Cast to float32 at least, pick the queries, fill in the defaults; add visible keys and softmax weights."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if query_mask is None and key_padding_mask is not None:
        query_mask = key_padding_mask if query_index is None else key_padding_mask.gather(1, query_index)
    if query_index is not None:
        query = query.gather(2, query_index[:, None, :, None].expand(-1, query.shape[1], -1, query.shape[3]))
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    visible = _visible(key, key_padding_mask, query_index, causal)
    # scaled before the product: N x d numbers instead of N x N
    target = masked_softmax((query * scaling) @ key.transpose(-1, -2), visible)
    return query, key, value, scaling, query_mask, visible, target


def _visible(key: Tensor, key_padding_mask: Tensor | None, query_index: Tensor | None, causal: bool) -> Tensor | None:
    """Return which keys a query sees, a bool mask that broadcasts to (B, H, Q, N), or ``None`` for all.

    In causal attention every query sees its own key, padded or not: with padding on the left, rows would be empty
    otherwise. Such rows are padding themselves, and are not counted.
    """
    real = None if key_padding_mask is None else key_padding_mask[:, None, None]
    if not causal:
        return real
    positions = torch.arange(key.shape[2], device=key.device)
    own = (positions[None] if query_index is None else query_index)[:, None, :, None]
    before = positions <= own
    return before if real is None else before & real | (positions == own)


def _kernel_weights(
    query: Tensor,
    key: Tensor,
    feature_map: FeatureMap,
    scaling: float,
    key_padding_mask: Tensor | None,
    query_index: Tensor | None,
    causal: bool,
) -> Tensor:
    """The kernel's normalised weights of all queries, or of those at ``query_index``."""
    if query_index is None:
        return attention_weights(query, key, feature_map, causal, key_padding_mask, None, scaling)
    mask = torch.arange(key.shape[2], device=key.device) <= query_index[..., None] if causal else None
    positions = query_index
    if key_padding_mask is not None:
        positions = (key_padding_mask.long().cumsum(-1) - 1).clamp_min(0).gather(1, query_index)
    return attention_weights(query, key, feature_map, False, key_padding_mask, mask, scaling, positions)
