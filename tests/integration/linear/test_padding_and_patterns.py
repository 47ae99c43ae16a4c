"""Padding is exact, and every mask that a linear kernel cannot honour is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    BertConfig,
    BertModel,
    DistilBertModel,
    ElectraModel,
    ModernBertConfig,
    ModernBertModel,
    RobertaModel,
    XLMRobertaModel,
)
from transformers.models.bert.modeling_bert import BertCrossAttention

from hf_attn_ext import integration as hax
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.linear.attention_function import flexformer_attention, padding_mask
from tests.integration import tiny

BASES = [BertModel, RobertaModel, XLMRobertaModel, DistilBertModel, ElectraModel]
KERNELS = ["flexformer_s", "flexformer_n", "flexformer_p", "flexformer_sq", "hedgehog", "performer", "uniform"]


def run(model, embeddings, keep, positions):
    """Hidden states of a run in which ``keep`` says which of the rows' tokens are real."""
    extra = {"position_ids": positions} if positions is not None else {}
    return model(inputs_embeds=embeddings, attention_mask=keep, **extra).last_hidden_state


def padded_against_alone(model, embeddings, keep):
    """Largest difference on real tokens between a padded batch and each row run alone without padding."""
    model_positions = torch.arange(embeddings.shape[1]).expand(embeddings.shape[:2]) + 2
    together = run(model, embeddings, keep.long(), model_positions)
    worst = 0.0
    for row, real in enumerate(keep):
        alone = run(model, embeddings[row : row + 1, real], None, model_positions[row : row + 1, real])
        worst = max(worst, (alone[0] - together[row, real]).abs().max().item())
    return worst, together


@pytest.mark.parametrize("cls", BASES)
@pytest.mark.parametrize("layers", [None, [1]], ids=["all", "hybrid"])
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 1e-4)], ids=["float64", "float32"]
)
def test_padded_runs_equal_unpadded_runs(cls, layers, dtype, bound):
    model = hax.convert(tiny.tiny_model(cls).to(dtype), tiny.KERNEL, layers=layers)
    width = model.get_input_embeddings().weight.shape[1]
    embeddings = torch.randn(4, 9, width, dtype=dtype, generator=torch.Generator().manual_seed(0))
    keep = torch.ones(4, 9, dtype=torch.bool)
    keep[1, 6:] = False  # right
    keep[2, :4] = False  # left
    keep[3, [0, 3, 4, 8]] = False  # inside and around
    worst, together = padded_against_alone(model, embeddings, keep)
    assert worst <= bound
    for row in range(4):
        single, _ = padded_against_alone(model, embeddings[row : row + 1], keep[row : row + 1])
        assert single <= bound
        one = run(model, embeddings[row : row + 1], keep[row : row + 1].long(), torch.arange(9)[None] + 2)
        assert (one[0, keep[row]] - together[row, keep[row]]).abs().max() <= bound


@settings(max_examples=15, deadline=None)
@given(data=st.data(), kernel=st.sampled_from(KERNELS), left_right_inside=st.integers(0, 2))
def test_any_padding_pattern_leaves_real_tokens_alone(data, kernel, left_right_inside):
    model = hax.convert(tiny.tiny_model(RobertaModel).double(), kernel=kernel, num_features=3)
    rows, length = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 8))
    keep = torch.ones(rows, length, dtype=torch.bool)
    for row in range(rows):
        count = data.draw(st.integers(0, length - 1))
        if left_right_inside == 0:
            keep[row, :count] = False
        elif left_right_inside == 1:
            keep[row, length - count :] = False
        else:
            keep[row, data.draw(st.permutations(range(length)))[:count]] = False
    embeddings = torch.randn(rows, length, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(length))
    worst, _ = padded_against_alone(model, embeddings, keep)
    assert worst <= 1e-10


@pytest.mark.parametrize("layers", [None, [0]], ids=["all", "hybrid"])
def test_masked_inputs_get_exactly_zero_gradient(layers):
    model = hax.convert(tiny.tiny_model(BertModel), tiny.KERNEL, layers=layers)
    keep = torch.tensor([[1, 1, 1, 0, 0], [0, 1, 0, 1, 1]])
    embeddings = torch.randn(2, 5, 16, requires_grad=True)
    hidden = run(model, embeddings, keep, None)
    (hidden * keep[..., None] * torch.randn(2, 5, 16)).sum().backward()
    assert embeddings.grad[keep == 0].abs().max() == 0
    assert (embeddings.grad[keep == 1].abs().amax(-1) > 0).all()


def test_what_padding_tokens_hold_does_not_matter(model):
    hax.convert(model, tiny.KERNEL)
    batch = tiny.inputs()
    other = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, 17)
    positions = torch.arange(7)[None].expand(3, 7) + 2
    real = batch["attention_mask"].bool()
    first = model(**batch, position_ids=positions).logits
    second = model(input_ids=other, attention_mask=batch["attention_mask"], position_ids=positions).logits
    assert torch.equal(first[real], second[real])


