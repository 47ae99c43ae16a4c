"""Functions of the moments of queries and keys, for data-aware initialisation."""

from __future__ import annotations

import torch
from torch import Tensor


def matrix_power(matrix: Tensor, exponent: float, floor: float = 1e-6) -> Tensor:
    """Return a power of symmetric positive semidefinite matrices (..., d, d).

    Eigenvalues below ``floor`` times the largest are raised to that value.
    """
    values, vectors = torch.linalg.eigh(matrix)
    lowest = values[..., -1:].clamp_min(torch.finfo(values.dtype).tiny) * floor
    power: Tensor = (vectors * values.clamp_min(lowest)[..., None, :] ** exponent) @ vectors.mT
    return power


def phase_scale(frequency: Tensor, moment: Tensor, spread: float) -> Tensor:
    """Return the factor (H, 1, 1) of ``frequency`` (H, n, d) that gives its phases the root mean square ``spread``."""
    power = torch.einsum("hnd,hde,hne->hn", frequency.double().cpu(), moment, frequency.double().cpu()).mean(-1)
    scale = spread / power.clamp_min(torch.finfo(power.dtype).tiny).sqrt()
    return scale[:, None, None].to(frequency)
