"""Wrong options and calls of the probe are one line, and numpy's numbers are numbers."""

import json

import numpy as np
import planted
import pytest

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.probe import ContextSimilarityProbe, sentence_starts

TEXTS = ["Word1 word2. Word3 word4."]


def one_line(message, call):
    with pytest.raises(AttnExtError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"percents": 5}, "percents must be a list"),
        ({"percents": ("1",)}, "percents must be numbers above 0"),
        ({"percents": "12"}, "percents must be a list"),
        ({"percents": (True,)}, "percents must be numbers"),
        ({"percents": (float("nan"),)}, "percents must be numbers"),
        ({"percents": ()}, "percents must be numbers"),
        ({"keep": 5}, "keep must be a list of strings"),
        ({"keep": (5,)}, "keep has 5"),
        ({"controls": None}, "controls must be a list"),
        ({"controls": ([],)}, r"controls has \[\]"),
        ({"separators": 5}, "separators must be a list of tokens"),
        ({"separators": (5,)}, "separators has 5"),
        ({"layers": 1.5}, "layers must be a list"),
        ({"layers": (1.0,)}, "no layer matches 1.0"),
        ({"layers": b"all"}, "layers must be a list"),
        ({"heads": "all"}, "heads must be a list"),
        ({"heads": 0.5}, "heads must be a list"),
        ({"heads": (0.0,)}, "no head 0.0"),
        ({"tokenizer": "bert"}, "tokenizer must be a PreTrainedTokenizerFast, got 'bert'.*AutoTokenizer"),
        ({"sample": "all"}, "sample must be a share"),
        ({"sample": float("nan")}, "sample must be a share"),
        ({"seed": 10**70}, "seed must be a whole number of at most"),
        ({"seed": 1.0}, "seed must be a whole number of at least 0"),
        ({"bootstrap": "64"}, "bootstrap must be a whole number"),
    ],
)
def test_wrong_options(options, message, tokenizer):
    one_line(message, lambda: ContextSimilarityProbe(planted.small_bert(), **{"tokenizer": tokenizer, **options}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"texts": None}, "texts must be a list of strings, got None"),
        ({"texts": 5}, "texts must be a list"),
        ({"max_length": "a"}, "max_length must be a whole number of at least 1, got 'a'"),
        ({"max_length": -1, "truncation": True}, "max_length"),
        ({"max_length": 1.5}, "max_length"),
        ({"max_length": 1, "truncation": True}, "text 0"),
        ({"language": 5}, "language must be a lower-case code.*got 5"),
        ({"language": "klingon"}, "language must be a lower-case code"),
        ({"language": ""}, "language must be a lower-case code"),
        ({"batch_size": 2.0}, "batch_size"),
    ],
)
def test_wrong_feeds(options, message, tokenizer):
    model = planted.small_bert().train()
    with ContextSimilarityProbe(model, tokenizer) as probe:
        one_line(message, lambda: probe.feed(**{"texts": TEXTS, **options}))
    assert model.training


def _negative(probe):
    state = probe.state_dict()
    return {**state, "counts": {**state["counts"], "texts": -1}}


def test_wrong_calls(tokenizer):
    model = planted.small_bert()
    probe = ContextSimilarityProbe(model, tokenizer)
    for other in (
        None,
        5,
        "a state",
        {},
        {"settings": 1},
        {**probe.state_dict(), "sums": {"a": "b"}},
        _negative(probe),
    ):
        one_line("expected a probe or its state_dict", lambda other=other: probe.merge(other))
    one_line("not entered", lambda: probe.__exit__(None, None, None))
    with probe:
        probe.feed(TEXTS)
    one_line("left already", lambda: probe.__exit__(None, None, None))
    one_line("keeps no matrices", probe.tokens)
    one_line("language must be a lower-case code", lambda: sentence_starts("One. Two.", "english"))


def test_numbers_of_numpy(tokenizer):
    options = {"layers": np.int64(1), "heads": np.arange(1), "percents": np.array([1, 2.5]), "seed": np.int32(3)}
    with ContextSimilarityProbe(planted.small_bert(), tokenizer, sample=np.float32(1), **options) as probe:
        probe.feed(np.array(TEXTS), np.int64(1), max_length=np.int64(20))
    statistics = probe.statistics()
    assert json.loads(statistics.to_json())["settings"]["percents"] == [1.0, 2.5]
    assert statistics.get("distance").layers == [1] and statistics.get("distance").heads == [0]
