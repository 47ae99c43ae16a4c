"""Recurrent attention: one token at a time, for decoding. Time and memory do not depend on the context's length."""

from __future__ import annotations

from torch import Tensor

from hf_attn_ext.attention.normaliser import Stabilised, divide

from .state import AttentionState, add_keys, read


def recurrent_step(
    query: Stabilised, key: Stabilised, value: Tensor, state: AttentionState, rho: float, real: Tensor | int
) -> tuple[Tensor, AttentionState]:
    """Add one key to a state and read the state with the token's query.

    Args:
        query, key: stabilised features, (B, H, 1, .).
        value: (B, H, 1, d_v + 1) from :func:`with_ones`.
        state: of the tokens before.
        rho: floor of the normaliser.
        real: 1 for a real token, 0 for padding; (B,) or a number.

    Returns:
        (B, H, 1, d_v), and the state after the token.
    """
    state = add_keys(state, key, value, real)
    return divide(*read(state, query), rho), state