def test_hybrid_softmax_layer_is_the_stock_layer():
    stock = tiny.tiny_model(BertModel)
    batch = tiny.inputs()
    expected = stock(**batch, output_hidden_states=True).hidden_states
    hybrid = hax.convert(stock, tiny.KERNEL, layers=[1])
    found = hybrid(**batch, output_hidden_states=True).hidden_states
    real = batch["attention_mask"].bool()
    assert (found[1] - expected[1])[real].abs().max() < 1e-6
    assert (found[2] - expected[2])[real].abs().max() > 1e-3


@pytest.mark.parametrize("layers", [None, [1]], ids=["all", "hybrid"])
def test_a_row_without_a_real_token_is_finite(layers):
    model = hax.convert(tiny.tiny_model(BertModel), tiny.KERNEL, layers=layers)
    batch = tiny.inputs()
    batch["attention_mask"][1] = 0
    embeddings = model.get_input_embeddings()(batch["input_ids"]).detach().requires_grad_()
    for wanted in (False, True):
        output = model(inputs_embeds=embeddings, attention_mask=batch["attention_mask"], output_attentions=wanted)
        assert torch.isfinite(output.last_hidden_state).all()
        (gradient,) = torch.autograd.grad(output.last_hidden_state.square().sum(), embeddings)
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_4d_masks_are_refused(model, dtype):
    hax.convert(model, tiny.KERNEL)
    batch = tiny.inputs(padded=False)
    batch["attention_mask"] = torch.ones(3, 1, 7, 7, dtype=dtype)
    with pytest.raises(AttnExtError, match=r"\(3, 1, 7, 7\).*padding mask \(batch, tokens\)"):
        model(**batch)


def test_3d_masks_are_refused(model):
    hax.convert(model, tiny.KERNEL)
    batch = tiny.inputs(padded=False)
    batch["attention_mask"] = torch.ones(3, 7, 7)
    with pytest.raises(AttnExtError, match=r"\(3, 7, 7\)"):
        model(**batch)


def test_patterns_that_are_not_padding_are_refused():
    config = ModernBertConfig(
        vocab_size=40, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
    )  # fmt: skip
    model = ModernBertModel(config)
    with pytest.warns(UserWarning, match="untested"):
        hax.convert(model, tiny.KERNEL)
    with pytest.raises(AttnExtError, match=r"pattern|sliding_window"):
        model(**tiny.inputs())


def test_a_decoder_made_of_an_encoder_is_causal_on_first_use():
    causal = BertModel(tiny.tiny_config("bert", is_decoder=True), add_pooling_layer=False).eval()
    causal.set_attn_implementation("flexformer")
    batch = tiny.inputs(padded=False)
    with torch.no_grad(), pytest.warns(UserWarning, match="untrained"):
        whole = causal(**batch, use_cache=False).last_hidden_state
        first = causal(input_ids=batch["input_ids"][:, :4], use_cache=False).last_hidden_state
    torch.testing.assert_close(whole[:, :4], first)


def test_modifiers_that_a_kernel_does_not_know_are_refused(model):
    hax.convert(model, tiny.KERNEL)
    module = model.roberta.encoder.layer[0].attention.self
    q = torch.randn(1, 2, 5, 8)
    for name in ("position_bias", "softcap", "s_aux", "sliding_window"):
        with pytest.raises(AttnExtError, match=name):
            flexformer_attention(module, q, q, q, None, **{name: 1.0})


@pytest.mark.parametrize("wanted", [False, True])
def test_cross_attention_stays_softmax(wanted):
    module = BertCrossAttention(BertConfig(hidden_size=16, num_attention_heads=2)).eval()
    query, other = torch.randn(2, 4, 16), torch.randn(2, 6, 16)
    keep = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    module.config._attn_implementation = "sdpa"
    expected, _ = module(query, encoder_hidden_states=other, attention_mask=keep[:, None, None, :].expand(2, 1, 4, 6))
    module.config._attn_implementation = "flexformer"
    found, weights = module(query, encoder_hidden_states=other, attention_mask=keep, output_attentions=wanted)
    assert torch.allclose(found, expected, atol=1e-6)
    assert not hasattr(module, "feature_map")
    if wanted:
        assert torch.allclose(weights.sum(-1), torch.ones(2, 2, 4))
        assert weights[1, :, :, 4:].abs().max() == 0


def test_the_mask_function_returns_the_2d_mask():
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]])
    found = padding_mask(batch_size=2, kv_length=3, attention_mask=mask, q_length=3, dtype=torch.float32)
    assert found.dtype == torch.bool and torch.equal(found, mask.bool())
    assert padding_mask(batch_size=2, kv_length=3, attention_mask=None) is None
    assert torch.equal(padding_mask(batch_size=1, kv_length=3, attention_mask=mask[:1]), mask[:1].bool())
