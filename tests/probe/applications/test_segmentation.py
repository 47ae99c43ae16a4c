"""Planted borders are found, windows change nothing that they should not, scores are those counted by hand."""

import itertools
import random

import numpy as np
import planted
import pytest
import torch
from transformers import AlbertConfig, AlbertModel

import hf_attn_ext as hax
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.capture.attention_maps import attention_map
from hf_attn_ext.integration.capture.capture import capture
from hf_attn_ext.probe import Segmentation, segment, segment_sentences, segmentation_scores, sentence_vectors
from hf_attn_ext.probe.applications import boundaries as search
from hf_attn_ext.probe.applications.segmentation import cut, sentence_similarities
from hf_attn_ext.probe.applications.sentence_vectors import _chunks
from hf_attn_ext.probe.counting.similarity import similarity_matrices
from tests.integration import tiny

LENGTHS = (4, 3, 6, 5, 4)
BORDERS = [4, 7, 13, 18]


def topics(lengths=LENGTHS, noise=0.2, seed=0):
    """Unit vectors of sentences, (n, d): those of a segment lie around a direction of their own."""
    draw = np.random.default_rng(seed)
    means = np.repeat(np.eye(len(lengths), 16), lengths, axis=0)
    vectors = means + noise * draw.normal(size=means.shape) / 4
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def topic_text(seed=0, lengths=LENGTHS):
    """A text whose segments share no words."""
    draw = random.Random(seed)
    words = draw.sample(planted.WORDS, 6 * len(lengths))
    sentences = []
    for number, length in enumerate(lengths):
        own = words[6 * number : 6 * number + 6]
        for _ in range(length):
            sentences.append(" ".join([draw.choice(own).capitalize(), *draw.choices(own, k=7)]) + ".")
    return " ".join(sentences)


def comparing_model():
    """One head, whose output is the token's own value, whatever stands around it."""
    model = planted.planted_bert().double()
    attention = model.encoder.layer[0].attention.self
    with torch.no_grad():
        attention.query.weight[0:80] *= 1000.0
    return model


# --- cutting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["scatter", "depth"])
@pytest.mark.parametrize("segments", [5, None])
@pytest.mark.parametrize("seed", range(5))
def test_planted_borders_are_found(method, segments, seed):
    vectors = topics(seed=seed)
    found, scores = cut(vectors @ vectors.T, segments=segments, method=method, block=2)
    assert found == BORDERS and scores.shape == (len(vectors) - 1,)
    chosen = np.isin(np.arange(1, len(vectors)), found)
    assert scores[chosen].min() > scores[~chosen].max()


@pytest.mark.parametrize("method", ["scatter", "depth"])
def test_shuffled_sentences_give_chance(method):
    draw, ours, chance = np.random.default_rng(0), [], []
    for seed in range(150):
        vectors = topics(seed=seed)
        vectors = vectors[draw.permutation(len(vectors))]
        borders = (draw.choice(len(vectors) - 1, 4, replace=False) + 1).tolist()
        found, _ = cut(vectors @ vectors.T, segments=5, method=method)
        ours.append(segmentation_scores(found, BORDERS, len(vectors))["f1"])
        chance.append(segmentation_scores(borders, BORDERS, len(vectors))["f1"])
    assert abs(np.mean(ours) - np.mean(chance)) < 4 * np.hypot(np.std(ours), np.std(chance)) / 150**0.5
    assert np.mean(ours) < 0.35


def scatter(vectors, edges):
    parts = [vectors[first:end] for first, end in itertools.pairwise(edges)]
    return sum(((part - part.mean(0)) ** 2).sum() for part in parts)


