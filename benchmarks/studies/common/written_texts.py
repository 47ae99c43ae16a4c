"""Texts that a language model wrote itself, for one whose training text nobody has."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_attn_ext._util.files import new_folder


def write_samples(model: Path, folder: Path, seed: int, count: int) -> Path:
    """Let the model write texts from its beginning token on, without any prompt, and split them."""
    if folder.is_dir():
        return folder
    torch.manual_seed(seed)
    gpt, tokenizer = AutoModelForCausalLM.from_pretrained(model).eval(), AutoTokenizer.from_pretrained(model)
    texts: list[str] = []
    while len(texts) < count:
        start = torch.full((min(128, count), 1), tokenizer.bos_token_id)
        with torch.no_grad():
            ids = gpt.generate(start, attention_mask=torch.ones_like(start), do_sample=True, top_k=0, max_length=96)
        texts += tokenizer.batch_decode(ids, skip_special_tokens=True)
        print(f"[texts] the model has written {min(len(texts), count)} of {count} texts", file=sys.stderr, flush=True)
    texts = [text for text in texts[:count] if text.strip()]
    eighth = max(1, len(texts) // 8)
    parts = {"test": texts[:eighth], "validation": texts[eighth : 2 * eighth], "train": texts[2 * eighth :]}
    with new_folder(folder) as made:
        for name, members in parts.items():
            lines = [json.dumps({"text": text}) + "\n" for text in members]
            (made / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    return folder
