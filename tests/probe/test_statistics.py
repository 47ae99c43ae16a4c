"""Streamed statistics: equal to loops over pairs, whatever the batches; planted truths are found, noise is noise."""

import json

import naive
import numpy as np
import planted
import pytest
import torch
from streamed import probed, same, small_gpt, small_llama
from transformers import BertForMaskedLM

import hf_attn_ext as hax
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec
from hf_attn_ext.integration.base_models.readable_layers import capturable_layers
from hf_attn_ext.integration.capture.head_outputs import HeadOutputs
from hf_attn_ext.integration.capture.passes import ForwardPass
from hf_attn_ext.probe import ContextSimilarityProbe, ProbeStatistics, annotate, findings
from hf_attn_ext.probe.counting import attention_rows, high_pairs
from hf_attn_ext.probe.statistics.distance_overlap import overlap
from hf_attn_ext.probe.streaming.stream import Settings, Stream, fed

RELATIONS = ("within_sentence", "repeated_tokens", "signal")


@pytest.mark.parametrize("make", [planted.small_bert, small_gpt])
def test_statistics_are_those_of_the_loops(make, tokenizer, monkeypatch):
    statistics = naive.check_loops(make(), tokenizer, planted.make_texts(5), monkeypatch)
    assert np.allclose(statistics.get("noise").values, 1 - statistics.get("signal").values)


@pytest.mark.parametrize("make", [planted.small_bert, small_gpt])
def test_batches_padding_sides_and_processes_change_nothing(make, tokenizer):
    model = make().double()
    texts = planted.make_texts(6) + planted.make_texts(5, sentences=2, seed=1) + planted.make_texts(2, 1, 3, seed=2)
    whole = probed(model, tokenizer, texts, batch_size=13)
    for batch_size in (1, 4):
        other = probed(model, tokenizer, texts[::-1], batch_size)
        assert {**other.statistics().counts, "padding": 0} == {**whole.statistics().counts, "padding": 0}
        same(whole.statistics(), other.statistics())
    same(whole.statistics(), probed(model, planted.word_tokenizer(padding_side="left"), texts).statistics())
    parts = [probed(model, tokenizer, texts[rank::2], 3) for rank in range(2)]
    parts[0].merge(parts[1])
    assert parts[0].statistics().counts["texts"] == 13
    same(whole.statistics(), parts[0].statistics())
    restored = ContextSimilarityProbe(model, tokenizer, sample=1)
    restored.merge(whole.state_dict())
    same(whole.statistics(), restored.statistics())
    restored.gather()
    same(whole.statistics(), restored.statistics())


def test_single_precision_changes_no_count_and_hardly_a_sum(tokenizer):
    model, texts = planted.small_bert(), planted.make_texts(8)
    one, two = probed(model, tokenizer, texts, 1).statistics(), probed(model, tokenizer, texts, 8).statistics()
    assert {**one.counts, "padding": 0} == {**two.counts, "padding": 0}
    same(one, two, 1e-6)


def test_plain_passes_count_the_same_but_for_sentences(tokenizer):
    model, texts = planted.small_bert(), planted.make_texts(4)
    fed_ = probed(model, tokenizer, texts, 4).statistics()
    with ContextSimilarityProbe(model, tokenizer, sample=1) as probe:
        model(**tokenizer(texts, padding=True, return_tensors="pt"))
    plain = probe.statistics()
    assert "probe.feed" in plain.notes[0] and plain.counts["sentences"] == 0
    assert np.isnan(plain.get("within_sentence").values).all() and np.isnan(plain.get("signal").chance).all()
    for name in ("repeated_tokens", "distance", "top_token", "unique_tokens", "separator_focus"):
        assert np.allclose(plain.get(name).values, fed_.get(name).values, atol=1e-6)
    # a mixture: sentence statistics rest on the fed texts alone
    with probe:
        probe.feed(texts)
    mixed = probe.statistics()
    assert mixed.get("within_sentence").texts == 4 and mixed.get("distance").texts == 8
    assert np.allclose(mixed.get("signal").values, fed_.get("signal").values, atol=1e-6)


@pytest.mark.parametrize("make", [planted.small_bert, small_gpt, small_llama])
def test_padding_on_either_side_of_plain_passes_changes_nothing(make, tokenizer):
    """``feed`` pads on the right whatever the tokenizer says; a pass of one's own may be padded on the left."""
    model, found = make().double(), []
    texts = planted.make_texts(4) + planted.make_texts(4, sentences=2, seed=1)
    for side in ("left", "right"):
        inputs = tokenizer(texts, padding=True, padding_side=side, return_tensors="pt")
        assert (inputs["attention_mask"][:, 0] == 0).any() == (side == "left")
        inputs["position_ids"] = (inputs["attention_mask"].cumsum(-1) - 1).clamp(min=0)
        with ContextSimilarityProbe(model, tokenizer, sample=1) as probe, torch.no_grad():
            model(**inputs)
        found.append(probe.statistics())
    assert found[0].counts == found[1].counts
    same(*found)


