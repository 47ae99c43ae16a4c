"""Block generation: one forward pass per block, for models trained with block two-stream attention."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from hf_attn_ext.errors import AttnExtError, short
from hf_attn_ext.hasse.order.reading import is_whole

from .block_pass import BlockPasses
from .texts import read_model, read_texts, read_token

DEFAULT = "default"


@dataclasses.dataclass
class BlockOutput:
    """The result of :func:`block_generate` with ``return_logits=True``.

    Attributes:
        sequences: int64 (B, M): each prompt and its continuation, padded on the right.
        lengths: int64 (B,): real tokens per sequence.
        starts: for every pass, int64 (B,): the position of its block's first token.
        logits: for every pass, the model's logits (B, block_size, V).
    """

    sequences: Tensor
    lengths: Tensor
    starts: list[Tensor]
    logits: list[Tensor]


@torch.no_grad()
def block_generate(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    max_new_tokens: int = 32,
    tokenizer: Any = None,
    do_sample: bool = False,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
    mask_token_id: int | None = None,
    eos_token_id: int | Sequence[int] | str | None = DEFAULT,
    pad_token_id: int | None = None,
    streamer: Any = None,
    stopping_criteria: Callable[[Tensor, Any], Any] | None = None,
    use_cache: bool | None = None,
    return_logits: bool = False,
) -> Tensor | BlockOutput:
    """Continue texts block by block: every forward pass predicts ``block_size`` tokens independently of each other.

    A model trained with ``starts="boundary"`` has seen blocks at multiples of the block size only. If a prompt ends
    inside a block, that block is predicted from its border, as in training: the prompt's tokens in it are kept, but the
    rest of the block does not attend to them. To avoid this, use prompts whose length is a multiple of the block size,
    or train with ``starts="every"``.

    Decoders cache keys and values, or in linear layers a state of constant size, so a pass computes only the new tokens
    and the block. Encoders compute the whole text in every pass.

    Args:
        model: a language model with the mask ``block_two_stream`` in every layer (:func:`hf_attn_ext.set_mask`).
        input_ids: int64 (B, n), prompts.
        attention_mask: (B, n), 1 = real token, padding on either side; None: all real.
        max_new_tokens: the maximum number of new tokens per text.
        tokenizer: supplies the mask and padding tokens if neither the arguments below nor the configuration do.
        do_sample: sample each token from its distribution; False takes the most likely one.
        temperature, top_k, top_p: applied to the distribution when sampling.
        generator: the random generator for sampling.
        mask_token_id: default: from the configuration or the tokenizer.
        eos_token_id: one or several ids that end a text; default: from the generation configuration; None: none.
        pad_token_id: the padding; default: from the configuration or the tokenizer, else 0.
        streamer: a streamer of ``generate()``, for a single text; receives the prompt, then every block.
        stopping_criteria: stopping criteria of ``generate()``, called after every block with each text (1, tokens).
        use_cache: None: if the model supports it; False: compute the whole text in every pass.
        return_logits: return a :class:`BlockOutput`.

    Returns:
        int64 (B, M): prompt and continuation, padded on the right.

    Raises:
        AttnExtError: the model lacks that mask, has virtual tokens from PEFT or no mask token, the text needs more
            positions than the model has, or an argument is out of range.

    Example:
        >>> block_generate(model, tokenizer("Once upon a", return_tensors="pt").input_ids)  # doctest: +SKIP
    """
    base = read_model(model, "block_generate")
    input_ids, real = read_texts(input_ids, attention_mask, base)
    _check_numbers(max_new_tokens, do_sample, temperature, top_k, top_p)
    if stopping_criteria is not None and not callable(stopping_criteria):
        raise AttnExtError(
            f"stopping_criteria must be callable, got {short(stopping_criteria)}; a list of several is "
            "transformers.StoppingCriteriaList([...])"
        )
    mask_id = _id("mask_token_id", mask_token_id, base, tokenizer)
    if mask_id is None:
        raise AttnExtError(
            f"{type(base).__name__} has no mask token in its configuration: pass mask_token_id or tokenizer, or call "
            "hf_attn_ext.add_mask_token(model, tokenizer)"
        )
    passes = BlockPasses(base, mask_id, use_cache)
    pad_id = _id("pad_token_id", pad_token_id, base, tokenizer) or 0
    ends = _ends(base, eos_token_id, input_ids.device)
    text, lengths = _prompts(input_ids, real, max_new_tokens + passes.size, pad_id)
    most = lengths + max_new_tokens
    _check_positions(passes, lengths, max_new_tokens)
    if streamer is not None:
        if len(text) > 1:
            raise AttnExtError(f"a streamer takes one text, got {len(text)}")
        streamer.put(text[0, : lengths[0]].cpu())
    start, open_rows = passes.begin(lengths), torch.ones(len(text), dtype=torch.bool, device=text.device)
    made = BlockOutput(text, lengths, [], [])
    while open_rows.any():
        logits = passes.predict(text, start)
        if return_logits:
            made.starts.append(start.clone())
            made.logits.append(logits)
        chosen = _choose(logits, mask_id, do_sample, temperature, top_k, top_p, generator)
        before = lengths.clone()
        _write(text, lengths, most, start, chosen, open_rows, ends)
        if streamer is not None:
            streamer.put(text[0, before[0] : lengths[0]].cpu())
        last = text.gather(1, (lengths - 1).clamp_min(0)[:, None])[:, 0]
        ended = torch.isin(last, ends) & (lengths > before) if ends is not None else torch.zeros_like(open_rows)
        open_rows = open_rows & (lengths < most) & ~ended
        if stopping_criteria is not None:
            _stop(open_rows, text, lengths, stopping_criteria)
        start = start + passes.size
    if streamer is not None:
        streamer.end()
    made.sequences = text[:, : int(lengths.max())]
    return made if return_logits else made.sequences


def _check_positions(passes: BlockPasses, lengths: Tensor, max_new_tokens: int) -> None:
    longest = int(lengths.max())
    needed = longest + max_new_tokens
    if passes.limit is not None and needed > passes.limit:
        raise AttnExtError(
            f"a prompt of {longest} tokens and {max_new_tokens} new ones need {needed} positions, "
            f"but {type(passes.model).__name__} has {passes.limit}; ask for fewer, or call hf_attn_ext.extend_positions"
        )


def _stop(open_rows: Tensor, text: Tensor, lengths: Tensor, stopping_criteria: Callable[[Tensor, Any], Any]) -> None:
    """Close the rows that ``stopping_criteria`` ends, in place."""
    for row in open_rows.nonzero().flatten().tolist():  # row by row, without padding
        stop = stopping_criteria(text[row : row + 1, : int(lengths[row])], None)
        open_rows[row] = not torch.as_tensor(stop).any()


def _write(
    text: Tensor, lengths: Tensor, most: Tensor, start: Tensor, chosen: Tensor, open_rows: Tensor, ends: Tensor | None
) -> None:
    """Write a block into the texts, in place: known tokens stay, and nothing follows an end token."""
    size = chosen.shape[1]
    for row in open_rows.nonzero().flatten().tolist():
        begin, known, stop = int(start[row]), int(lengths[row]), min(int(start[row]) + size, int(most[row]))
        new = chosen[row, known - begin : stop - begin]
        if ends is not None:
            first_end = torch.isin(new, ends).nonzero()
            new = new[: int(first_end[0]) + 1] if len(first_end) else new
        text[row, known : known + len(new)] = new
        lengths[row] = known + len(new)


def _choose(
    logits: Tensor,
    mask_id: int,
    do_sample: bool,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generator: torch.Generator | None,
) -> Tensor:
    """Choose a token for every position, (B, block_size); never the mask token."""
    never = torch.arange(logits.shape[-1], device=logits.device) == mask_id
    scores = logits.flatten(0, 1).float().masked_fill(never, -torch.inf)  # a copy: the caller may keep the logits
    if not do_sample:
        return scores.argmax(-1).view(logits.shape[:2])
    if temperature != 1.0:
        scores = TemperatureLogitsWarper(temperature)(None, scores)
    if top_k is not None:
        scores = TopKLogitsWarper(top_k)(None, scores)
    if top_p is not None and top_p < 1:
        scores = TopPLogitsWarper(float(top_p))(None, scores)
    return torch.multinomial(scores.softmax(-1), 1, generator=generator).view(logits.shape[:2])


def _prompts(input_ids: Tensor, real: Tensor, room: int, pad_id: int) -> tuple[Tensor, Tensor]:
    """Return each row's real tokens aligned left and padded by ``room``, (B, M), and their number, (B,)."""
    lengths = real.sum(1)
    order = torch.argsort(real.int(), dim=1, descending=True, stable=True)
    moved = input_ids.gather(1, order)
    positions = torch.arange(input_ids.shape[1], device=input_ids.device)
    moved = moved.masked_fill(positions >= lengths[:, None], pad_id)
    return torch.nn.functional.pad(moved, (0, room), value=pad_id), lengths


