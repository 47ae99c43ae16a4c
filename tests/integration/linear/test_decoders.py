"""Converted decoders: every family with its cache, against the forward pass without one."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertLMHeadModel,
    DynamicCache,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    MistralForCausalLM,
    Qwen2ForCausalLM,
)

import hf_attn_ext as hax
from hf_attn_ext.attention import attention_weights
from hf_attn_ext.errors import AttnExtError
from tests.integration import tiny

FAMILIES = ("gpt2", "gpt_neox", "llama", "qwen2", "qwen3", "mistral")
CHANGES = {"gpt2": {"scale_attn_by_inverse_layer_idx": True}}  # others: rotary positions, grouped heads
GREEDY = {"do_sample": False, "max_new_tokens": 8, "min_new_tokens": 8}


def decoder(model_type, dtype=torch.float64, layers=None, kernel="flexformer_p", **changes):
    config = tiny.tiny_config(model_type, **CHANGES.get(model_type, {}), **changes)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(dtype).eval()
    for parameter in model.parameters():  # norms and biases start at the identity, which hides mistakes
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    return hax.convert(model, kernel=kernel, num_features=4, layers=layers)


def prompts():
    """Three prompts of different length, padded on the left, and their masks."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(3, 40, (length,), generator=generator) for length in (4, 7, 11)]
    ids, mask = torch.zeros(2, 3, 11, dtype=torch.long)
    for i, row in enumerate(rows):
        ids[i, 11 - len(row) :], mask[i, 11 - len(row) :] = row, 1
    return rows, ids, mask


def positions_of(mask):
    return (mask.cumsum(-1) - 1).clamp_min(0)


