"""How fast a model writes: ``block_generate`` a block at a time, ``generate()`` a token at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hf_attn_ext.inference import block_generate


def prompt_of(split: Any, tokens: int) -> Tensor:
    """The first ``tokens`` tokens of the longest sequence, int64 (1, tokens)."""
    row = int(split.lengths.argmax())
    return torch.from_numpy(split[row]["input_ids"][:tokens].astype("int64"))[None]


def write_tokens(model: nn.Module, tokenizer: Any, prompt: Tensor, new_tokens: int) -> Tensor:
    """``generate()`` with its cache: keys and values, or the constant-size state of linear layers."""
    return model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        use_cache=True,
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,  # an end does not cut the measurement short
        pad_token_id=tokenizer.pad_token_id or 0,
    )


def write_blocks(model: nn.Module, tokenizer: Any, prompt: Tensor, new_tokens: int) -> Tensor:
    """``block_generate``, which caches where the model can."""
    return block_generate(model, prompt, max_new_tokens=new_tokens, tokenizer=tokenizer, eos_token_id=None)


def tokens_per_second(
    write: Callable[..., Tensor], model: nn.Module, tokenizer: Any, prompt: Tensor, new_tokens: int, repeats: int
) -> float:
    """New tokens of one text a second of wall time: the fastest of ``repeats``, after one that does not count."""
    prompt = prompt.to(model.device)
    seconds = []
    for _ in range(repeats + 1):
        _finished(prompt)
        start = time.perf_counter()
        made = write(model, tokenizer, prompt, new_tokens)
        _finished(prompt)
        seconds.append(time.perf_counter() - start)
        if made.shape[1] - prompt.shape[1] != new_tokens:
            raise RuntimeError(f"{made.shape[1] - prompt.shape[1]} new tokens were made, not {new_tokens}")
    return new_tokens / min(seconds[1:])


def _finished(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