@pytest.mark.parametrize("segments", [None, 1, 2, 3, 8])
@pytest.mark.parametrize("seed", range(3))
def test_the_cheapest_cuts_are_those_of_all(segments, seed):
    draw = np.random.default_rng(seed)
    vectors, price = draw.normal(size=(8, 3)), draw.normal(size=7) + (segments is None) * 1.5
    costs = search.scatter_costs(vectors @ vectors.T)
    assert costs[2, 6] == pytest.approx(scatter(vectors, [2, 6])) and np.isinf(costs[3, 3]) and np.isinf(costs[4, 1])

    def total(gaps):
        return scatter(vectors, [0, *gaps, 8]) + sum(price[gap - 1] for gap in gaps)

    counts = range(8) if segments is None else [segments - 1]
    every = [gaps for count in counts for gaps in itertools.combinations(range(1, 8), count)]
    found, gains = search.least_scatter(costs, price, segments)
    assert found == list(min(every, key=total))
    for gap in range(1, 8):
        others = set(found) - {gap}
        expected = total(sorted(others)) - total(sorted(others | {gap}))
        assert gains[gap - 1] == pytest.approx(expected, abs=1e-9)
    if segments is None:
        assert all((gains[gap - 1] >= 0) == (gap in found) for gap in range(1, 8))


def test_blocks_and_depths_by_hand():
    vectors = np.random.default_rng(0).normal(size=(7, 4))
    found = search.block_similarities(vectors @ vectors.T, 2)
    for gap in range(1, 7):
        left, right = vectors[max(0, gap - 2) : gap].sum(0), vectors[gap : gap + 2].sum(0)
        assert found[gap - 1] == pytest.approx(left @ right / np.linalg.norm(left) / np.linalg.norm(right))
    assert search.depths(np.array([5.0, 2, 3, 1, 1, 4])).tolist() == [0, 4, 0, 5, 5, 0]


def test_the_highest_scores_keep_apart_where_there_is_room():
    scores = np.array([0.0, 9, 8, 0, 7, 0])
    assert search.highest(scores, 3, 0.0) == [2, 5]
    assert search.highest(scores, None, 0.5) == [2, 5]
    assert search.highest(scores, 7, 0.0) == [1, 2, 3, 4, 5, 6]
    assert search.highest(scores, 1, 0.0) == [] and search.highest(np.ones(4), None, 0.0) == []


def test_a_bonus_moves_a_border():
    vectors = topics()
    bonus = np.zeros(len(vectors) - 1)
    bonus[9] = 50.0
    assert cut(vectors @ vectors.T, bonus, segments=2)[0] == [10]
    assert 10 in cut(vectors @ vectors.T, bonus, method="depth")[0]
    assert cut(None, bonus, segments=2)[0] == cut(None, bonus)[0] == [10]


# --- scores -------------------------------------------------------------------------------------------------------


def test_scores_by_hand():
    # true: aaabbbccc, k = 9 / 6 = 1.5, rounded 2; pairs two apart: 0-2, 1-3, ..., 6-8
    found = segmentation_scores([3, 7], [3, 6], 9)
    assert found["pk"] == pytest.approx(2 / 7)  # 4-6 and 6-8; 5-7 is apart in both
    assert found["windowdiff"] == pytest.approx(2 / 7)
    assert found["precision"] == found["recall"] == found["f1"] == 0.5
    # borders at 3 and 4: in the windows 2-4 there are two where there should be one, which Pk does not see
    found = segmentation_scores([3, 4, 6], [3, 6], 9)
    assert found["pk"] == pytest.approx(1 / 7) and found["windowdiff"] == pytest.approx(2 / 7)
    assert found["precision"] == pytest.approx(2 / 3) and found["recall"] == 1
    assert segmentation_scores([3, 6], [3, 6], 9) == {"pk": 0, "windowdiff": 0, "f1": 1, "precision": 1, "recall": 1}
    assert segmentation_scores([], [], 2)["f1"] == 1 and segmentation_scores([], [1], 2)["f1"] == 0
    assert segmentation_scores([1], [], 2)["pk"] == 1


def naive_scores(found, true, sentences):
    k = max(1, round(sentences / (2 * (len(true) + 1))))
    pairs = [(first, first + k) for first in range(sentences - k)]

    def count(borders, first, end):
        return sum(first < border <= end for border in borders)

    counts = [(count(found, *pair), count(true, *pair)) for pair in pairs]
    return (
        np.mean([(ours > 0) != (theirs > 0) for ours, theirs in counts]),
        np.mean([ours != theirs for ours, theirs in counts]),
    )