def _ends(model: Any, given: Any, device: torch.device) -> Tensor | None:
    if given == DEFAULT:
        given = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if given is None:
        return None
    given = given.tolist() if torch.is_tensor(given) else given
    ids = given if isinstance(given, list | tuple) else [given]
    if not all(map(is_whole, ids)):
        raise AttnExtError(f"eos_token_id must be the id of a token, or a list of them, got {short(given)}")
    return torch.tensor(ids, dtype=torch.int64, device=device)


def _id(name: str, given: int | None, model: Any, tokenizer: Any) -> int | None:
    for value in (given, getattr(model.config, name, None), getattr(tokenizer, name, None)):
        if value is not None:
            return read_token(name, value, model)
    return None


def _check_numbers(
    max_new_tokens: int, do_sample: bool, temperature: float, top_k: int | None, top_p: float | None
) -> None:
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise AttnExtError(f"max_new_tokens must be a whole number of at least 1, got {max_new_tokens!r}")
    if not do_sample and (temperature != 1.0 or top_k is not None or top_p is not None):
        raise AttnExtError("temperature, top_k and top_p apply to sampling only; pass do_sample=True")
    if not isinstance(temperature, int | float) or not 0 < temperature < float("inf"):
        raise AttnExtError(f"temperature must be a number above 0, got {temperature!r}")
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1):
        raise AttnExtError(f"top_k must be a whole number of at least 1, or None, got {top_k!r}")
    if top_p is not None and not (isinstance(top_p, int | float) and 0 < top_p <= 1):
        raise AttnExtError(f"top_p must be above 0 and at most 1, or None, got {top_p!r}")