@pytest.mark.parametrize("make", [planted.small_bert, small_llama])
def test_flex_attention_is_read_without_its_map_and_refused_with_it(make, tokenizer):
    model, texts = make(), planted.make_texts(3)
    expected = probed(model, tokenizer, texts, sample=0, controls=()).statistics()
    model.set_attn_implementation("flex_attention")
    same(expected, probed(model, tokenizer, texts, sample=0, controls=()).statistics(), 1e-6)
    with pytest.raises(AttnExtError, match="sample=0"):
        probed(model, tokenizer, texts)


def test_kept_matrices_cost_their_size(tokenizer):
    model, texts = planted.small_bert(), planted.make_texts(6)
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with ContextSimilarityProbe(model, tokenizer, keep="matrices") as probe, torch.no_grad():
        model(**inputs)
    count, length = inputs["input_ids"].shape
    held = {each.data_ptr(): each.untyped_storage().nbytes() for each in (probe.matrices(0), probe.matrices(1))}
    assert len(held) == 2 and sum(held.values()) == 2 * count * 2 * length**2 * 4
    assert probe.nbytes == 0


def test_separators_that_the_vocabulary_lacks_are_said_and_never_zero(tokenizer):
    texts, model = planted.make_texts(20), planted.small_bert()
    some = probed(model, tokenizer, texts, separators=[".", "§"]).statistics()
    assert some.notes == ['The tokenizer\'s vocabulary has no token "§", a separator: the others are taken.']
    assert (some.get("separator_focus").values > 0).all()
    for none in (["§", "¶"], []):
        lacking = probed(model, tokenizer, texts, separators=none).statistics()
        assert np.isnan(lacking.get("separator_focus").values).all() and len(lacking.notes) == bool(none)
        assert not any(finding.key == "separators_last" for finding in findings(lacking))
        assert np.isfinite(lacking.get("region").values).all()


def test_half_precision_is_said(tokenizer):
    texts = planted.make_texts(20)
    found = probed(planted.small_bert().bfloat16(), tokenizer, texts).statistics()
    assert "computed in bfloat16" in found.notes[0]
    assert not probed(planted.small_bert(), tokenizer, texts).statistics().notes


def test_overlap_is_one_where_distances_are_those_of_all_pairs():
    everywhere = np.array([[5.0, 3.0, 2.0]])
    found = overlap(np.array([[50.0, 30, 20], [1, 0, 0], [2, 3, 5], [0, 0, 0]]).T, everywhere.T)
    assert np.allclose(found, [1, 0.5, 0.7, np.nan], equal_nan=True)


def test_special_tokens_and_padding_are_counted_and_left_out(tokenizer):
    texts = ["Word1 word2 word3.", "Word1 word2 [MASK] word3 word4. Word5 word6."]
    counts = probed(planted.small_bert(), tokenizer, texts, 2).statistics().counts
    assert counts["texts"] == 2 and counts["tokens"] == 4 + 8 and counts["special"] == 4 + 1
    assert counts["padding"] == 5 and counts["sentences"] == 3 and counts["pairs"] == 6 + 28 and counts["words"] == 12


def test_nested_probes_and_a_broken_pass(tokenizer):
    model, texts = planted.small_bert(), planted.make_texts(3)
    with ContextSimilarityProbe(model, tokenizer) as outer, ContextSimilarityProbe(model, tokenizer, layers=1) as inner:
        outer.feed(texts)

        def fail(*_):
            raise RuntimeError("mine")

        handle = model.encoder.layer[1].register_forward_hook(fail)
        with pytest.raises(RuntimeError, match="mine"):
            inner.feed(texts)
        handle.remove()
    assert outer.statistics().counts["texts"] == inner.statistics().counts["texts"] == 3
    assert inner.statistics().counts["sentences"] == 12
    one, two = outer.statistics().get("within_sentence"), inner.statistics().get("within_sentence")
    assert two.layers == [1] and np.array_equal(one.values[1:], two.values)
    assert np.array_equal(one.interval[1:], two.interval)


