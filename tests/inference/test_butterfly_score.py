"""Every token's probability from both sides in one pass: against the cloze tasks, one at a time."""

import pytest
import torch
from transformers import BertForMaskedLM, GPT2LMHeadModel, RobertaForMaskedLM

import hf_attn_ext as hax
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import MaskSpec
from hf_attn_ext.hasse.masks.butterfly import cloze
from hf_attn_ext.inference import butterfly_score
from tests.inference.families import DECODERS, MODELS
from tests.integration import tiny


def one_at_a_time(cls, ids, first):
    """log p(token k | the others) by n cloze tasks: a chain before, a chain after, a prediction above both."""
    n, found = len(ids), []
    for k, task in enumerate(cloze(n).tasks):
        model = tiny.tiny_model(cls).double()
        spec = MaskSpec.from_mask(task.mask)
        hax.set_mask(model, spec, allow_leaks=True)
        rows = model.get_input_embeddings()(torch.tensor(ids))
        order = [*range(k), *range(n - 1, k, -1)]
        near = [rows[i] for i in (k - 1, k + 1) if 0 <= i < n]
        inputs = torch.stack([*(rows[i] for i in order), torch.stack(near).mean(0)])[None]
        positions = torch.tensor([[*order, k]]) + first
        uncached = {"use_cache": False} if cls in DECODERS else {}
        ones = torch.ones(1, n, dtype=torch.long)
        logits = model(inputs_embeds=inputs, position_ids=positions, attention_mask=ones, **uncached).logits
        found.append(logits[0, -1].log_softmax(-1)[ids[k]])
    return torch.stack(found)


@pytest.mark.parametrize("cls", MODELS)
@torch.no_grad()
def test_one_pass_is_n_cloze_tasks(cls):
    model = hax.set_mask(tiny.tiny_model(cls).double(), "butterfly")
    ids = torch.tensor([[5, 9, 7, 30, 12, 8], [6, 20, 11, 0, 0, 0]])
    real = (ids > 0).long()
    found = butterfly_score(model, ids, real)
    first = 1 if "Roberta" in cls.__name__ else 0
    expected = one_at_a_time(cls, ids[0].tolist(), first)
    torch.testing.assert_close(found[0], expected, rtol=1e-9, atol=1e-9)
    expected = one_at_a_time(cls, ids[1, :3].tolist(), first)
    torch.testing.assert_close(found[1, :3], expected, rtol=1e-9, atol=1e-9)
    assert found[1, 3:].isnan().all()


@torch.no_grad()
def test_left_padding_and_a_text_of_one_token():
    model = hax.set_mask(tiny.tiny_model(GPT2LMHeadModel).double(), "butterfly")
    ids = torch.tensor([[5, 9, 7], [6, 20, 0], [8, 0, 0]])
    real = (ids > 0).long()
    right = butterfly_score(model, ids, real)
    left = butterfly_score(model, torch.tensor([[5, 9, 7], [0, 6, 20], [0, 0, 8]]), real.flip(1))
    assert torch.equal(left[1, 1:], right[1, :2]) and torch.equal(left[0], right[0])
    assert left[2].isnan().all() and right[2].isnan().all() and left[1, 0].isnan()
    assert butterfly_score(model, torch.tensor([[8]])).isnan().all()
    half = butterfly_score(tiny_half(), ids, real)
    assert half.dtype == torch.float32 and half[0].isfinite().all()


def tiny_half():
    return hax.set_mask(tiny.tiny_model(BertForMaskedLM).to(torch.bfloat16), "butterfly", window=2)


@pytest.mark.parametrize(
    ("mask", "ids", "words"),
    [
        (None, [[5, 6]], "needs the same mask 'butterfly'"),
        ("causal", [[5, 6]], "needs the same mask 'butterfly'"),
        ("butterfly", [5, 6], r"whole numbers \(batch, tokens\), got \(2,\)"),
        ("butterfly", [[5] * 40], "has 40 tokens, but RobertaForMaskedLM has 39 positions"),
    ],
)
def test_mistakes_are_one_line(mask, ids, words):
    model = hax.set_mask(tiny.tiny_model(RobertaForMaskedLM), mask)
    with pytest.raises(AttnExtError, match=words) as error:
        butterfly_score(model, torch.tensor(ids))
    assert "\n" not in str(error.value)
