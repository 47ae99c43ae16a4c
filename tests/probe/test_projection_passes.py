"""Passes of models outside the interface that would be read wrongly, and are refused."""

import planted
import pytest
import torch
from own_models import HomeMade, batch
from torch import nn

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.capture.passes import running_calls
from hf_attn_ext.probe import ContextSimilarityProbe

MATRICES = {"keep": ("matrices",)}


class Transposed(HomeMade):
    """Tokens first."""

    def forward(self, input_ids, attention_mask=None):
        x = self.words(input_ids.T)
        return self.blocks[0]["mixer"](x, torch.ones(1, dtype=torch.bool)).transpose(0, 1)


def test_as_many_texts_as_tokens_are_told_apart_by_a_pass_before(tokenizer):
    where = {"projections": "blocks.0.*.back", "num_heads": 3}
    square = torch.randint(5, 30, (4, 4))
    for make in HomeMade, Transposed:
        with ContextSimilarityProbe(make(), tokenizer, **where) as probe:
            with pytest.raises(AttnExtError, match="got 4 texts of 4 tokens: the batch axis cannot be identified"):
                probe.model(square)
            if make is HomeMade:
                probe.model(square[:1, :1])  # says nothing
                with pytest.raises(AttnExtError, match="the batch axis cannot be identified"):
                    probe.model(square)
                probe.model(square[:3])
                probe.model(square)
                assert probe.statistics().counts["texts"] == 7
    texts = planted.make_texts(12, sentences=1, words=3)  # six tokens each
    tables = []
    for size, options in (6, {}), (4, {}), (6, {"pad_to": 6}), (8, {"pad_to": 8}):
        seen = []
        model = HomeMade().double()
        model.load_state_dict(tables[0][1] if tables else model.state_dict())
        model.register_forward_pre_hook(
            lambda m, a, k, seen=seen: seen.append((*k["input_ids"].shape,)), with_kwargs=True
        )
        with ContextSimilarityProbe(model, tokenizer, sample=1, bootstrap=4, **where) as probe:
            assert probe.feed(texts, size, **options) == 12
        tables.append((probe.statistics(), model.state_dict(), seen))
    assert [each[2] for each in tables] == [[(6, 7), (6, 6)], [(4, 6)] * 3, [(6, 7)] * 2, [(8, 9), (4, 9)]]
    for table, *_ in tables[1:]:
        for one in table.statistics:
            other = tables[0][0].get(one.name, one.percent, one.measure).values
            assert torch.allclose(torch.tensor(one.values), torch.tensor(other), atol=1e-12, equal_nan=True)


class Cached(HomeMade):
    def forward(self, input_ids, attention_mask=None, past_key_values=None, mems=None):
        return super().forward(input_ids, attention_mask)


KEYS = torch.zeros(3, 3, 7, 4)


@pytest.mark.parametrize("cache", [((KEYS, KEYS),) * 2, [[KEYS, KEYS]], {"key": KEYS}, KEYS, [None, (KEYS, KEYS)]])
@pytest.mark.parametrize("name", ["past_key_values", "mems"])
def test_a_cache_of_any_form_is_refused(name, cache, tokenizer):
    with ContextSimilarityProbe(Cached(), tokenizer, projections="*.back", num_heads=3) as probe:
        with pytest.raises(AttnExtError, match=f"continues a cache of 7 tokens .{name}."):
            probe.model(**batch(), **{name: cache})
        for empty in None, (), [], [None, None], {}, [(KEYS[:, :, :0],) * 2]:
            probe.model(**batch(), **{name: empty})
    assert probe.statistics().counts["texts"] == 18


class Widths(nn.Module):
    """Projections that do not say their width, of two widths."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(len(planted.VOCABULARY), 12)
        self.blocks = nn.ModuleList(nn.ModuleDict({"back": Plain(width)}) for width in (12, 24))

    def forward(self, input_ids):
        x = self.blocks[0]["back"](self.words(input_ids))
        return self.blocks[1]["back"](torch.cat([x, x], -1))


class Plain(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, 12))

    def forward(self, x):
        return x @ self.weight


def test_widths_are_compared_in_the_pass():
    with (
        ContextSimilarityProbe(Widths(), projections="*.back", num_heads=3, **MATRICES) as probe,
        pytest.raises(AttnExtError, match=r"blocks.1.back got 24 numbers a token and layer 0 12"),
    ):
        probe.model(batch()["input_ids"])
    assert not running_calls()


@pytest.mark.parametrize("how", [lambda m: (1 - m.float()) * -1e9, lambda m: m * 2, lambda m: m * 0.0])
def test_a_mask_of_other_values_is_refused(how, tokenizer):
    """Additive ones, 0 for tokens, would be read the wrong way round."""
    inputs = batch()
    for model, options in (HomeMade(), {"projections": "*.back", "num_heads": 3}), (planted.small_bert(), {}):
        with ContextSimilarityProbe(model, tokenizer, bootstrap=4, **options) as probe:
            with pytest.raises(AttnExtError, match=r"attention_mask (has|is) .* 0 for padding"):
                model(inputs["input_ids"], attention_mask=how(inputs["attention_mask"]))
            for kind in torch.long, torch.bool, torch.float64:
                model(inputs["input_ids"], attention_mask=inputs["attention_mask"].to(kind))
        counts = probe.statistics().counts
        assert counts["texts"] == 9 and counts["padding"] == 9 and counts["tokens"] == 72


def test_a_table_of_positions_of_ones_own_that_is_too_short(tokenizer):
    class Placed(HomeMade):
        def __init__(self):
            super().__init__()
            self.places = nn.Embedding(16, 12)

        def forward(self, input_ids, attention_mask=None):
            self.places(torch.arange(input_ids.shape[1]))
            return super().forward(input_ids, attention_mask)

    with ContextSimilarityProbe(Placed(), tokenizer, projections="*.back", num_heads=3) as probe:
        short, long = planted.make_texts(2, sentences=1, words=4), planted.make_texts(2)
        for texts, options in (short, {"pad_to": 64}), (long, {}):
            with pytest.raises(AttnExtError, match=r"Placed failed over .*a text.*smaller pad_to, or max_len"):
                probe.feed(texts, **options)
        probe.feed(short, pad_to=16)
        probe.feed(long, max_length=16, truncation=True)
    assert probe.statistics().counts["texts"] == 4
