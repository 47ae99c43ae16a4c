"""Tiny softmax models with tokenizers, made on the spot."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    CamembertConfig,
    CamembertForMaskedLM,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
    XLNetConfig,
    XLNetModel,
)

WORDS = ["the", "film", "is", "good", "bad", "a", "great", "dull", "story", "plot", "and", "very", "not", "so"]
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 40,
    "max_position_embeddings": 40,
}


def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    plain.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=plain,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=32,
    )


def masked_lm(folder: Path, with_tokenizer: bool = True) -> Path:
    torch.manual_seed(0)
    RobertaForMaskedLM(RobertaConfig(**SIZES, pad_token_id=0)).save_pretrained(folder)
    if with_tokenizer:
        tokenizer().save_pretrained(folder)
    return folder


def classifier(folder: Path, labels: tuple[str, ...] = ("bad", "good")) -> Path:
    torch.manual_seed(0)
    names = dict(enumerate(labels))
    config = BertConfig(**SIZES, id2label=names, label2id={name: i for i, name in names.items()})
    BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def camembert(folder: Path) -> Path:
    CamembertForMaskedLM(CamembertConfig(**SIZES, pad_token_id=0)).save_pretrained(folder)
    return folder


def xlnet(folder: Path) -> Path:
    XLNetModel(XLNetConfig(d_model=16, n_layer=1, n_head=2, d_inner=32, vocab_size=40)).save_pretrained(folder)
    return folder