def test_scores_are_those_of_pairs_of_sentences():
    draw = random.Random(0)
    for _ in range(60):
        count = draw.randint(2, 14)
        found, true = (draw.sample(range(1, count), draw.randint(0, count - 1)) for _ in range(2))
        scores = segmentation_scores(found, true, count)
        assert (scores["pk"], scores["windowdiff"]) == pytest.approx(naive_scores(found, true, count))


# --- reading ------------------------------------------------------------------------------------------------------

TEXT = "Word1 word2 word3. Word4 word5, word6 word7 word8. Word9 word9. Word2 word1 word4 word5 word6."


def test_vectors_are_mean_outputs_and_mean_similarities(tokenizer):
    model = planted.small_bert().double()
    calls = []
    with torch.no_grad(), capture(model, calls.append):
        ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
        model(input_ids=ids)
    read = sentence_vectors(model, tokenizer, TEXT, layers=[0, 1], window=64)
    bounds = [0, 4, 11, 14, 20]
    assert read.tokens.tolist() == [4, 7, 3, 6] and read.layers == (0, 1)
    assert [TEXT[a:b].strip()[-1] for a, b in read.spans] == ["."] * 4 and read.spans[-1, 1] == len(TEXT)
    for call, vectors, focus in zip(calls, read.vectors, read.focus, strict=True):
        outputs = call.output[0, :, 1:-1]
        matrices = similarity_matrices(outputs)
        weights = attention_map(call, 0)[:, 1:-1, 1:-1]
        weights = weights / weights.sum(-1, keepdim=True)
        for number, (first, end) in enumerate(itertools.pairwise(bounds)):
            assert np.allclose(vectors[:, number], outputs[:, first:end].mean(1), atol=1e-12)
            for other in range(number):
                block = matrices[:, first:end, bounds[other] : bounds[other + 1]].mean((1, 2))
                assert np.allclose((vectors[:, number] * vectors[:, other]).sum(-1), block, atol=1e-12)
            assert np.allclose(focus[:, number], 20 * weights[:, :, end - 1].mean(1), atol=1e-12)


def test_the_focus_of_a_decoder_counts_what_is_seen(tokenizer):
    model = tiny.family_model("gpt2").double()
    text = "Word1 word2. Word3, word1 word3"  # the second sentence's last separator is the comma
    model.resize_token_embeddings(len(planted.VOCABULARY))
    calls = []
    with torch.no_grad(), capture(model, calls.append):
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        model(input_ids=ids, use_cache=False)
    read = sentence_vectors(model, tokenizer, text, layers=1, window=16)
    weights = attention_map(calls[-1], 0)[:, 1:-1, 1:-1]
    weights = weights / weights.sum(-1, keepdim=True)
    for number, end in enumerate((2, 4)):
        expected = torch.stack([weights[:, row, end] * (row + 1) for row in range(end, 7)]).mean(0)
        assert np.allclose(read.focus[0][:, number], expected, atol=1e-12)


def test_a_text_that_fits_is_read_in_one_pass(tokenizer):
    model = planted.small_bert().double()
    exact = sentence_vectors(model, tokenizer, TEXT, window=22)
    for window in (23, 64):
        other = sentence_vectors(model, tokenizer, TEXT, window=window)
        assert np.array_equal(other.vectors[0], exact.vectors[0]) and np.array_equal(other.focus, exact.focus)
    smaller = sentence_vectors(model, tokenizer, TEXT, window=21)
    assert np.abs(smaller.vectors[0] - exact.vectors[0]).max() > 1e-3


@pytest.mark.parametrize("window", [5, 8, 11, 40, "sentence"])
def test_windows_give_what_one_pass_gives_where_context_does_not_matter(tokenizer, window):
    model = comparing_model()
    text = topic_text(lengths=(3, 2))
    whole = sentence_vectors(model, tokenizer, text, heads=[0], window=64)
    parts = sentence_vectors(model, tokenizer, text, heads=[0], window=window, batch_size=3)
    assert len(whole.tokens) == 5 and whole.tokens.sum() == 45
    assert np.allclose(parts.vectors[0], whole.vectors[0], rtol=1e-10, atol=1e-12)


