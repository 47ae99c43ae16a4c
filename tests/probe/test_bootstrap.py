"""The bootstrap: documents are drawn whole, intervals are never without width and end where numbers do."""

import numpy as np
import planted
import pytest
from streamed import probed, same

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.probe import ContextSimilarityProbe


def test_documents_are_drawn_whole_and_change_intervals_alone(tokenizer):
    """Texts of one document are alike: intervals as if each were drawn alone are too narrow."""
    model = planted.small_bert().double()
    texts, names = [], []
    for number in range(24):
        # of few sentences in one document, of many in the next: the share within a sentence is the document's
        texts += planted.make_texts(5, sentences=1 + number % 4, words=28 // (1 + number % 4), seed=number)
        names += [f"document {number}"] * 5
    plain = probed(model, tokenizer, texts, bootstrap=256)
    found = probed(model, tokenizer, texts, bootstrap=256, documents=names)
    for one, two in zip(plain.statistics().statistics, found.statistics().statistics, strict=True):
        for field in ("values", "chance", "chance_matched"):
            assert np.array_equal(getattr(one, field), getattr(two, field), equal_nan=True)
    width = [np.ptp(each.statistics().get("within_sentence").interval, axis=-1).mean() for each in (plain, found)]
    # hardly anything but the documents differs: five texts of one count as one
    assert width[1] / width[0] == pytest.approx(5**0.5, rel=0.15)
    order = np.random.default_rng(0).permutation(len(texts))
    mixed = [[each[at] for at in order] for each in (texts, names)]
    again = [probed(model, tokenizer, mixed[0][k::2], 7, bootstrap=256, documents=mixed[1][k::2]) for k in range(2)]
    again[0].merge(again[1])
    same(found.statistics(), again[0].statistics())
    assert found.statistics().settings["resampled"] == "documents"
    assert plain.statistics().settings["resampled"] == "texts"
    with pytest.raises(AttnExtError, match="differ in resampled: 'documents' here, 'texts' there"):
        found.merge(plain)
    with found, pytest.raises(AttnExtError, match="fed texts with resampled 'documents' before, now with 'texts'"):
        found.feed(texts)


def test_a_shuffled_text_is_drawn_with_its_document(tokenizer):
    """So that a control and the model itself can be compared replicate by replicate."""
    texts, names = planted.make_texts(6), [f"document {number // 2}" for number in range(6)]
    model, found = planted.small_bert(), []
    for shuffle in (False, True):
        with ContextSimilarityProbe(model, tokenizer) as probe:
            probe.feed(texts, documents=names, shuffle_tokens=shuffle)
        found.append(probe.state_dict()["sums"]["all/texts"])
    assert np.array_equal(*found) and len(set(found[0][:, 0])) > 3


@pytest.mark.parametrize("names", [["one"] * 4, None])
def test_texts_that_are_drawn_together_say_nothing_of_others(tokenizer, names):
    """Of one document, or copies of one text: an interval of no width would be the surest of all."""
    texts = planted.make_texts(4) if names else planted.make_texts(1) * 4
    statistics = probed(planted.small_bert(), tokenizer, texts, documents=names).statistics()
    assert all(np.isnan(each.interval).all() and each.texts == 4 for each in statistics.statistics)
    assert all(np.isnan(each.excess_interval).all() for each in statistics.statistics)
    several = probed(planted.small_bert(), tokenizer, planted.make_texts(4), documents=names and ["a", *names[1:]])
    assert np.isfinite(several.statistics().get("distance").interval).all()


def test_few_documents_are_said(tokenizer):
    texts, model = planted.make_texts(40, 1, 5), planted.small_bert()
    names = [f"document {number}" for number in range(40)]
    assert not probed(model, tokenizer, texts, bootstrap=256, documents=names).statistics().notes
    few = probed(model, tokenizer, texts, bootstrap=256, documents=[name[:10] for name in names]).statistics()
    assert "parts of documents that count as about" in few.notes[0]
    assert 1.2 < float(few.notes[0].split("about ")[1].split()[0]) < 7  # ten of "document 1" and so on


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a"], "text 1 has no document"),
        (["a"] * 4, "more documents than texts, 3"),
        (["a", 3, "b"], "document of text 1 must be a string, got 3"),
        ("abc", "documents must be a list with one name per text, got 'abc'"),
    ],
)
def test_every_text_has_its_document(tokenizer, names, said):
    model = planted.small_bert()
    with ContextSimilarityProbe(model, tokenizer) as probe, pytest.raises(AttnExtError, match=said):
        probe.feed(planted.make_texts(3), 2, documents=names)


def test_intervals_end_where_numbers_do(tokenizer):
    """Two texts are so uncertain that shares near 0 or 1 would get bounds outside."""
    statistics = probed(planted.small_bert(), tokenizer, planted.make_texts(2, sentences=2)).statistics()
    touched = 0
    for one in statistics.statistics:
        low, high = (1, np.inf) if one.name == "distance" else (0, 1)
        known = one.interval[np.isfinite(one.interval)]
        assert (known >= low).all() and (known <= high).all()
        touched += int(((known == low) | (known == high)).sum())
    assert touched


def test_one_text_gives_no_interval(tokenizer):
    statistics = probed(planted.small_bert(), tokenizer, planted.make_texts(1)).statistics()
    each = statistics.get("within_sentence")
    assert each.texts == 1 and np.isnan(each.interval).all() and np.isfinite(each.values).all()
    assert "too narrow" in statistics.notes[-1]
