"""What a probe of statistics refuses, each in one line: texts, uses, states that do not belong together."""

import json

import planted
import pytest
import torch
from streamed import probed, same
from transformers import BertForMaskedLM

import hf_attn_ext as hax
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.probe import ContextSimilarityProbe


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ([], {}, "the list is empty"),
        ("one string", {}, "got one string"),
        (["Word1 word2.", "  "], {}, "text 1 is blank"),
        (["Word1.", 3], {}, "text 1 must be a string, got 3"),
        (["Word1 word2."] * 5 + ["word1 " * 70], {}, "text 5 has 72 tokens, the model takes 64.*truncation=True"),
        (["Word1 word2."], {"batch_size": 0}, "batch_size"),
    ],
)
def test_wrong_texts_are_one_line(texts, options, message, tokenizer):
    model = planted.small_bert().train()
    with ContextSimilarityProbe(model, tokenizer) as probe, pytest.raises(AttnExtError, match=message) as caught:
        probe.feed(texts, **options)
    assert "\n" not in str(caught.value) and model.training and model.encoder.training


def test_wrong_uses_are_one_line(tokenizer):
    model, texts = planted.small_bert(), planted.make_texts(2)
    probe = ContextSimilarityProbe(model, tokenizer)
    with pytest.raises(AttnExtError, match="inside the block"):
        probe.feed(texts)
    with pytest.raises(AttnExtError, match="no forward pass"):
        probe.statistics()
    with pytest.raises(AttnExtError, match="keeps no matrices"):
        probe.matrices(0)
    with probe, pytest.raises(AttnExtError, match="entered already"):
        probe.__enter__()
    with probe:
        probe.feed(["word1"])
        with pytest.raises(AttnExtError, match="1 texts, each of one token"):
            probe.statistics()
        with pytest.raises(AttnExtError, match="embeddings"):
            model(inputs_embeds=torch.zeros(1, 4, 16))
    with (
        pytest.warns(UserWarning, match="without a tokenizer"),
        ContextSimilarityProbe(model) as bare,
        pytest.raises(AttnExtError, match="needs the model's tokenizer"),
    ):
        bare.feed(texts)
    with ContextSimilarityProbe(model, tokenizer, keep="matrices") as matrices:
        matrices.feed(texts)
    with pytest.raises(AttnExtError, match="keeps no statistics"):
        matrices.statistics()
    with pytest.raises(AttnExtError, match="differ in seed: 0 here, 1 there"):
        probe.merge(ContextSimilarityProbe(model, tokenizer, seed=1))
    with pytest.raises(AttnExtError, match="expected a probe or its state_dict"):
        probe.merge({"settings": {}})


def test_nothing_is_counted_twice(tokenizer):
    model, texts = planted.small_bert(), planted.make_texts(4)
    probe, other = probed(model, tokenizer, texts[:2]), probed(model, tokenizer, texts[2:])
    early, whole = probe.state_dict(), probed(model, tokenizer, texts)
    probe.merge(other)
    same(probe.statistics(), whole.statistics())
    for again in (probe, probe.state_dict(), early, other, other.state_dict()):
        with pytest.raises(AttnExtError, match="counted here already"):
            probe.merge(again)
    restored = ContextSimilarityProbe(model, tokenizer, sample=1)
    restored.merge(early)
    with pytest.raises(AttnExtError, match="counted here already"):
        restored.merge(probe)  # which holds the early state's texts
    assert probe.statistics().counts["texts"] == 4 and restored.statistics().counts["texts"] == 2


def test_statistics_of_another_model_do_not_merge(tokenizer):
    texts = planted.make_texts(2)
    probe = probed(planted.small_bert(), tokenizer, texts)
    trained = planted.small_bert()
    with torch.no_grad():
        trained.encoder.layer[0].attention.self.query.weight += 1e-3
    eager = planted.small_bert()
    eager.set_attn_implementation("eager")
    converted = hax.convert(planted.small_bert())
    for model, what in ((trained, "weights"), (eager, "configuration"), (converted, "weights")):
        other = probed(model, tokenizer, texts)
        for state in (other, other.state_dict()):
            with pytest.raises(AttnExtError, match=f"of another model, of other {what}"):
                probe.merge(state)
    probe.merge(probed(planted.small_bert(), tokenizer, texts))  # the same model, made anew
    assert probe.statistics().counts["texts"] == 4


