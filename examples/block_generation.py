"""Teach a decoder to write several tokens per pass, and compare its speed with ``generate()``.

    python examples/block_generation.py                    # a GPT-2 of microbiomes, 1 minute on two cores
    python examples/block_generation.py --model gpt2 --steps 2000 --block-size 8

``make assets`` fetches the default model. The model writes its own training texts, as for this one there are none.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer

import hf_attn_ext as hax
from hf_attn_ext.inference import block_generate
from hf_attn_ext.training import BlockTwoStreamCollator


def main(arguments: list[str] | None = None) -> None:
    """Parse the options and run the example."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=".assets/mgm", help="a folder or a hub id of a causal language model")
    parser.add_argument("--block-size", type=int, default=4, help="tokens per pass")
    parser.add_argument("--samples", type=int, default=48, help="texts that the model writes to learn from")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--new-tokens", type=int, default=48)
    options = parser.parse_args(arguments)

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(options.model).eval()
    start = torch.full((options.samples, 1), tokenizer.bos_token_id)
    texts = model.generate(start, attention_mask=torch.ones_like(start), do_sample=True, top_k=0, max_length=96)
    prompt = texts[:1, :24]

    def timed(write: object) -> float:
        write()  # the first call is slower
        begin = time.perf_counter()
        write()
        return options.new_tokens / (time.perf_counter() - begin)

    lengths = {"max_new_tokens": options.new_tokens, "min_new_tokens": options.new_tokens, "do_sample": False}
    mask = torch.ones_like(prompt)
    speed = timed(lambda: model.generate(prompt, attention_mask=mask, **lengths))
    print(f"generate(): {speed:.0f} tokens per second, one per pass")

    hax.add_mask_token(model, tokenizer)  # GPT-2 has none
    hax.set_mask(model, "block_two_stream", block_size=options.block_size)
    collator = BlockTwoStreamCollator(tokenizer, model, max_length=96)
    rows = [{"input_ids": row[row != tokenizer.pad_token_id].tolist()} for row in texts]
    batches = DataLoader(rows, batch_size=8, shuffle=True, collate_fn=collator)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    model.train()
    step = 0
    while step < options.steps:
        for batch in batches:
            loss = model(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 0:
                print(f"step {step}: {loss.item():.2f} nats per token, in blocks of {options.block_size}")
            step += 1
            if step == options.steps:
                break
    model.eval()

    def write() -> torch.Tensor:
        return block_generate(model, prompt, max_new_tokens=options.new_tokens, tokenizer=tokenizer, eos_token_id=None)

    print(f"block_generate(): {timed(write):.0f} tokens per second, {options.block_size} per pass")
    print(tokenizer.decode(write()[0, prompt.shape[1] :][:16]))


if __name__ == "__main__":
    main()
