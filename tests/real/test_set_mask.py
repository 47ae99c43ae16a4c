"""Masks in trained models: a model's own pattern, set as a mask, is the model, bit for bit."""

import pytest
import torch
from transformers import AutoModelForCausalLM

import hf_attn_ext as hax
from benchmarks.assets import ensure
from hf_attn_ext.inference import block_generate


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@torch.no_grad()
def test_minilm_with_the_bidirectional_mask_is_minilm(minilm, batch, implementation):
    minilm.set_attn_implementation(implementation)
    expected = minilm(**batch).logits
    hax.set_mask(minilm, "bidirectional", backend=implementation)
    assert torch.equal(minilm(**batch).logits, expected)
    hax.set_mask(minilm, "sliding_window", w=4, allow_leaks=True)
    assert not torch.allclose(minilm(**batch).logits, expected, atol=1e-3)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@torch.no_grad()
def test_a_gpt_with_the_causal_mask_is_that_gpt(implementation):
    model = AutoModelForCausalLM.from_pretrained(ensure("mgm"), attn_implementation=implementation)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(10, 9000, (3, 40), generator=generator)
    mask = (torch.arange(40) < torch.tensor([[40], [25], [7]])).long()
    expected = model(input_ids=ids, attention_mask=mask).logits
    written = model.generate(ids, max_new_tokens=8, do_sample=False)
    hax.set_mask(model, "causal", backend=implementation)
    assert torch.equal(model(input_ids=ids, attention_mask=mask).logits, expected)
    assert torch.equal(model.generate(ids, max_new_tokens=8, do_sample=False), written)
    hax.set_mask(model, "block_two_stream", block_size=4)
    blocks = block_generate(model, ids, mask, max_new_tokens=8, mask_token_id=1, eos_token_id=None)
    plain = block_generate(model, ids, mask, max_new_tokens=8, mask_token_id=1, eos_token_id=None, use_cache=False)
    assert torch.equal(blocks, plain)
