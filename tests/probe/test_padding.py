"""``pad_to``: batches of one length, whose padding counts nowhere."""

import numpy as np
import planted
import pytest
import torch

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.probe import ContextSimilarityProbe, annotate

TEXTS = [text for part in (1, 2, 3, 4) for text in planted.make_texts(6, sentences=part, words=5 + part, seed=part)]


def fed(model, batch_size, texts=TEXTS, **options):
    with ContextSimilarityProbe(model, planted.word_tokenizer(), sample=1, bootstrap=4) as probe:
        probe.feed(texts, batch_size, **options)
    return probe.statistics()


def same(one, two):
    return all(
        np.allclose(a.values, b.values, rtol=0, atol=1e-12, equal_nan=True)
        for a, b in zip(one.statistics, two.statistics, strict=True)
    )


def test_padding_fills_up(tokenizer):
    known, plain = (annotate(TEXTS[:2], tokenizer, **options) for options in ({"pad_to": 20}, {}))
    length = plain.input_ids.shape[1]
    assert known.input_ids.shape == (2, 20) and torch.equal(known.input_ids[:, :length], plain.input_ids)
    assert not known.attention_mask[:, length:].any() and known.special[:, length:].all()
    assert (known.sentences[:, length:] == -1).all()
    assert annotate(TEXTS[:2], tokenizer, pad_to=3).input_ids.shape == (2, length)


def test_padding_counts_nowhere():
    model = planted.small_bert().double()
    plain, padded = fed(model, 4), fed(model, 4, pad_to=64)
    assert same(plain, padded)
    counts = {**plain.counts, "padding": 64 * len(TEXTS) - plain.counts["tokens"] - plain.counts["special"]}
    assert padded.counts == counts


def test_float32_in_batches_of_any_size():
    tables = [fed(planted.small_bert(num_hidden_layers=3), size, pad_to=64) for size in (1, 5, 24)]
    assert same(tables[0], tables[1]) and same(tables[0], tables[2])


@pytest.mark.parametrize(("pad_to", "said"), [(0, "pad_to must be a whole"), (65, "pad_to is 65, the model takes 64")])
def test_wrong_lengths_are_named(pad_to, said):
    with pytest.raises(AttnExtError, match=said):
        fed(planted.small_bert(), 2, pad_to=pad_to)
