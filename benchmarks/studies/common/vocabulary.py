"""A small vocabulary, trained on the texts of a study."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerFast

END = "<|endoftext|>"  # begins every text


def train_tokenizer(folder: Path, texts: list[str], vocabulary: int) -> Any:
    """Train a byte-level BPE on ``texts`` and save it to ``folder``, where the next run reads it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

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
        temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:12]}.part")
        try:
            made.save_pretrained(temporary)
            os.replace(temporary, folder)
        except OSError:
            if not (folder / "tokenizer.json").is_file():  # otherwise another process was faster: its folder is kept
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return AutoTokenizer.from_pretrained(folder)
