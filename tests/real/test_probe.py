"""The probe on MiniLM and real speeches: numbers that a reader can expect of any trained encoder."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoModel

import hf_attn_ext as hax
from benchmarks.assets import ensure
from hf_attn_ext.probe import ContextSimilarityProbe, compare, suggest_layers


@pytest.fixture(scope="module")
def passages():
    """24 passages of 20 to 60 words of the test speeches, in their order."""
    with open(ensure("sotu") / "test.jsonl", encoding="utf-8") as file:
        words = [word for line in file for word in json.loads(line)["text"].split()]
    sizes, found, place = [20, 60, 30, 40], [], 0
    for number in range(24):
        found.append(" ".join(words[place : place + sizes[number % 4]]))
        place += sizes[number % 4]
    return found


def probed(model, tokenizer, texts, batch_size):
    with ContextSimilarityProbe(model, tokenizer, sample=0.25) as probe:
        probe.feed(texts, batch_size, truncation=True, max_length=128)
    return probe.statistics()


def test_batches_change_no_count_and_hardly_a_share(minilm, tokenizer, passages):
    one, two = (probed(minilm, tokenizer, passages, size) for size in (16, 5))
    assert {**one.counts, "padding": 0} == {**two.counts, "padding": 0}
    differing = total = 0
    for a, b in zip(one.statistics, two.statistics, strict=True):
        assert np.allclose(a.chance, b.chance, rtol=1e-12, equal_nan=True)
        gap = np.abs(a.values - b.values) / (np.abs(a.values) if a.name == "distance" else 1)
        # float32 may exchange two pairs that differ in the last bits: one in thousands of selections
        assert np.nanmax(gap) < 0.01
        differing, total = differing + (gap > 1e-6).sum(), total + gap.size
    assert differing / total < 0.02


def test_what_trained_heads_do_is_above_chance(minilm, tokenizer, passages):
    statistics = probed(minilm, tokenizer, passages, 12)
    repeated = statistics.get("repeated_tokens", 1)
    assert (repeated.excess_interval[..., 0] > 0).mean() > 0.7
    within = statistics.get("within_sentence", 1)
    assert (within.excess_interval[..., 0] > 0).mean() > 0.4 and within.values.mean() > within.chance.mean() + 0.1
    distance = statistics.get("distance", 1)
    assert (distance.values.mean(1) < distance.chance.mean(1)).all()
    focus = statistics.get("separator_focus")
    assert np.isfinite(focus.values).all() and 0.05 < focus.chance[0, 0] < 0.2


@torch.no_grad()
def test_outputs_are_the_same_bits(minilm, batch, tokenizer):
    before = minilm(**batch).logits
    with ContextSimilarityProbe(minilm, tokenizer, keep=("statistics", "matrices"), sample=1) as probe:
        assert torch.equal(minilm(**batch).logits, before)
    counts = probe.statistics().counts
    assert probe.matrices(5).shape[:2] == (6, 12) and counts["texts"] + counts["skipped"] == 6


def test_conversion_head_by_head_and_the_suggested_layers(tokenizer, passages):
    teacher, model = (AutoModel.from_pretrained(ensure("minilm")).eval() for _ in range(2))
    options = {"truncation": True, "max_length": 128}
    suggested = suggest_layers(teacher, tokenizer, passages, keep=2, **options)
    assert suggested.keep == [1, 2] or suggested.keep == [
        0,
        1,
    ]  # the best after stage 1: docs/evidence/
    hax.convert(model, layers=[4, 5])
    with torch.no_grad():  # layer 2 keeps softmax, but head 7 has no part of its values
        model.encoder.layer[2].attention.self.value.weight[7 * 32 : 8 * 32].normal_(0, 0.02)
    found = compare(teacher, model, tokenizer, passages[:8], **options)
    assert (found.score[:2] > 0.99).all()
    assert (2, int(found.score[2].argmin())) == (2, 7) and found.score[2, 7] < 0.5
    assert found.score[4:].mean() < found.score[3].mean() < 1