@pytest.mark.parametrize("layers", [None, [1]], ids=["all", "hybrid"])
@pytest.mark.parametrize("family", FAMILIES)
def test_generation_with_the_cache_is_that_without_it_token_for_token(family, layers):
    """Greedy and beams, each row padded differently, against each prompt alone and uncached."""
    model = decoder(family, layers=layers)
    rows, ids, mask = prompts()
    for beams in ({}, {"num_beams": 3}):
        together = model.generate(ids, attention_mask=mask, **GREEDY, **beams)
        for row, out in zip(rows, together, strict=True):
            alone = model.generate(row[None], use_cache=False, **GREEDY, **beams)
            assert torch.equal(out[11:], alone[0, len(row) :])


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@pytest.mark.parametrize("layers", [None, [1]], ids=["all", "hybrid"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_in_parts_gives_the_logits_of_the_whole(family, layers, dtype, tolerance):
    model = decoder(family, dtype, layers)
    _, ids, mask = prompts()
    positions, cache, parts = positions_of(mask), hax.LinearCache(model.config), []
    with torch.no_grad():
        whole = model(ids, attention_mask=mask, position_ids=positions, use_cache=False).logits
        for start, end in ((0, 6), (6, 9), (9, 10), (10, 11)):
            part = slice(start, end)
            out = model(ids[:, part], attention_mask=mask[:, :end], position_ids=positions[:, part], cache=cache)
            parts.append(out.logits)
    difference = (torch.cat(parts, 1) - whole)[mask.bool()]
    assert difference.norm() / whole[mask.bool()].norm() < tolerance


@pytest.mark.parametrize("kernel", hax.list_kernels())
def test_every_kernel_decodes(kernel):
    model = decoder("llama", kernel=kernel)
    _, ids, mask = prompts()
    cached = model.generate(ids, attention_mask=mask, **GREEDY)
    assert torch.equal(cached, model.generate(ids, attention_mask=mask, use_cache=False, **GREEDY))


def test_sampling_draws_the_same_tokens_with_and_without_the_cache():
    model = decoder("gpt2")
    _, ids, mask = prompts()
    drawn = []
    for use_cache in (True, False):
        torch.manual_seed(3)
        drawn.append(
            model.generate(ids, attention_mask=mask, do_sample=True, max_new_tokens=8, use_cache=use_cache, top_k=0)
        )
    assert torch.equal(*drawn)


def test_the_state_has_one_size_and_no_memory_of_another_generation():
    model = decoder("gpt2", max_position_embeddings=200)
    _, ids, mask = prompts()
    sizes = []
    for length in (11, 150):
        cache = hax.LinearCache(model.config)
        model(torch.randint(3, 40, (2, length)), cache=cache)
        sizes.append(cache.nbytes)
    assert sizes[0] == sizes[1] > 0
    first = model.generate(ids, attention_mask=mask, **GREEDY)
    model.generate(ids.flip(0), attention_mask=mask.flip(0), **GREEDY)
    assert torch.equal(first, model.generate(ids, attention_mask=mask, **GREEDY))
    cache.reset()
    assert cache.get_seq_length() == 0 and cache.nbytes == 0
    again = model(ids, attention_mask=mask, position_ids=positions_of(mask), cache=cache).logits
    fresh = model(ids, attention_mask=mask, position_ids=positions_of(mask), use_cache=False).logits
    torch.testing.assert_close(again, fresh)


def test_generation_goes_on_from_a_given_cache():
    model = decoder("qwen2")
    ids = prompts()[1][2:]
    cache = hax.LinearCache(model.config)
    first = model.generate(ids, cache=cache, **{**GREEDY, "max_new_tokens": 4, "min_new_tokens": 4})
    rest = model.generate(first, cache=cache, **{**GREEDY, "max_new_tokens": 4, "min_new_tokens": 4})
    assert torch.equal(rest, model.generate(ids, **GREEDY))


def test_several_sequences_of_one_prompt_and_an_encoder_beside():
    model = decoder("llama")
    ids = prompts()[1][2:]
    torch.manual_seed(0)
    out = model.generate(ids, do_sample=True, num_return_sequences=3, max_new_tokens=6)
    assert out.shape[0] == 3
    config = tiny.tiny_config("bert", is_decoder=True, add_cross_attention=True)
    torch.manual_seed(0)
    bert = hax.convert(BertLMHeadModel(config).double().eval(), tiny.KERNEL)
    encoder = torch.randn(1, 5, 16, dtype=torch.float64)
    cached, plain = (bert.generate(ids, encoder_hidden_states=encoder, use_cache=c, **GREEDY) for c in (True, False))
    assert torch.equal(cached, plain)


def test_attention_weights_are_the_kernels_and_need_the_whole_sequence():
    model = decoder("llama")
    ids = prompts()[1][2:]
    out = model(ids, output_attentions=True, use_cache=False)
    for weights in out.attentions:
        assert weights.shape == (1, 2, 11, 11) and weights.triu(1).eq(0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 11, dtype=weights.dtype))
    cache = hax.LinearCache(model.config)
    model(ids, cache=cache, output_attentions=True)
    with pytest.raises(AttnExtError, match=r"attention weights over tokens before this call.*use_cache=False"):
        model(ids[:, :1], cache=cache, output_attentions=True)


def test_the_softmax_stream_of_a_decoder_is_the_stock_model_and_says_that_it_is_causal():
    model = decoder("mistral", torch.float32)
    _, ids, mask = prompts()
    calls = []
    with torch.no_grad(), hax.softmax_stream(model, calls.append):
        stream = model(ids, attention_mask=mask, use_cache=False).logits
    hax.revert(model)
    stock = model(ids, attention_mask=mask, use_cache=False).logits
    torch.testing.assert_close(stream[mask.bool()], stock[mask.bool()])
    assert [call.causal for call in calls] == [True, True]
    call = calls[0]
    weights = attention_weights(call.query, call.key, call.feature_map, call.causal, call.key_padding_mask)
    assert weights.triu(1).eq(0).all()


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_gives_the_same_gradients(reentrant):
    model = decoder("llama", torch.float32).train()
    ids = prompts()[1][2:]
    gradients = []
    for checkpointing in (False, True):
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        gradients.append(
            [p.grad.clone() for layer in hax.converted_layers(model) for p in layer.feature_map.parameters()]
        )
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_compiled_numbers_are_the_same():
    model = decoder("gpt2", torch.float32)
    batch = {"input_ids": torch.randint(3, 40, (2, 20)), "attention_mask": torch.ones(2, 20, dtype=torch.long)}
    with torch.no_grad():
        plain = model(**batch, use_cache=False).logits
        compiled = torch.compile(model, backend="aot_eager")(**batch, use_cache=False).logits
    torch.testing.assert_close(compiled, plain, rtol=1e-4, atol=1e-5)


def refused(message, call):
    with pytest.raises(AttnExtError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_what_a_state_cannot_do_is_refused_by_name():
    model, other = decoder("gpt2"), decoder("gpt2", num_hidden_layers=3)
    wider = decoder("gpt2", hidden_size=32)
    _, ids, mask = prompts()
    refused("GPT2LMHeadModel.*assisted decoding", lambda: model.generate(ids[2:], assistant_model=other, **GREEDY))
    refused("prompt lookup", lambda: model.generate(ids[2:], prompt_lookup_num_tokens=2, **GREEDY))
    refused("'static'", lambda: model.generate(ids[2:], cache_implementation="static", **GREEDY))
    refused("DynamicCache.*LinearCache", lambda: model(ids, cache=DynamicCache()))
    refused("DynamicCache.*LinearCache", lambda: model.generate(ids[2:], cache=DynamicCache(), **GREEDY))
    refused("another model: it has 3 layers", lambda: model(ids, cache=hax.LinearCache(other.config)))
    cache = hax.LinearCache(wider.config)
    wider(ids, cache=cache)
    refused("another model", lambda: model(ids, cache=cache))
    cache = hax.LinearCache(model.config)
    model(ids, attention_mask=mask, cache=cache)
    refused("holds 3 sequences, but this call has 2", lambda: model(ids[:2, :1], cache=cache))
    refused("cannot be cropped", lambda: cache.crop(1))
    refused("those that the cache has seen", lambda: model(ids[:, :1], attention_mask=mask[:, :1], cache=cache))
    square = torch.ones(3, 1, 11, 11, dtype=torch.bool).tril()
    refused("mask between single positions", lambda: model(ids, attention_mask=square, use_cache=False))
    restarted = torch.arange(11).remainder(6)[None]
    refused("packed sequences", lambda: model(ids, position_ids=restarted, use_cache=False))


def test_a_call_that_failed_half_way_leaves_no_cache_to_go_on_with(monkeypatch):
    model = hax.convert(tiny.tiny_model(LlamaForCausalLM), kernel="elu").eval()
    _, ids, _ = prompts()
    cache, fresh = hax.LinearCache(model.config), hax.LinearCache(model.config)
    before = model(ids, cache=cache).logits
    maps = [layer.feature_map for layer in hax.converted_layers(model)]
    for failing in maps:
        with monkeypatch.context() as patch:
            patch.setattr(failing, "forward", lambda *arguments: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                model(ids[:, :1], cache=cache)
        if failing is maps[0]:  # nothing was added yet
            model(ids, cache=fresh)
            assert torch.equal(model(ids[:, :1], cache=cache).logits, model(ids[:, :1], cache=fresh).logits)
        else:
            refused("failed half-way", lambda: model(ids[:, :1], cache=cache))
    cache.reset()
    assert torch.equal(model(ids, cache=cache).logits, before)


def test_a_stock_model_on_first_use_cannot_go_on_from_keys():
    model = tiny.tiny_model(LlamaForCausalLM)
    model.set_attn_implementation("flexformer")
    with pytest.warns(UserWarning, match="untrained"):
        refused("LinearCache, after hf_attn_ext.convert", lambda: model.generate(prompts()[1], **GREEDY))


def test_sliding_windows_keep_softmax_or_are_refused():
    torch.manual_seed(0)
    stock = tiny.tiny_model(MistralForCausalLM, sliding_window=4)
    refused(
        "every layer of MistralForCausalLM has a sliding window.*sliding_window to None", lambda: hax.convert(stock)
    )
    mixed = {"sliding_window": 4, "use_sliding_window": True, "max_window_layers": 1, "num_hidden_layers": 3}
    refused("layer 2 .* sliding window", lambda: hax.convert(tiny.tiny_model(Qwen2ForCausalLM, **mixed), layers=[0, 2]))
    model = tiny.tiny_model(Qwen2ForCausalLM, **mixed).double()
    _, ids, mask = prompts()
    with pytest.warns(UserWarning, match="layers 1, 2 of Qwen2ForCausalLM have a sliding window and keep softmax"):
        hax.convert(model, tiny.KERNEL)
    assert [layer.layer_idx for layer in hax.converted_layers(model)] == [0]
    cached = model.generate(ids, attention_mask=mask, **GREEDY)
    assert torch.equal(cached, model.generate(ids, attention_mask=mask, use_cache=False, **GREEDY))
    # the window is honoured: what lies outside of it changes nothing two softmax layers later
    with torch.no_grad(), hax.softmax_stream(model, lambda call: None):
        stream = model(ids[2:], use_cache=False).logits
    hax.revert(model)
    torch.testing.assert_close(stream, model(ids[2:], use_cache=False).logits)


def test_training_reaches_every_map_through_the_language_model_loss():
    model = GPT2LMHeadModel(tiny.tiny_config("gpt2")).train()
    hax.convert(model, tiny.KERNEL)
    ids = prompts()[1][2:]
    model(ids, labels=ids).loss.backward()
    for layer in hax.converted_layers(model):
        assert all(p.grad is not None and p.grad.isfinite().all() for p in layer.feature_map.parameters())
