"""Padded keys zeroed as keys, not as features: cos(0) = 1 kept them in the normaliser, outputs off by 73% elsewhere."""

import pytest
import torch
from transformers import BertModel

from hf_attn_ext import integration as hax
from tests.integration import tiny


@pytest.mark.parametrize("kernel", ["flexformer_s", "flexformer_n", "flexformer_p", "flexformer_sq", "hedgehog"])
def test_more_padding_changes_nothing(kernel):
    model = hax.convert(tiny.tiny_model(BertModel).double(), kernel=kernel, num_features=4)
    ids = tiny.inputs(batch=2, length=5, padded=False)["input_ids"]
    expected = model(input_ids=ids).last_hidden_state
    for extra in (1, 7, 30):
        padded = torch.nn.functional.pad(ids, (0, extra))
        mask = torch.nn.functional.pad(torch.ones_like(ids), (0, extra))
        found = model(input_ids=padded, attention_mask=mask).last_hidden_state[:, :5]
        assert (found - expected).abs().max() <= 1e-10
