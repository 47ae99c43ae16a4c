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
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = BertConfig(
        vocab_size=len(VOCABULARY), max_position_embeddings=64, initializer_range=0.3, **{**sizes, **changes}
    )
    return BertModel(config, add_pooling_layer=False).eval()


def planted_bert():
    """One layer, three heads: one compares token ids, one averages all, one looks at "." alone.

    Token embeddings are orthogonal and there are no positions: what a head does follows from its weights by hand.
    """
    model = small_bert(hidden_size=240, num_hidden_layers=1, num_attention_heads=3, intermediate_size=8)
    its = model.encoder.layer[0].attention.self
    with torch.no_grad():
        embeddings = model.embeddings
        for table in (embeddings.word_embeddings, embeddings.position_embeddings, embeddings.token_type_embeddings):
            table.weight.zero_()
        embeddings.word_embeddings.weight[:, : len(VOCABULARY)] = torch.eye(len(VOCABULARY))
        for layer in (its.query, its.key, its.value):
            layer.weight.zero_()
            layer.bias.zero_()
        own = torch.eye(80, 240)
        for head in range(3):
            its.value.weight[80 * head : 80 * head + 80] = own
        its.query.weight[0:80] = its.key.weight[0:80] = own
        its.query.bias[160] = 40.0
        its.key.weight[160, VOCABULARY.index(".")] = 1.0
    return model


def sentence_texts(count, seed=0):
    """Texts whose sentences share no words: four sentences of seven words, each with its own seven."""
    draw = random.Random(seed)
    texts = []
    for _ in range(count):
        words = draw.sample(WORDS, 28)
        groups = [words[7 * part : 7 * part + 7] for part in range(4)]
        texts.append(" ".join(" ".join([draw.choice(g).capitalize(), *draw.choices(g, k=6)]) + "." for g in groups))
    return texts
