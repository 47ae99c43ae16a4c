"""What data-aware initialisations compute from moments of queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor


def matrix_power(matrix: Tensor, exponent: float, floor: float = 1e-6) -> Tensor:
    """Power of symmetric positive semidefinite matrices (..., d, d); eigenvalues below floor * largest are
    lifted to it.
    """
    values, vectors = torch.linalg.eigh(matrix)
    lowest = values[..., -1:].clamp_min(torch.finfo(values.dtype).tiny) * floor
    return (vectors * values.clamp_min(lowest)[..., None, :] ** exponent) @ vectors.mT


def phase_scale(frequency: Tensor, moment: Tensor, spread: float) -> Tensor:
    """(H, 1, 1): the factor on ``frequency`` (H, n, d) that makes the root mean square of its phases ``spread``."""
    power = torch.einsum("hnd,hde,hne->hn", frequency.double().cpu(), moment, frequency.double().cpu()).mean(-1)
    scale = spread / power.clamp_min(torch.finfo(power.dtype).tiny).sqrt()
    return scale[:, None, None].to(frequency)
