"""Elsewhere the padding mask was skipped for a batch of one, and results depended on the batch size."""

import torch
from transformers import BertModel

from hf_attn_ext import integration as hax
from tests.integration import tiny


def test_a_padded_row_gives_the_same_alone_and_in_a_batch():
    model = hax.convert(tiny.tiny_model(BertModel), tiny.KERNEL)
    batch = tiny.inputs(batch=3)
    together = model(**batch).last_hidden_state
    for row in range(3):
        real = batch["attention_mask"][row].bool()
        alone = model(**{name: x[row : row + 1] for name, x in batch.items()}).last_hidden_state[0]
        bare = model(input_ids=batch["input_ids"][row : row + 1, real]).last_hidden_state[0]
        assert torch.allclose(alone[real], together[row, real], atol=1e-6)
        assert torch.allclose(bare, together[row, real], atol=1e-6)


def test_an_all_ones_mask_equals_no_mask():
    model = hax.convert(tiny.tiny_model(BertModel), tiny.KERNEL)
    batch = tiny.inputs(padded=False)
    assert torch.equal(model(**batch).last_hidden_state, model(input_ids=batch["input_ids"]).last_hidden_state)
