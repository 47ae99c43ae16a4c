"""Comparing two models head by head: laws, a naive twin, heads that are known to have changed, and errors."""

import copy
import json

import numpy as np
import planted
import pytest
import torch
from scipy.stats import spearmanr

import hf_attn_ext as hax
from hf_attn_ext.probe import HeadComparison, compare
from hf_attn_ext.probe.applications.comparison import VERDICTS
from hf_attn_ext.probe.counting.similarity import high_counts, similarity_matrices

TEXTS = planted.make_texts(12) + planted.make_texts(3, sentences=2, seed=1)


def bert(**changes):
    return planted.small_bert(num_attention_heads=4, hidden_size=32, **changes)


def head_rows(model, layer, head, size=8):
    """A head's rows of the layer's query, key and value weights."""
    attention = model.encoder.layer[layer].attention.self
    return [getattr(attention, name).weight[size * head : size * head + size] for name in ("query", "key", "value")]


def test_a_model_and_its_copy_are_the_same(tokenizer):
    model = bert()
    found = compare(model, copy.deepcopy(model), tokenizer, TEXTS, batch_size=4)
    assert isinstance(found, HeadComparison) and found.score.shape == (2, 4)
    assert (found.score == 1).all() and (found.overlap == 1).all() and (found.score_interval == 1).all()
    assert np.allclose(found.correlation, 1, rtol=1e-12) and (found.margin > 0).all()
    assert (found.overlap_matched < 1).all() and (np.abs(found.correlation_matched) < 1).all()
    assert len(found.heads_with("kept")) == 8
    assert found.counts["texts"] == 15 and 0.04 < found.overlap_by_count < 0.06


def test_documents_are_drawn_whole_and_change_intervals_alone(tokenizer):
    model, other = bert(), bert(seed=1)
    names = [f"document {number % 5}" for number in range(15)]
    alone = compare(model, other, tokenizer, TEXTS)
    found = compare(model, other, tokenizer, TEXTS, documents=names)
    assert np.array_equal(alone.score, found.score) and np.array_equal(alone.correlation, found.correlation)
    assert not np.allclose(alone.score_interval, found.score_interval)
    # of one document, and copies of one text, say nothing of others
    for texts, names in ((TEXTS, ["one"] * 15), (TEXTS[:1] * 3, None)):
        together = compare(model, other, tokenizer, texts, documents=names)
        assert np.isnan(together.score_interval).all() and np.isnan(together.correlation_interval).all()


def naive(teacher, other, tokenizer, texts, percent):
    """Pair by pair, without sharing anything but the matrices: overlap, its expectation, and rank correlation."""
    sums = np.zeros((3, 2, 4))
    pairs = ranked = 0
    for text in texts:
        batch = tokenizer(text, return_tensors="pt")
        found = []
        for model in (teacher, other):
            kept = {}
            with hax.probe.ContextSimilarityProbe(model, tokenizer, keep="matrices") as probe, torch.no_grad():
                model(**batch)
            for layer in (0, 1):
                kept[layer] = probe.matrices(layer)[0, :, 1:-1, 1:-1].double()
            found.append(kept)
        length = batch["input_ids"].shape[1] - 2
        first, second = np.triu_indices(length, 1)
        count = high_counts(len(first), [percent])[0]
        pairs, ranked = pairs + count, ranked + 1
        for layer in (0, 1):
            for head in range(4):
                values = [matrices[layer][head].numpy()[first, second] for matrices in found]
                sets = [set(np.argsort(-each)[:count].tolist()) for each in values]
                sums[0, layer, head] += len(sets[0] & sets[1])
                for pair in sets[1]:
                    gap = second[pair] - first[pair]
                    of_gap = np.flatnonzero(second - first == gap)
                    sums[1, layer, head] += len(sets[0] & set(of_gap.tolist())) / len(of_gap)
                sums[2, layer, head] += spearmanr(*values).statistic
    return sums[0] / pairs, sums[1] / pairs, sums[2] / ranked


def test_equals_the_naive_twin(tokenizer):
    teacher, other = bert().double(), bert(seed=3).double()
    with torch.no_grad():  # half way, so that some is common
        for one, two in zip(other.parameters(), teacher.parameters(), strict=True):
            one.copy_(0.15 * one + 0.85 * two)
    found = compare(teacher, other, tokenizer, TEXTS, percent=10, batch_size=1)
    overlap, matched, correlation = naive(teacher, other, tokenizer, TEXTS, 10)
    assert np.allclose(found.overlap, overlap, atol=1e-12) and 0.2 < overlap.mean() < 0.95
    assert np.allclose(found.overlap_matched, matched, atol=1e-6)
    assert np.allclose(found.correlation, correlation, atol=1e-9)
    assert np.allclose(found.score, (overlap - matched) / (1 - matched), atol=1e-6)


