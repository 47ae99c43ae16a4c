"""Findings: their numbers are the statistics', and an excess that is only nearness is called that."""

import numpy as np
import planted
import pytest

from hf_attn_ext.probe import ContextSimilarityProbe, findings
from hf_attn_ext.probe.report.findings import VERDICTS, gaps, level_of, percentage
from hf_attn_ext.probe.results import Statistic


@pytest.fixture(scope="module")
def statistics():
    with ContextSimilarityProbe(planted.small_bert(), planted.word_tokenizer(), sample=1, percents=(2, 5)) as probe:
        probe.feed(planted.make_texts(24))
    return probe.statistics()


def entry(value, chance, matched, excess, excess_matched):
    one, two = np.array([[value]]), np.array([[[0.0, 1.0]]])
    bounds = [np.array([[each]], dtype=float) for each in (excess, excess_matched)]
    axes = ([3], [5])
    return Statistic("signal", "dot", 1, *axes, one, two, np.array([[chance]]), np.array([[matched]]), *bounds, 9)


def test_every_number_is_the_statistics_own(statistics):
    found = findings(statistics)
    assert {f.key for f in found} >= {"within_last", "repetition_head", "separators_last", "noise_head", "distance_0"}
    for one in found:
        measure = one.key.removeprefix("control_") if one.key.startswith("control_") else "dot"
        percent = None if "focus" in one.statistic else 2
        source = statistics.get(one.statistic, percent, measure)
        layer = source.layers.index(one.layer)
        if one.head is None:
            values = source.values[layer]
            assert one.level.value == pytest.approx(np.mean(values))
            low = np.atleast_2d(source.interval[layer])[:, 0].mean()
        else:
            place = layer, source.heads.index(one.head)
            assert one.level.value == source.values[place]
            low = source.interval[place][0]
        assert one.level.interval[0] == pytest.approx(low)
        shown = f"{one.level.value:.{1 if one.level.value >= 10 else 2}f}"
        assert (shown if one.statistic == "distance" else percentage(one.level.value)) in one.text
        assert one.verdict in VERDICTS and one.texts == source.texts
        assert one.text.endswith(".") and "{" not in one.text and "\n" not in one.text


@pytest.mark.parametrize(
    ("levels", "verdict"),
    [
        ((0.4, 0.3, 0.35, (0.05, 0.15), (0.01, 0.09)), "beyond"),
        ((0.4, 0.3, 0.39, (0.05, 0.15), (-0.01, 0.03)), "nearness"),
        ((0.4, 0.3, 0.45, (0.05, 0.15), (-0.09, -0.01)), "less"),
        ((0.4, 0.3, np.nan, (0.05, 0.15), (np.nan, np.nan)), "above"),
        ((0.3, 0.3, 0.2, (-0.1, 0.1), (0.05, 0.15)), "hidden"),
        ((0.3, 0.3, 0.3, (-0.1, 0.1), (-0.1, 0.1)), "none"),
        ((0.2, 0.3, 0.3, (-0.2, -0.1), (-0.2, -0.1)), "below"),
        ((0.2, 0.3, 0.3, (np.nan, np.nan), (np.nan, np.nan)), "unknown"),
        ((0.2, np.nan, np.nan, (np.nan, np.nan), (np.nan, np.nan)), "measured"),
    ],
)
def test_verdicts(levels, verdict):
    assert level_of(entry(*levels), 0, 0).verdict == level_of(entry(*levels), 0).verdict == verdict


def test_planted_heads_are_named():
    model = planted.planted_bert()
    with ContextSimilarityProbe(model, planted.word_tokenizer(), sample=1) as probe:
        probe.feed(planted.make_texts(24))
    named = {one.key: one for one in findings(probe.statistics())}
    assert named["repetition_head"].head == 0 and named["repetition_head"].verdict == "beyond"


def test_texts_of_one_sentence_are_noted_and_no_error():
    with ContextSimilarityProbe(planted.small_bert(), planted.word_tokenizer()) as probe:
        probe.feed(planted.make_texts(3, sentences=1))
    statistics = probe.statistics()
    assert any("one sentence" in note for note in gaps(statistics))
    assert {one.key: one for one in findings(statistics)}["within_last"].verdict == "none"


def test_without_a_tokenizer_nothing_is_said_of_sentences(recwarn):
    model = planted.small_bert()
    with ContextSimilarityProbe(model) as probe:
        model(**planted.word_tokenizer()(planted.make_texts(3), return_tensors="pt", padding=True))
    keys = {one.key for one in findings(probe.statistics())}
    assert "within_last" not in keys and "repetition_head" in keys
