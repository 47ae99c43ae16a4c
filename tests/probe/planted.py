"""A word tokenizer without files, texts with known sentences, and heads that are known to do one thing."""

from __future__ import annotations

import random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

WORDS = [f"word{number}" for number in range(30)]
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", ",", *WORDS, *(w.capitalize() for w in WORDS)]


def word_tokenizer(**options):
    """One id a word; ``[CLS]`` before and ``[SEP]`` behind."""
    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=core, mask_token="[MASK]", **names, **options)


def make_texts(count, sentences=4, words=7, seed=0):
    """Texts of so many sentences of so many random words."""
    draw = random.Random(seed)
    return [
        " ".join(
            " ".join([draw.choice(WORDS).capitalize(), *(draw.choice(WORDS) for _ in range(words - 1))]) + "."
            for _ in range(sentences)
        )
        for _ in range(count)
    ]


def small_bert(seed=0, **changes):
    """A random BERT with the word tokenizer's vocabulary."""
    torch.manual_seed(seed)
    sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
    config = BertConfig(
        vocab_size=len(VOCABULARY), max_position_embeddings=64, initializer_range=0.3, **{**sizes, **changes}
    )
    return BertModel(config, add_pooling_layer=False).eval()