def test_sentences_are_read_one_by_one(tokenizer):
    model = planted.small_bert().double()
    read = sentence_vectors(model, tokenizer, TEXT, batch_size=2)
    for number, (first, end) in enumerate(read.spans):
        pair = TEXT[first:end] + " " + TEXT[first:end]  # one sentence alone would be refused
        alone = sentence_vectors(model, tokenizer, pair)
        for position in range(2):
            assert np.allclose(alone.vectors[0][:, position], read.vectors[0][:, number], atol=1e-12)
            assert np.allclose(alone.focus[0][:, position], read.focus[0][:, number], atol=1e-12)


def test_a_sentence_longer_than_the_model_is_read_in_windows(tokenizer):
    text = " ".join(["Word1", *["word2"] * 90]) + ". Word3 word4."
    read = sentence_vectors(planted.small_bert(), tokenizer, text)
    assert read.tokens.tolist() == [92, 3] and np.isfinite(read.vectors[0]).all()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("length", "room"), [(3, 8), (8, 8), (9, 8), (50, 8), (51, 7), (20, 1), (7, 2)])
def test_every_token_is_taken_from_the_best_window(causal, length, room):
    chunks = _chunks(10, 10 + length, room, causal)
    owned = [position for chunk in chunks for position in range(chunk.own, chunk.own_end)]
    assert owned == list(range(10, 10 + length))

    def context(chunk, position):
        before, behind = position - chunk.first, chunk.end - 1 - position
        if causal:
            return before
        ends = [side for side, edge in ((before, chunk.first > 10), (behind, chunk.end < 10 + length)) if edge]
        return min(ends, default=length)

    for chunk in chunks:
        assert chunk.end - chunk.first == min(room, length)
        for position in range(chunk.own, chunk.own_end):
            others = [other for other in chunks if other.first <= position < other.end]
            assert context(chunk, position) == max(context(other, position) for other in others)


# --- segmenting ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_topics_of_a_text_are_found(tokenizer, seed):
    text = topic_text(seed)
    options = {"layers": 0, "heads": [0, 1]}
    for window in ("sentence", 40):
        found = segment(planted.planted_bert(), tokenizer, text, segments=5, window=window, **options)
        assert isinstance(found, Segmentation) and list(found.boundaries) == BORDERS
    assert "".join(found.parts(text)) == text and len(found.parts(text)) == 5
    assert all(part.strip().count(".") == length for part, length in zip(found.parts(text), LENGTHS, strict=True))
    assert found.offsets == [found.sentences[border, 0] for border in BORDERS]
    assert found.focus is None and found.similarity.shape == found.scores.shape == (21,)
    deep = segment(planted.planted_bert(), tokenizer, text, segments=5, method="depth", **options)
    assert list(deep.boundaries) == BORDERS


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
@pytest.mark.parametrize("converted", [False, True])
def test_models_stock_and_converted(tokenizer, family, converted):
    model = tiny.family_model(family)
    model.resize_token_embeddings(len(planted.VOCABULARY))
    if converted:
        hax.convert(model, kernel="flexformer_p", num_features=4)
    model.train()
    found = segment(model, tokenizer, TEXT, segments=2, cue="both", window=12)
    assert model.training and len(found.boundaries) == 1 and np.isfinite(found.scores).all()
    assert found.focus.shape == (3,) and (found.focus > 0).all()
    again = segment(model, tokenizer, TEXT, segments=2, cue="both", window=12, batch_size=1)
    assert np.allclose(again.scores, found.scores, atol=1e-4)
    assert len(segment(model, tokenizer, TEXT, segments=3, cue="focus").boundaries) == 2


def test_without_layers_the_last_two_are_read(tokenizer):
    model = planted.small_bert(num_hidden_layers=3)
    assert sentence_vectors(model, tokenizer, TEXT).layers == (1, 2)