def test_a_model_that_was_changed_in_place_is_another(tokenizer):
    model, texts = planted.small_bert(), planted.make_texts(4)
    before = probed(model, tokenizer, texts[:2])
    state = before.state_dict()
    hax.convert(model, num_features=4)
    after = probed(model, tokenizer, texts[2:])
    for other in (after, after.state_dict()):
        with pytest.raises(AttnExtError, match="of another model, of other weights"):
            before.merge(other)
    with pytest.raises(AttnExtError, match=r"other weights than when|other configuration than when"), before:
        pass
    hax.revert(model)
    model.set_attn_implementation("eager")  # what was taken before is still of the model of before
    again = ContextSimilarityProbe(planted.small_bert(), tokenizer, sample=1)
    again.merge(state)
    again.merge(probed(planted.small_bert(), tokenizer, texts[2:]))
    assert again.statistics().counts["texts"] == 4


def test_what_is_no_part_of_the_layers_makes_no_other_model(tokenizer):
    """A new pooler, a head, its labels, and rotary frequencies that a long text switched."""
    texts = planted.make_texts(2)
    probe = probed(planted.small_bert(), tokenizer, texts)
    other = planted.small_bert()
    other.pooler = torch.nn.Linear(16, 16)
    other.config.id2label = {0: "a", 1: "b"}
    other.register_buffer("rotary_inv_freq", torch.ones(2), persistent=False)
    probe.merge(probed(other, tokenizer, texts))
    headed = BertForMaskedLM(planted.small_bert().config)
    headed.bert = planted.small_bert()
    probe.merge(probed(headed, tokenizer, texts))
    assert probe.statistics().counts["texts"] == 6


def test_probes_that_were_fed_otherwise_do_not_merge(tokenizer):
    model, texts = planted.small_bert(), planted.make_texts(3)
    options = {"bootstrap": 2, "controls": ("cosine",)}
    by_projection = options | {"projections": "*.layer.[01].attention.output.dense"}

    def fed_with(settings, **how):
        with ContextSimilarityProbe(model, tokenizer, **settings) as probe:
            probe.feed(texts, **how)
        return probe

    for settings, how, said in (
        (options, {"shuffle_tokens": True}, "differ in shuffle_tokens: False here, True there"),
        (options, {"boundaries": ["."]}, r"differ in segments: 'sentences' here, \('.',\) there"),
        (by_projection, {}, "differ in projected: False here, True there"),
    ):
        probe, other = fed_with(options), fed_with(settings, **how)
        for state in (other, other.state_dict(), json.loads(json.dumps(other.state_dict()["settings"]))):
            state = (
                state if not isinstance(state, dict) or "sums" in state else other.state_dict() | {"settings": state}
            )
            with pytest.raises(AttnExtError, match=said):
                probe.merge(state)
        assert probe.statistics().counts["texts"] == 3
    with ContextSimilarityProbe(model, tokenizer, **options) as probe:
        probe.merge(fed_with(options, shuffle_tokens=True))  # it was fed nothing yet
        assert probe.statistics().settings["shuffle_tokens"] is True
        with pytest.raises(AttnExtError, match="fed texts with shuffle_tokens True before, now with False"):
            probe.feed(texts)


def test_a_tokenizer_of_another_model_is_one_line(tokenizer):
    model = planted.small_bert()
    model.resize_token_embeddings(20)
    with ContextSimilarityProbe(model, tokenizer) as probe, pytest.raises(AttnExtError, match="model knows 0 to 19"):
        probe.feed(planted.make_texts(2))


def test_truncation_and_the_longest_text(tokenizer):
    model = planted.small_bert()
    with ContextSimilarityProbe(model, tokenizer) as probe:
        probe.feed(["word1 word2 " * 70], truncation=True)
        assert probe.statistics().counts["tokens"] == 62
        probe.feed(["word1 word2 " * 70], truncation=True, max_length=12)
        assert probe.statistics().counts["tokens"] == 72
        with pytest.raises(AttnExtError, match="12"):
            probe.feed(["word1 word2 " * 10], max_length=12)
