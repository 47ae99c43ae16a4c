"""Attention sinks and soft caps: computed as the family does, or refused; never left out unseen."""

import warnings

import pytest
import torch
from torch import nn
from transformers import Gemma2Config, Gemma2ForCausalLM, GptOssConfig, GptOssForCausalLM

import hf_attn_ext as hax
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.masking.attention_function import eager_attention
from hf_attn_ext.integration.masking.entries import FIELD
from hf_attn_ext.integration.softmax import softmax_attention

SIZES = {
    "vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 8, "intermediate_size": 16, "initializer_range": 0.3, "pad_token_id": 0, "sliding_window": 4,
    "layer_types": ["full_attention", "sliding_attention"],
}  # fmt: skip
IDS = torch.tensor([[5, 9, 7, 30, 12, 8, 6]])


FULL = {"layer_types": ["full_attention"] * 2}


def sinks(**changes):
    torch.manual_seed(0)
    sizes = {**SIZES, "num_local_experts": 2, "num_experts_per_tok": 1, **changes}
    return GptOssForCausalLM(GptOssConfig(**sizes)).eval()


def soft_cap(**changes):
    torch.manual_seed(0)
    sizes = {**SIZES, "attn_logit_softcapping": 0.5, "query_pre_attn_scalar": 8, **changes}
    return Gemma2ForCausalLM(Gemma2Config(**sizes)).eval()


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("make", [sinks, soft_cap])
@torch.no_grad()
def test_the_family_s_own_attention_or_none(make):
    model = make()
    expected = model(IDS, use_cache=False).logits
    hax.set_mask(model, per_layer={0: "causal"}, backend="eager")
    torch.testing.assert_close(model(IDS, use_cache=False).logits, expected)
    with pytest.raises(AttnExtError, match=r"without sdpa.*backend='eager'"):
        hax.set_mask(model, per_layer={0: "causal"})
    assert getattr(model.config, FIELD)["backend"] == "eager"
    hax.set_mask(model, per_layer={0: "causal"}, backend="flex")
    with pytest.raises(AttnExtError, match=r"passes '(s_aux|softcap)'.*backend='eager'"):
        model(IDS, use_cache=False)
    # a configuration from elsewhere: layers with a mask, and layers without
    for layers in ([0, None], [None, 0]):
        setattr(model.config, FIELD, {**getattr(model.config, FIELD), "backend": "sdpa", "layers": layers})
        with pytest.raises(AttnExtError, match=r"passes '(s_aux|softcap)'.*backend='eager'"):
            model(IDS, use_cache=False)


@pytest.mark.parametrize("make", [sinks, soft_cap])
@torch.no_grad()
def test_softmax_layers_of_a_converted_model(make):
    model = hax.convert(make(**FULL), kernel="elu", layers=[1])
    reached = []
    model.model.layers[1].register_forward_pre_hook(lambda *given: reached.append(given))
    with pytest.raises(AttnExtError, match=r"passes '(s_aux|softcap)'"):
        model(IDS, use_cache=False)
    assert not reached  # it is the softmax layer that refuses


@pytest.mark.parametrize("name", ["s_aux", "softcap", "position_bias"])
def test_plain_computations_take_none(name):
    module, x, given = nn.Module(), torch.randn(1, 2, 3, 4), {name: torch.ones(1, 2, 3, 3)}
    with pytest.raises(AttnExtError, match=f"Module passes '{name}'"):
        eager_attention(module, x, x, x, None, None, 0.0, given)
    with pytest.raises(AttnExtError, match=f"Module passes '{name}'"):
        softmax_attention(module, x, x, x, None, need_weights=True, **given)
