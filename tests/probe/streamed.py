"""A probe over texts, small decoders, and whether two statistics are the same."""

from __future__ import annotations

import numpy as np
import planted
import torch
from transformers import GPT2Config, GPT2Model, LlamaConfig, LlamaModel

from hf_attn_ext.probe import ContextSimilarityProbe


def small_gpt():
    torch.manual_seed(1)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "initializer_range": 0.3}
    return GPT2Model(GPT2Config(vocab_size=len(planted.VOCABULARY), bos_token_id=2, eos_token_id=3, **sizes)).eval()


def small_llama():
    torch.manual_seed(2)
    sizes = {"hidden_size": 32, "intermediate_size": 24, "num_hidden_layers": 2, "max_position_embeddings": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3}
    return LlamaModel(LlamaConfig(vocab_size=len(planted.VOCABULARY), pad_token_id=0, **sizes, **heads)).eval()


def probed(model, tokenizer, texts, batch_size=4, documents=None, **options):
    with ContextSimilarityProbe(model, tokenizer, **{"sample": 1, **options}) as probe:
        assert probe.feed(texts, batch_size, documents=documents) == len(texts)
    return probe


def same(one, two, tolerance=1e-9):
    assert len(one.statistics) == len(two.statistics)
    for a, b in zip(one.statistics, two.statistics, strict=True):
        assert (a.name, a.measure, a.percent, a.texts) == (b.name, b.measure, b.percent, b.texts)
        for field in ("values", "interval", "chance", "chance_matched", "excess_interval", "excess_matched_interval"):
            assert np.allclose(getattr(a, field), getattr(b, field), rtol=tolerance, atol=tolerance, equal_nan=True)
    assert np.allclose(one.distances["values"], two.distances["values"], atol=tolerance)
