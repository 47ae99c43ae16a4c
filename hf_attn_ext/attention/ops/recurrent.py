"""The recurrent form: one token at a time, for decoding; time and memory don't depend on the context."""

from __future__ import annotations

from torch import Tensor

from hf_attn_ext.attention.normaliser import Stabilised, divide

from .state import AttentionState, add_keys, read


def recurrent_step(
    query: Stabilised, key: Stabilised, value: Tensor, state: AttentionState, rho: float, real: Tensor | int
) -> tuple[Tensor, AttentionState]:
    """Add one key and read the state with its query.

    Args:
        query, key: stabilised, (B, H, 1, .).
        value: (B, H, 1, d_v + 1) from :func:`with_ones`.
        state: of the tokens before.
        rho: floor of the normaliser.
        real: 1 where the token is real, (B,) or a number.

    Returns:
        (B, H, 1, d_v), and the state with the token.
    """
    state = add_keys(state, key, value, real)
    return divide(*read(state, query), rho), state