def test_options_change_what_they_say(tokenizer):
    model = planted.small_bert().double()
    read = sentence_vectors(model, tokenizer, TEXT, layers=[0, 1])
    focus = read.focus.mean((0, 1))[:-1]
    high, low = (segment_sentences(read, segments=2, cue="focus", focus_weight=weight) for weight in (1.0, -1.0))
    assert high.boundaries == (focus.argmax() + 1,) and low.boundaries == (focus.argmin() + 1,)
    both = segment_sentences(read, segments=2, cue="both", focus_weight=100.0)
    assert both.boundaries == high.boundaries
    one = read.of_layers(1)
    assert one.layers == (1,) and np.array_equal(one.focus[0], read.focus[1])
    read = sentence_vectors(model, tokenizer, TEXT, layers=1)
    assert np.allclose(sentence_similarities(one), sentence_similarities(read))
    cosine = sentence_similarities(one)
    assert np.allclose(np.diagonal(cosine), 1.0)
    dots = sentence_similarities(one, "dot")
    vectors = one.vectors[0] - one.vectors[0].mean(1, keepdims=True)
    expected = [head @ head.T / (head**2).sum(-1).mean() for head in vectors]
    assert np.allclose(dots, np.mean(expected, 0))
    assert np.diagonal(dots).mean() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "text 0 is blank"),
        (3, {}, "text must be one string, got 3"),
        ("Word1 word2.", {}, "the text has one sentence, got 'Word1 word2.'; pass a text with two sentences or more"),
        (TEXT, {"segments": 5}, "segments is 5, but the text has 4 sentences; give at most 4"),
        (TEXT, {"segments": 5, "method": "depth"}, "segments is 5, but the text has 4 sentences"),
        (TEXT, {"segments": 0}, "segments must be a whole number of at least 1, got 0"),
        (TEXT, {"language": "English"}, "language must be a lower-case code"),
        (TEXT, {"cue": "attention"}, "cue must be one of similarity, focus, both, got 'attention'"),
        (TEXT, {"similarity": "cosin"}, "Did you mean 'cosine'?"),
        (TEXT, {"method": "tiling"}, "must be one of scatter, depth"),
        (TEXT, {"threshold": "high"}, "threshold must be a finite number, got 'high'"),
        (TEXT, {"focus_weight": None}, "focus_weight must be a finite number, got None"),
        (TEXT, {"block": 0}, "block must be a whole number of at least 1, got 0"),
        (TEXT, {"window": 65}, "window must be at most 64 tokens for this model, got 65"),
        (TEXT, {"window": 3}, "window must be a whole number of at least 4, got 3"),
        (TEXT, {"window": "text"}, "window must be 'sentence' or a number of tokens, got 'text'"),
        (TEXT, {"layers": 7}, "no layer matches 7; there are layers 0 to 1"),
    ],
)
def test_mistakes_are_one_line(tokenizer, text, options, message):
    with pytest.raises(AttnExtError) as error:
        segment(planted.small_bert(), tokenizer, text, **options)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_mistakes_with_models_and_readings(tokenizer, monkeypatch):
    model = planted.small_bert()
    with pytest.raises(AttnExtError, match="sentence_vectors needs the model's tokenizer; pass tokenizer"):
        segment(model, None, TEXT)
    with pytest.raises(AttnExtError, match="tokenizer must be a PreTrainedTokenizerFast, got 'bert'"):
        segment(model, "bert", TEXT)
    with pytest.raises(AttnExtError, match=r"token id .*, the model knows 0 to 39"):
        segment(tiny.family_model("bert"), tokenizer, TEXT.replace("1", "29"))
    read = sentence_vectors(model, tokenizer, TEXT, focus=False)
    with pytest.raises(AttnExtError, match="needs the focus; call sentence_vectors with focus=True"):
        segment_sentences(read, cue="both")
    shared = AlbertModel(AlbertConfig(vocab_size=80, embedding_size=8, hidden_size=16, num_attention_heads=2))
    with pytest.raises(AttnExtError, match="more than once in a pass"):
        segment(shared, tokenizer, TEXT)
    with torch.no_grad():
        model.encoder.layer[1].attention.self.value.bias.fill_(float("inf"))
    with pytest.raises(AttnExtError, match="not finite"):
        segment(model, tokenizer, TEXT)
    monkeypatch.setattr(search, "MOST_SENTENCES", 3)
    with pytest.raises(AttnExtError, match="method='scatter' takes at most 3 sentences, got 4; use method='depth'"):
        segment(planted.small_bert(), tokenizer, TEXT)
    assert segment(planted.small_bert(), tokenizer, TEXT, method="depth", segments=2).boundaries
    with pytest.raises(AttnExtError, match="every boundary in predicted must be a whole number of at most 3, got 4"):
        segmentation_scores([4], [1], 4)