def test_planted_heads_are_found(tokenizer):
    statistics = probed(planted.planted_bert(), tokenizer, planted.make_texts(40)).statistics()
    repeated = statistics.get("repeated_tokens", 1)
    assert repeated.values[0, 0] > 0.95 and repeated.excess_interval[0, 0, 0] > 0.8
    focus = statistics.get("separator_focus")
    assert focus.values[0, 2] > 0.99 and focus.excess_matched_interval[0, 2, 0] > 0.8
    assert abs(focus.values[0, 1] - focus.chance[0, 1]) < 1e-6
    # the head that averages gives equal outputs: all pairs tie, and a tie is chance
    for name in (*RELATIONS, "distance"):
        low, high = statistics.get(name, 5).excess_interval[0, 1]
        assert abs(low + high) < 2 * (high - low), name
    control = statistics.get("repeated_tokens", 1, "cosine")
    assert control.values[0, 0] > 0.95
    region = statistics.get("region", 1)
    # which of the equal pairs are taken differs, as attention is higher between rarer tokens
    assert region.excess_matched_interval[0, 0, 0] > 0.3 and region.chance[0, 0] < 0.02


def test_planted_sentences_are_found(tokenizer):
    statistics = probed(planted.planted_bert(), tokenizer, planted.sentence_texts(30)).statistics()
    within = statistics.get("within_sentence", 1)
    # the full stops, equal too, are all in different sentences
    assert within.values[0, 0] > 0.5 and within.excess_interval[0, 0, 0] > 0.25
    assert within.excess_matched_interval[0, 0, 0] > 0.05 and 0.15 < within.chance[0, 0] < 0.25


def test_shuffled_tokens_give_intervals_that_contain_chance(tokenizer):
    """The texts of the test before: sentences stay where they were, and what was planted in them is gone."""
    inside = []
    for seed in range(4):
        with ContextSimilarityProbe(planted.planted_bert(), tokenizer, sample=0, seed=seed) as probe:
            probe.feed(planted.sentence_texts(40), shuffle_tokens=True)
        for percent in (1, 2, 5):
            within = probe.statistics().get("within_sentence", percent)
            for bounds in (within.excess_interval[0, 0], within.excess_matched_interval[0, 0]):
                inside.append(bounds[0] <= 0 <= bounds[1])
                assert np.abs(bounds).max() < 0.15  # planted, it is above 0.25
    assert np.mean(inside) >= 0.75  # 24 of them, of four draws: they go together


def test_noise_gives_intervals_that_contain_chance(tokenizer):
    """Heads of random unit vectors on texts of random words: nothing is there to be found.

    Of unit length, as a long vector would be in many high pairs: more than pairs drawn at random.
    """
    torch.manual_seed(0)
    model = planted.small_bert(num_hidden_layers=1, num_attention_heads=8)
    layer = capturable_layers(model)[0]
    settings = Settings((0,), tuple(range(8)), (1, 2, 5), 64, 0.0, (), (".",), 0)
    probe = ContextSimilarityProbe(model, tokenizer, sample=0)
    probe._stream = stream = Stream(settings, {0, 2, 3}, None)
    for part in range(15):
        known = annotate(planted.make_texts(10, seed=part), tokenizer)
        fed(known)
        forward = ForwardPass(known.input_ids, known.attention_mask.bool())
        outputs = torch.nn.functional.normalize(torch.randn(10, 8, known.input_ids.shape[1], 64), dim=-1)
        stream.on_layer(HeadOutputs(layer, forward, outputs, outputs, outputs, None, 1.0, False))
        stream.on_end(forward)
    fed(None)
    inside, all_ = 0, 0
    for name in (*RELATIONS, "distance", "top_token", "unique_tokens"):
        for percent in (1, 2, 5):
            each = probe.statistics().get(name, percent)
            fields = ["excess_interval"] + ["excess_matched_interval"] * (name != "distance")
            for field in fields:
                bounds = getattr(each, field)
                inside += int(((bounds[..., 0] <= 0) & (bounds[..., 1] >= 0)).sum())
                all_ += bounds[..., 0].size
    assert inside / all_ > 0.9
    assert stream.sums.nbytes < 2**20


def test_inference_mode_and_then_none(tokenizer):
    model, texts = planted.small_bert(), planted.make_texts(3)
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with ContextSimilarityProbe(model, tokenizer, sample=1) as probe:
        with torch.inference_mode():
            model(**inputs)
        model(**inputs)
    assert probe.statistics().counts["texts"] == 6


def test_memory_is_independent_of_the_corpus(tokenizer):
    model = planted.small_bert()
    sizes = []
    with ContextSimilarityProbe(model, tokenizer, sample=1) as probe:
        for part in range(3):
            probe.feed(planted.make_texts(6, seed=part))
            sizes.append(probe._stream.sums.nbytes + probe._stream.plain.nbytes)
    assert sizes[0] == sizes[1] == sizes[2]