def test_rank_correlation_at_the_same_distances_is_the_mean_over_shuffles(tokenizer):
    from hf_attn_ext.probe.applications.compare import _RANKS, _RANKS_MATCHED, _compared
    from hf_attn_ext.probe.counting.texts import make_text

    draw = np.random.default_rng(0)
    teacher = torch.from_numpy(draw.normal(size=(1, 7, 3)).cumsum(1))
    text = make_text(0, np.arange(7), np.arange(7), np.array([]), None, None, (20,), 2, 1, 0)
    found = _compared(teacher, teacher, text)
    first, second, _ = text.pairs
    values = similarity_matrices(teacher)[0].numpy()[first, second]
    shuffled = []
    for _ in range(3000):
        other = values.copy()
        for gap in range(1, 7):
            pairs = np.flatnonzero(second - first == gap)
            other[pairs] = draw.permutation(other[pairs])
        shuffled.append(spearmanr(values, other).statistic)
    assert found[_RANKS, 0, 0] == pytest.approx(1)
    assert found[_RANKS_MATCHED, 0, 0] == pytest.approx(np.mean(shuffled), abs=0.02)


@torch.no_grad()
def test_a_destroyed_head_is_found(tokenizer):
    teacher = bert()
    other = copy.deepcopy(teacher)
    for rows in head_rows(other, 1, 2):
        rows.copy_(torch.randn_like(rows) * 0.3)
    found = compare(teacher, other, tokenizer, planted.make_texts(40), bootstrap=100)
    assert np.unravel_index(found.score.argmin(), found.score.shape) == (1, 2)
    assert found.score[1, 2] < 0.3 and (np.delete(found.score.ravel(), 6) == 1).all()
    assert found.verdict(1, 2) != "kept" and len(found.heads_with("kept")) == 7


@torch.no_grad()
def test_exchanged_heads_are_caught(tokenizer):
    teacher = bert()
    other = copy.deepcopy(teacher)
    for one, two in zip(head_rows(other, 1, 0), head_rows(other, 1, 3), strict=True):
        kept = one.clone()
        one.copy_(two)
        two.copy_(kept)
    found = compare(teacher, other, tokenizer, planted.make_texts(40))
    assert found.best_other[1, 0] == 3 and found.best_other[1, 3] == 0
    assert found.overlaps[1, 3, 0] == found.overlaps[1, 0, 3] == 1
    assert (found.margin_interval[1, [0, 3], 1] < 0).all() and (found.margin[0] > 0).all()
    assert all(found.verdict(1, head) in ("moved", "lost") for head in (0, 3))
    assert found.verdict(1, 1) == found.verdict(1, 2) == "kept"


def test_a_head_of_equal_outputs_has_overlap_but_no_ranks(tokenizer):
    teacher, other = planted.planted_bert(), planted.planted_bert()
    found = compare(teacher, other, tokenizer, planted.sentence_texts(6))
    assert (found.score == 1).all()
    assert np.isnan(found.correlation[0, 1]) and found.correlation[0, 0] == pytest.approx(1)


def test_converted_models_and_batches(tokenizer):
    teacher = bert()
    converted = hax.convert(copy.deepcopy(teacher), kernel="flexformer_p", num_features=4, layers=[1])
    one, two = (compare(teacher, converted, tokenizer, TEXTS, batch_size=size) for size in (1, 7))
    assert (one.score[0] > 0.99).all() and one.score[1].mean() < one.score[0].mean()
    assert np.allclose(one.score, two.score, atol=0.02) and one.counts == two.counts
    teacher.train()
    compare(teacher, converted, tokenizer, TEXTS[:2])
    assert teacher.training and not converted.training


def test_tables_and_files(tokenizer, tmp_path):
    teacher = bert()
    found = compare(teacher, bert(seed=5), tokenizer, TEXTS)
    rows = found.rows()
    assert len(rows) == 8 and rows[5]["layer"] == 1 and rows[5]["score"] == found.score[1, 1]
    assert all(row["verdict"] in VERDICTS and row["score_low"] <= row["score"] <= row["score_high"] for row in rows)
    stored = json.loads(found.to_json(tmp_path / "heads.json"))
    assert stored == json.loads((tmp_path / "heads.json").read_text()) and stored["format"] == 1
    assert np.allclose(stored["score"], found.score)
    found.figure(tmp_path / "heads.png")
    assert (tmp_path / "heads.png").stat().st_size > 5000
    single = compare(teacher, bert(seed=5), tokenizer, TEXTS[:1])
    assert single.verdict(0, 0) == "unknown" and json.loads(single.to_json())["score_interval"][0][0] == [None, None]


def test_errors(tokenizer):
    teacher = bert()

    def refused(message, other=None, texts=TEXTS[:2], tok=tokenizer, **options):
        with pytest.raises(hax.AttnExtError, match=message):
            compare(teacher, bert() if other is None else other, tok, texts, **options)

    refused("are one model, or share layers", teacher)
    refused("are one model, or share layers", torch.nn.ModuleDict({"inner": teacher}))
    refused("has 2 layers, the converted model 3", bert(num_hidden_layers=3))
    refused("layer 0 has 4 heads in the teacher and 2", planted.small_bert(hidden_size=32))
    other = bert()
    other.resize_token_embeddings(70, mean_resizing=False)
    refused("the teacher knows 67 tokens, the converted model 70", other)
    refused("there are no texts to feed", texts=[])
    refused("put it in a list", texts="one text")
    refused("text 1 is blank", texts=["Word1.", " "])
    refused("compare needs the model's tokenizer", tok=None)
    refused("tokenizer must be a PreTrainedTokenizerFast, got 3", tok=3)
    refused("1 texts, each of one token", texts=["word1"])
    refused("percents must be numbers above 0", percent=70)
    refused("bootstrap must be a whole number", bootstrap=1)
    refused("expected a model", other=3)
    refused("takes 64; shorten it", texts=["word1 " * 80])
