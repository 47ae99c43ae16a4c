"""N x N masks were silently ignored by linear attention elsewhere: here they are refused wherever they arrive."""

import pytest
import torch
from transformers import BertModel

from hf_attn_ext import integration as hax
from hf_attn_ext.errors import AttnExtError
from tests.integration import tiny


@pytest.mark.parametrize("layers", [None, [0], [1]])
def test_a_hand_made_mask_is_refused(layers):
    model = hax.convert(tiny.tiny_model(BertModel), tiny.KERNEL, layers=layers)
    batch = tiny.inputs(padded=False)
    for mask in (torch.ones(3, 1, 7, 7).tril().bool(), torch.zeros(3, 2, 7, 7)):
        with pytest.raises(AttnExtError, match="cannot honour"):
            model(input_ids=batch["input_ids"], attention_mask=mask)