def test_results_as_json_rows_and_back(tokenizer, tmp_path):
    statistics = probed(planted.small_bert(), tokenizer, planted.make_texts(3)).statistics()
    path = tmp_path / "statistics.json"
    statistics.to_json(path)
    assert [p.name for p in tmp_path.iterdir()] == ["statistics.json"]
    back = ProbeStatistics.from_json(path)
    same(statistics, back, 1e-15)
    assert back.counts == statistics.counts and json.loads(path.read_text())["format"] == 1
    assert back.to_json() == statistics.to_json()
    rows = statistics.rows()
    assert {row["name"] for row in rows} == {each.name for each in statistics.statistics}
    assert sum(row["name"] == "within_sentence" for row in rows) == 2 * 2 * 3 * 3
    with pytest.raises(AttnExtError, match="Did you mean 'within_sentence'"):
        statistics.get("within_sentences")
    with pytest.raises(AttnExtError, match="percent 7"):
        statistics.get("within_sentence", 7)
    with pytest.raises(AttnExtError, match="cannot write"):
        statistics.to_json(tmp_path / "missing" / "statistics.json")
    for wrong in ("[]", "{", '{"format": 2}'):
        with pytest.raises(AttnExtError, match="no statistics of a probe"):
            ProbeStatistics.from_json(wrong)
    with pytest.raises(AttnExtError, match="cannot read"):
        ProbeStatistics.from_json(tmp_path / "other.json")


def test_long_texts_are_taken_in_parts(tokenizer, monkeypatch):
    model, texts = planted.small_bert().double(), planted.make_texts(3)
    whole = probed(model, tokenizer, texts)
    monkeypatch.setattr(high_pairs, "MATRIX_ENTRIES", 1)
    same(whole.statistics(), probed(model, tokenizer, texts).statistics())


def test_attention_under_a_mask_is_the_models_own(tokenizer):
    model, texts = planted.small_bert(), planted.make_texts(4)
    hax.set_mask(model, "causal")
    focus = probed(model, tokenizer, texts).statistics().get("separator_focus")
    known = annotate(texts, tokenizer)
    with torch.no_grad():
        given = {"input_ids": known.input_ids, "attention_mask": known.attention_mask}
        attentions = model(**given, output_attentions=True).attentions
    for layer, weights in enumerate(attentions):
        expected = naive.separator_focus(naive.loop_texts(known, weights.numpy(), True))
        assert len(expected) == 3
        for field, values in expected.items():
            assert np.allclose(getattr(focus, field)[layer], values, atol=1e-5)


@pytest.mark.parametrize("kernel", ["flexformer_s", "flexformer_n"])
def test_rows_whose_weights_cancel_are_left_out_and_named(kernel, tokenizer):
    model = hax.convert(BertForMaskedLM(planted.small_bert().config).eval(), kernel=kernel, num_features=4)
    statistics = probed(model, tokenizer, planted.make_texts(20)).statistics()
    note = next(note for note in statistics.notes if "signed kernels" in note)
    left_out, of, rows = note.split()[:3]
    assert of == "of" and 0 < int(left_out) < int(rows) == 4 * statistics.counts["tokens"]
    focus = statistics.get("separator_focus")
    for values in (focus.values, focus.chance, focus.chance_matched):
        assert np.abs(values).max() < 1 / attention_rows.LEAST_SUM


def test_rows_that_see_special_tokens_only_are_left_out(tokenizer):
    model, texts = planted.small_bert(), planted.make_texts(3, sentences=1, words=5)  # 8 tokens with the special ones
    mask = torch.ones(8, 8, dtype=torch.bool)
    mask[2, 1:7] = False
    hax.set_mask(model, MaskSpec.from_mask(mask))
    statistics = probed(model, tokenizer, texts).statistics()
    assert any(note.startswith(f"{3 * 4} of {18 * 4} rows") for note in statistics.notes)
    focus = statistics.get("separator_focus")
    assert np.isfinite(focus.values).all() and np.allclose(focus.chance, 1 / 6)


def test_gathering_twice_counts_nothing_twice(tokenizer, monkeypatch):
    probe = probed(planted.small_bert(), tokenizer, planted.make_texts(3))
    probe.gather()
    probe.gather()
    assert probe.statistics().counts["texts"] == 3
    monkeypatch.setattr("accelerate.utils.gather_object", lambda states: states * 2)
    with pytest.raises(AttnExtError, match="counted here already"):  # as where both merged one saved state before
        probe.gather()
    assert probe.statistics().counts["texts"] == 3
    other = {"origins": ["another process"]}
    monkeypatch.setattr("accelerate.utils.gather_object", lambda states: [*states, states[0] | other])
    probe.gather()
    assert probe.statistics().counts["texts"] == 6
    with pytest.raises(AttnExtError, match="gather was called before"):
        probe.gather()
    assert probe.statistics().counts["texts"] == 6
