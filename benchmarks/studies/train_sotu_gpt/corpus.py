"""The State of the Union addresses as sequences of tokens, in a vocabulary trained on them."""

from __future__ import annotations

import argparse
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.assets import ensure

END = "<|endoftext|>"  # begins every address


def train_tokenizer(folder: Path, texts: list[str], vocabulary: int) -> Any:
    """Train a byte-level BPE on ``texts`` and save it to ``folder``, where it is read from the next time."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if not (folder / "tokenizer.json").is_file():
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
        )
        backend.train_from_iterator(texts, trainer)
        made = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=END, eos_token=END, pad_token=END)
        made.model_input_names = ["input_ids", "attention_mask"]
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:12]}.part")
        try:
            made.save_pretrained(beside)
            os.replace(beside, folder)
        except OSError:
            if not (folder / "tokenizer.json").is_file():  # otherwise another process was faster: its folder is kept
                raise
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return AutoTokenizer.from_pretrained(folder)


class Corpus:
    """The vocabulary, and the addresses as sequences: what all runs share."""

    def __init__(self, options: argparse.Namespace):
        from hf_attn_ext.training import DataConfig
        from hf_attn_ext.training.data.encoding import Collator, EncodedSplit, encode_documents
        from hf_attn_ext.training.data.loading import load_task_data

        files = {split: f"{split}.jsonl" for split in ("train", "validation", "test")}
        data = load_task_data(DataConfig(path=str(ensure("sotu")), task="language_modeling", **files))
        folder = Path(options.out) / f"tokenizer-{options.vocabulary}"
        self.tokenizer = train_tokenizer(folder, data.train.texts, options.vocabulary)
        self.collate = Collator(self.tokenizer, "language_modeling")

        def encoded(split: Any, most: int | None = None) -> EncodedSplit:
            whole = encode_documents(split, self.tokenizer, options.context)
            if most is None or most >= len(whole):
                return whole
            rows = np.linspace(0, len(whole) - 1, most).round().astype(int)  # of every address
            return EncodedSplit([whole[row]["input_ids"] for row in rows], None, None)

        self.train = encoded(data.train)
        self.validation = encoded(data.validation, options.validation_sequences)
        self.test = encoded(data.test, options.test_sequences)

    @property
    def end(self) -> int:
        return self.tokenizer.eos_token_id

    def __str__(self) -> str:
        sizes = ", ".join(
            f"{name} {(getattr(self, name).lengths - 1).sum():,}" for name in ("train", "validation", "test")
        )
        return f"{len(self.tokenizer)} words; predicted tokens: {sizes}"
