"""A mask token for vocabularies without one: a mean row, once, saved with both."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2LMHeadModel,
    GPTNeoXForCausalLM,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    RobertaForMaskedLM,
)

import hf_attn_ext as hax
from hf_attn_ext.errors import AttnExtError
from tests.integration import tiny


def words(count, **special):
    vocabulary = {
        text: i for i, text in enumerate([*(f"w{i}" for i in range(count - len(special))), *special.values()])
    }
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0", **special)


@pytest.mark.parametrize("cls", [GPT2LMHeadModel, GPTNeoXForCausalLM, LlamaForCausalLM])
@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize("count", [40, 30], ids=["full", "padded"])
@torch.no_grad()
def test_the_new_row_is_the_mean_and_nothing_else_changes(cls, converted, count, tmp_path):
    model, tokenizer = tiny.tiny_model(cls), words(count)
    model = hax.convert(model, tiny.KERNEL) if converted else model
    batch = tiny.inputs()
    batch["input_ids"] %= count
    before, rows = model(**batch).logits, model.get_input_embeddings().weight.clone()
    assert hax.add_mask_token(model, tokenizer) is model
    assert tokenizer.mask_token_id == model.config.mask_token_id == count
    after = model.get_input_embeddings().weight
    assert len(after) == max(40, count + 1) and torch.equal(after[:count], rows[:count])
    torch.testing.assert_close(after[count], rows[:count].mean(0))
    head = model.get_output_embeddings().weight
    torch.testing.assert_close(head[count], head[:count].mean(0))
    assert torch.equal(model(**batch).logits[..., :count], before[..., :count])
    state = {name: x.clone() for name, x in model.state_dict().items()}
    hax.add_mask_token(model, tokenizer)
    assert all(torch.equal(x, state[name]) for name, x in model.state_dict().items()) and len(tokenizer) == count + 1
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    opened, read = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert read.mask_token_id == opened.config.mask_token_id == count
    assert torch.equal(opened(**batch).logits, model(**batch).logits)
    hax.add_mask_token(opened, read)
    assert torch.equal(opened(**batch).logits, model(**batch).logits)


@torch.no_grad()
def test_a_vocabulary_that_has_one_is_left_alone():
    model, tokenizer = tiny.tiny_model(RobertaForMaskedLM), words(40, mask_token="[MASK]")
    before = {name: x.clone() for name, x in model.state_dict().items()}
    hax.add_mask_token(model, tokenizer)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert tokenizer.mask_token == "[MASK]" and model.config.mask_token_id == tokenizer.mask_token_id


@torch.no_grad()
def test_a_stock_model_beside_a_tokenizer_that_has_it_already():
    model, tokenizer = tiny.tiny_model(GPT2LMHeadModel), words(40)
    hax.add_mask_token(tiny.tiny_model(GPT2LMHeadModel), tokenizer)
    hax.add_mask_token(model, tokenizer)
    weight = model.get_input_embeddings().weight
    torch.testing.assert_close(weight[40], weight[:40].mean(0))


def test_mistakes():
    with pytest.raises(AttnExtError, match="'w3' is in the vocabulary already"):
        hax.add_mask_token(tiny.tiny_model(GPT2LMHeadModel), words(40), token="w3")
    with pytest.raises(AttnExtError, match="model must be a Transformers model, got str"):
        hax.add_mask_token("gpt2", words(40))
    for wrong in (None, "gpt2", 5):
        with pytest.raises(AttnExtError, match="tokenizer must be a Transformers tokenizer, got"):
            hax.add_mask_token(tiny.tiny_model(GPT2LMHeadModel), wrong)
    for wrong in (None, "", 5):
        with pytest.raises(AttnExtError, match="token must be a string, got"):
            hax.add_mask_token(tiny.tiny_model(GPT2LMHeadModel), words(40), token=wrong)
