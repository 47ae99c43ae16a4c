"""Causal attention in linear time and memory, in blocks of chunks, with a state that goes from block to block.

Inside a chunk of tokens the weights are dense and lower triangular; the keys before the chunk enter by running sums.
Amplitudes of keys are taken relative to the largest one that a query sees, never to a later one: no query's result
depends on a key that it does not see, not even by rounding. Groups of tokens that all see each other use the same
operation with another triangle.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hf_attn_ext.attention.feature_map import FeatureMap
from hf_attn_ext.attention.normaliser import Stabilised, divide, empty_rows, relative
from hf_attn_ext.errors import AttnExtError, short
from hf_attn_ext.hasse.order.reading import is_whole

from .bidirectional import split
from .bound_maps import BoundMaps
from .causal_product import causal_product
from .inputs import (
    Outputs,
    accumulation_dtype,
    block_size,
    check_causal,
    check_dropout,
    check_inputs,
    drop_tokens,
    padded_positions,
    token_positions,
    transformed,
)
from .native_forms import fused_attention, fused_features
from .state import AttentionState, add_keys, empty_state, read, weighted_sum, with_ones

CHUNK = 64  # tokens
# On a CPU, amplitudes within this range of each other become one factor per key; e^-40 is far from underflow.
NARROW = 40.0


def causal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feature_map: FeatureMap,
    state: AttentionState | None = None,
    key_padding_mask: Tensor | None = None,
    scaling: float | None = None,
    dropout_p: float = 0.0,
    maps: BoundMaps | None = None,
    group: int = 1,
) -> tuple[Tensor, AttentionState]:
    """Compute attention in which query i sees keys 0..i and all keys of ``state``; in groups, also its whole group.

    Args:
        q, k, v: (B, H, N, d), (B, H, N, d), (B, H, N, d_v); as in :func:`linear_attention`.
        feature_map: from :func:`make_feature_map`.
        state: from an earlier call on the tokens before these; None if there are none. It is not changed.
        key_padding_mask: (B, N) bool, True = real token, for these keys.
        scaling, dropout_p: as in :func:`linear_attention`.
        maps: a cache of prepared feature maps, shared by a series of calls.
        group: size of groups of tokens that all see each other; query i sees the keys before
            ``(i // group + 1) * group``.

    Returns:
        (B, H, N, d_v) in v's dtype, and the state after these keys. A query that sees no real key gets 0.

    Raises:
        AttnExtError: shapes or dtypes do not fit, the length is not a multiple of ``group``, or the state has another
            batch size, number of heads, feature_dim, dtype or kernel.

    Example:
        >>> feature_map = make_feature_map("flexformer_p", 2, 8, 16)
        >>> q = k = v = torch.randn(1, 2, 10, 8)
        >>> whole, _ = causal_attention(q, k, v, feature_map)
        >>> first, state = causal_attention(q[:, :, :6], k[:, :, :6], v[:, :, :6], feature_map)
        >>> rest, _ = causal_attention(q[:, :, 6:], k[:, :, 6:], v[:, :, 6:], feature_map, state)
        >>> torch.allclose(torch.cat([first, rest], 2), whole, atol=1e-6)
        True
    """
    check_inputs(q, k, v, feature_map, key_padding_mask)
    check_causal(q, k)
    check_dropout(dropout_p)
    if not is_whole(group) or group < 1 or k.shape[2] % group:
        raise AttnExtError(f"{k.shape[2]} tokens are not a whole number of groups of {short(group)}")
    if state is not None:
        check_state(state, q, v, feature_map)
    with torch.autocast(q.device.type, enabled=False):
        fused = fused_features(q, k, v, feature_map, dropout_p, maps) if group == 1 else None
        if fused is not None:
            if state is not None:
                _check_kind(state, amplitude=True, bound=False)
            return fused_attention(fused, q, k, v, feature_map, key_padding_mask, scaling, state, causal=True)
        dtype = accumulation_dtype(q)
        query_map, key_map = (maps or BoundMaps()).of(feature_map, dtype, scaling)
        start = 0 if state is None else state.length[:, None]
        positions = token_positions(feature_map, k, key_padding_mask, start)
        outputs = Outputs(v, q.shape[2])
        chunk = max(1, CHUNK // group) * group
        sizes = _blocks(k.shape[2], chunk, block_size(k, feature_map, chunk))
        for queries, keys, values, padded, block_positions, real in zip(
            q.split(sizes, 2),
            k.split(sizes, 2),
            v.split(sizes, 2),
            split(padded_positions(key_padding_mask), sizes, 2),
            split(positions, sizes, 1),
            split(key_padding_mask, sizes, 1),
            strict=False,
        ):
            mapped = key_map(keys, block_positions, padded)
            queried = query_map(queries, block_positions)
            values = with_ones(drop_tokens(values.to(dtype), dropout_p))
            count = keys.shape[2] if real is None else real.sum(-1)
            if state is None:
                state = empty_state(values, mapped)
            _check_kind(state, mapped.amplitude is not None, mapped.bound is not None)
            if group > 1 and keys.shape[2]:
                out, state = _reference_per_query(queried, mapped, values, state, feature_map.rho, count, chunk, group)
            elif keys.shape[2] == 1:  # a step of decoding
                state = add_keys(state, mapped, values, count)
                out = divide(*read(state, queried), feature_map.rho)
            else:
                out, state = _block(queried, mapped, values, state, feature_map.rho, count)
            outputs.add(out)
        assert state is not None  # there is at least one block, which may be empty
        return outputs.join(), state


def check_state(state: AttentionState, query: Tensor, value: Tensor, feature_map: FeatureMap) -> None:
    """Raise :class:`AttnExtError` if a state belongs to another batch, layer or kernel."""
    if state.batch_size != query.shape[0]:
        raise AttnExtError(
            f"the state holds {state.batch_size} sequences, but this call has {query.shape[0]}: "
            "start a new state, or select rows of the old one"
        )
    expected = (query.shape[1], feature_map.feature_dim, value.shape[3])
    held = (*state.sums.shape[1:3], state.sums.shape[3] - 1)
    if held != expected:
        raise AttnExtError(
            f"the state holds (heads, feature_dim, value width) = {held}, but this layer has {expected}: "
            "it belongs to another model"
        )
    dtype = accumulation_dtype(query)
    if state.sums.dtype != dtype:
        raise AttnExtError(
            f"the state is {state.sums.dtype}, but this call computes in {dtype}: use one dtype, or start a new state"
        )


def _check_kind(state: AttentionState, amplitude: bool, bound: bool) -> None:
    """Raise if a state of the right size belongs to a kernel with other sums."""
    if (state.reference is not None, state.bound_sum is not None) != (amplitude, bound):
        raise AttnExtError("the state belongs to another kernel, which stores other sums: start a new state")


def _blocks(length: int, chunk: int, size: int) -> list[int]:
    """The sizes of blocks of whole chunks, and of the rest."""
    whole = length // chunk * chunk
    sizes = [size] * (whole // size)
    rest = whole - sum(sizes)
    return [part for part in (*sizes, rest, length - whole) if part] or [0]


def _block(
    queries: Stabilised, keys: Stabilised, values: Tensor, state: AttentionState, rho: float, real: Tensor | int
) -> tuple[Tensor, AttentionState]:
    """One block of tokens, by the faster of two ways that apply."""
    if not values.shape[2]:
        return values[..., :-1], state
    # only the contents of a plain tensor on a CPU can be read without waiting
    plain = values.device.type == "cpu" and not torch.compiler.is_compiling() and not transformed()
    amplitude, reference = keys.amplitude, state.reference
    if plain and (amplitude is None or reference is None or _narrow(amplitude, reference)):
        return _one_reference(queries, keys, values, state, rho, real)
    return _reference_per_query(queries, keys, values, state, rho, real)


def _one_reference(
    queries: Stabilised, keys: Stabilised, values: Tensor, state: AttentionState, rho: float, real: Tensor | int
) -> tuple[Tensor, AttentionState]:
    """A block whose amplitudes, if any, are so close to each other that they share one reference."""
    sums, bound_sum, reference = state.sums, state.bound_sum, state.reference
    amplitude, before, unweighted = keys.amplitude, state.reference, values
    weight = None
    if amplitude is not None and before is not None:
        reference = torch.maximum(before, amplitude.detach().amax(-1))
        weight = relative(amplitude, reference[..., None])[..., None]
        decay = relative(before, reference)[..., None]
        values, sums = values * weight, sums * decay[..., None]
        bound_sum = None if bound_sum is None else bound_sum * decay
    weighted, sums = causal_product(queries.features, keys.features, values, sums, CHUNK)
    bound = None
    if keys.bound is not None and queries.bound is not None and bound_sum is not None:
        ones = values.new_ones(*values.shape[:-1], 1) if weight is None else weight
        bound, bound_sum = causal_product(queries.bound, keys.bound, ones, bound_sum[..., None], CHUNK)
        bound_sum = bound_sum.squeeze(-1)
    if amplitude is not None and before is not None and _hidden(empty_rows(weighted, bound, rho), amplitude, before):
        return _reference_per_query(queries, keys, unweighted, state, rho, real)
    return divide(weighted, bound, rho), AttentionState(sums, bound_sum, reference, state.length + real)


def _hidden(empty: Tensor, amplitude: Tensor, before: Tensor) -> bool:
    """Return whether a row (B, H, N) looks empty only because a later key is larger than all that it sees."""
    if not empty.any():
        return False
    seen = torch.maximum(amplitude.detach().cummax(-1).values, before[..., None])
    return bool((empty & seen.isfinite() & (seen < seen[..., -1:])).any())


def _reference_per_query(
    queries: Stabilised,
    keys: Stabilised,
    values: Tensor,
    state: AttentionState,
    rho: float,
    real: Tensor | int,
    chunk: int = CHUNK,
    group: int = 1,
) -> tuple[Tensor, AttentionState]:
    """A block of whole chunks, or of fewer tokens than one chunk, for any amplitudes; all chunks at once."""
    chunks = max(1, values.shape[2] // chunk)

    def cut(x: Tensor) -> Tensor:  # (B, H, N, .) -> (B, H, C, n, .)
        parts: Tensor = x.unflatten(2, (chunks, -1))
        return parts

    q, k, v = cut(queries.features), cut(keys.features), cut(values)
    amplitude = None if keys.amplitude is None else cut(keys.amplitude)

    # 1. the sum of each chunk, and from these the sums before each chunk
    weight = reference = fade = None
    mix = v.new_ones(chunks + 1, chunks + 1).tril()
    if amplitude is not None and state.reference is not None:
        own = amplitude.detach().amax(-1)  # (B, H, C): each chunk's largest amplitude
        sources = torch.cat([state.reference[..., None], own], -1)
        largest = sources.cummax(-1).values  # before each chunk; last: after all
        weight = relative(amplitude, own[..., None])[..., None]
        mix = relative(sources[..., None, :], largest[..., :, None]).tril()  # (B, H, C + 1, C + 1)
        outside, reference = largest[..., :-1, None], largest[..., -1]
    before, after = _running(state.sums, k.mT @ (v if weight is None else v * weight), mix)

    # 2. dense weights inside the chunk, and the sums before it
    inside, weighted = q @ k.mT, q @ before
    group_of = torch.arange(inside.shape[-1], device=v.device) // group
    later = group_of[:, None] < group_of
    if amplitude is None:
        pairs = (~later).to(v.dtype)
    else:
        shown = amplitude.detach()
        if group > 1:
            shown = shown.unflatten(-1, (-1, group)).amax(-1).repeat_interleave(group, -1)
        seen = torch.maximum(shown.cummax(-1).values, outside)  # (B, H, C, n): the largest a query sees
        pairs = amplitude[..., None, :] - torch.where(seen.isfinite(), seen, 0.0)[..., None]
        pairs = pairs.masked_fill(later, -torch.inf).exp()
        fade = relative(outside, seen)[..., None]
        weighted = weighted * fade
    weighted = weighted + (inside * pairs) @ v

    bound = bound_after = None
    if keys.bound is not None and queries.bound is not None and state.bound_sum is not None:
        query_bound, key_bound = cut(queries.bound), cut(keys.bound)
        bound_before, bound_after = _running(state.bound_sum, weighted_sum(key_bound, weight), mix)
        bound = query_bound @ bound_before[..., None]
        bound = bound if fade is None else bound * fade
        bound = bound + (query_bound @ key_bound.mT * pairs).sum(-1, keepdim=True)
    out = divide(weighted, bound, rho).flatten(2, 3)
    return out, AttentionState(after, bound_after, reference, state.length + real)


def _running(first: Tensor, sums: Tensor, mix: Tensor) -> tuple[Tensor, Tensor]:
    """The sums before each chunk (B, H, C, .) and after the last (B, H, .), mixed from ``first`` and each chunk's."""
    stacked = torch.cat([first[:, :, None], sums], 2).flatten(3)
    before, after = mix[..., :-1, :] @ stacked, mix[..., -1:, :] @ stacked
    return before.unflatten(-1, sums.shape[3:]), after.squeeze(2).unflatten(-1, sums.shape[3:])


def _narrow(amplitude: Tensor, reference: Tensor) -> bool:
    """Return whether all amplitudes can share one reference. Only used on a CPU: a GPU would have to be waited for."""
    every = torch.cat([amplitude.detach(), reference[..., None]], -1)
    least = every.masked_fill(every == -torch.inf, torch.inf).amin(-1)
    return bool((every.amax(-1) - least <= NARROW).all())
