"""Blocks in one pass: the logits of training, cached and not, ragged prompts, sampling, streaming, stopping."""

import pytest
import torch
from transformers import BertForMaskedLM, GPT2LMHeadModel, LlamaForCausalLM, RobertaForMaskedLM

import hf_attn_ext as hax
from hf_attn_ext.attention import naive_attention
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import information_flow, masks
from hf_attn_ext.inference import block_generate
from hf_attn_ext.integration.linear import attention_function as registry
from hf_attn_ext.training import BlockTwoStreamCollator
from tests.inference.families import DECODERS, MODELS, Tokens
from tests.integration import tiny

VARIANTS = [("token", "boundary"), ("block", "boundary"), ("token", "every")]


def model_of(cls, context="token", starts="boundary", size=3, **changes):
    model = tiny.tiny_model(cls).double()
    return hax.set_mask(model, "block_two_stream", block_size=size, context=context, starts=starts, **changes)


def prompts(*lengths, side="right"):
    ids = torch.randint(3, 38, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(0))
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = ids * real
    return (ids, real.long()) if side == "right" else (ids.flip(1), real.long().flip(1))


def generate(model, ids, real=None, **options):
    return block_generate(model, ids, real, **{"mask_token_id": 39, "eos_token_id": None, **options})


def training_logits(model, text, size, starts):
    """The logits of every block under the training mask, ``{start: (block, V)}``."""
    batch = BlockTwoStreamCollator(Tokens, model)([{"input_ids": text}])
    batch.pop("labels"), batch.pop("shift_labels", None)
    uncached = {"use_cache": False} if hasattr(model, "prepare_inputs_for_generation") else {}
    logits, n = model(**batch, **uncached).logits[0], len(text)
    begins = range(n - size + 1) if starts == "every" else range(0, n, size)
    return {begin: logits[n + i * size : n + (i + 1) * size] for i, begin in enumerate(begins)}


@pytest.mark.parametrize(("context", "starts"), VARIANTS)
@pytest.mark.parametrize("cls", MODELS)
@torch.no_grad()
def test_the_logits_are_those_of_training(cls, context, starts):
    model = model_of(cls, context, starts)
    ids, real = prompts(6, 3, 0)
    made = generate(model, ids, real, max_new_tokens=9, return_logits=True)
    assert made.lengths.tolist() == [15, 12, 9] and len(made.logits) == 3
    for row in range(3):
        text = made.sequences[row, : made.lengths[row]].tolist()
        expected = training_logits(model, text, 3, starts)
        for start, logits in zip(made.starts, made.logits, strict=True):
            torch.testing.assert_close(logits[row], expected[int(start[row])], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("cls", [GPT2LMHeadModel, LlamaForCausalLM, BertForMaskedLM])
@pytest.mark.parametrize(("context", "starts"), VARIANTS)
@torch.no_grad()
def test_a_prompt_that_ends_inside_a_block(cls, context, starts):
    model = model_of(cls, context, starts)
    ids, real = prompts(5, 7, 2)
    made = generate(model, ids, real, max_new_tokens=8, return_logits=True)
    for row, length in enumerate((5, 7, 2)):
        text = made.sequences[row, : length + 8].tolist()
        assert text[:length] == ids[row, :length].tolist()
        text = text[: len(text) // 3 * 3] if starts == "boundary" else text
        expected = training_logits(model, text, 3, starts)
        for start, logits in zip(made.starts, made.logits, strict=True):
            if int(start[row]) in expected:
                torch.testing.assert_close(logits[row], expected[int(start[row])], rtol=1e-9, atol=1e-9)
        first = int(made.starts[0][row])
        best = made.logits[0][row].clone()
        best[:, 39] = -torch.inf
        assert text[length : first + 3] == best.argmax(-1)[length - first :].tolist()


def dense_orders(q, k, v, feature_map, causal=False, key_padding_mask=None, order=None, scaling=None, dropout_p=0.0):
    """linear_attention with an order, computed densely."""
    seen = torch.stack([one.dense() for one in (order if isinstance(order, list) else [order] * len(q))])
    assert not causal and (seen == information_flow_of(seen)).all()  # dense, as a linear layer must have it
    return naive_attention(q, k, v, feature_map, False, key_padding_mask, seen, scaling)


def information_flow_of(masks_of_rows):
    return torch.stack([information_flow(mask) for mask in masks_of_rows])


@pytest.mark.parametrize(("context", "starts"), VARIANTS)
@pytest.mark.parametrize("cls", MODELS)
@pytest.mark.parametrize("layers", [None, [1]], ids=["all", "hybrid"])
@torch.no_grad()
def test_linear_layers_give_the_logits_of_training(cls, context, starts, layers, monkeypatch):
    if not tiny.linear_attention_knows_orders():
        monkeypatch.setattr(registry, "linear_attention", dense_orders)
    model = hax.convert(model_of(cls, context, starts), tiny.KERNEL, layers=layers)
    ids, real = prompts(6, 3)
    made = generate(model, ids, real, max_new_tokens=6, return_logits=True)
    for row in range(2):
        expected = training_logits(model, made.sequences[row, : made.lengths[row]].tolist(), 3, starts)
        for start, logits in zip(made.starts, made.logits, strict=True):
            torch.testing.assert_close(logits[row], expected[int(start[row])], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("cls", DECODERS)
@torch.no_grad()
def test_the_cache_changes_nothing(cls):
    model = model_of(cls)
    ids, real = prompts(7, 4)
    cached = generate(model, ids, real, max_new_tokens=10, return_logits=True)
    plain = generate(model, ids, real, max_new_tokens=10, return_logits=True, use_cache=False)
    assert torch.equal(cached.sequences, plain.sequences)
    for one, other in zip(cached.logits, plain.logits, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("cls", [GPT2LMHeadModel, RobertaForMaskedLM])
@pytest.mark.parametrize("backend", ["sdpa", "eager", "flex"])
@torch.no_grad()
def test_rows_sides_of_padding_and_backends_agree(cls, backend):
    model = model_of(cls)
    ids, real = prompts(7, 4, 6)
    together = generate(model, ids, real, max_new_tokens=7)
    left = generate(model, *prompts(7, 4, 6, side="left"), max_new_tokens=7)
    assert left.shape == together.shape
    hax.set_mask(model, "block_two_stream", block_size=3, backend=backend)
    for row, length in enumerate((7, 4, 6)):
        alone = generate(model, ids[row : row + 1, :length], max_new_tokens=7)
        assert torch.equal(alone[0], together[row, : length + 7])


class Heard:
    def __init__(self):
        self.parts, self.ended = [], False

    def put(self, value):
        self.parts.append(value.tolist())

    def end(self):
        self.ended = True


def test_streaming_stopping_and_the_number_of_tokens():
    model, heard = model_of(GPT2LMHeadModel), Heard()
    ids, _ = prompts(6)
    made = generate(model, ids, max_new_tokens=8, streamer=heard)[0].tolist()
    assert len(made) == 14 and heard.ended
    assert heard.parts == [made[:6], made[6:9], made[9:12], made[12:14]]
    end = made[10]
    cut = generate(model, ids, max_new_tokens=8, eos_token_id=end)[0].tolist()
    assert cut == made[: 7 + made[6:].index(end)]
    stopped = generate(model, ids, max_new_tokens=8, stopping_criteria=lambda text, _: [text.shape[1] >= 9])
    assert stopped[0].tolist() == made[:9]
    model.generation_config.eos_token_id = end
    assert block_generate(model, ids, mask_token_id=39, max_new_tokens=8)[0].tolist() == cut


@pytest.mark.parametrize("end", [0, None])
@torch.no_grad()
def test_stopping_sees_each_text_by_itself(end):
    model = model_of(GPT2LMHeadModel)
    seen, batch = [], prompts(7, 4, 2)

    def stop(text, scores):
        seen.append(text[0].tolist())
        return [bool((text[:, -1] == 0).any()) or text.shape[1] >= 9]  # what fills up is 0

    made = generate(model, *batch, max_new_tokens=9, pad_token_id=0, eos_token_id=end, stopping_criteria=stop)
    assert all(0 not in text[:-1] for text in seen)
    for row, length in enumerate((7, 4, 2)):
        alone = generate(
            model, batch[0][row : row + 1, :length], max_new_tokens=9, eos_token_id=end, stopping_criteria=stop
        )
        assert torch.equal(alone[0], made[row, : alone.shape[1]]) and (made[row, alone.shape[1] :] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@torch.no_grad()
def test_the_logits_that_are_returned_are_the_model_s(dtype):
    model = model_of(GPT2LMHeadModel).to(dtype)
    passed = []
    model.register_forward_hook(lambda module, args, output: passed.append(output.logits.clone()))
    for options in ({}, {"do_sample": True, "temperature": 0.5, "top_k": 3, "top_p": 0.9}):
        passed.clear()
        made = generate(model, prompts(6)[0], max_new_tokens=6, return_logits=True, **options)
        for given, found in zip(made.logits, passed, strict=True):
            assert given.isfinite().all() and torch.equal(given, found[:, -3:])


@torch.no_grad()
def test_a_text_that_has_ended_is_filled_up():
    model = model_of(GPT2LMHeadModel)
    ids, real = prompts(6, 6)
    made = generate(model, ids, real, max_new_tokens=9)
    end = int(made[0, 7])
    found = generate(model, ids, real, max_new_tokens=9, eos_token_id=end, pad_token_id=1, return_logits=True)
    for row in range(2):
        new = made[row, 6:].tolist()
        length = 6 + (new.index(end) + 1 if end in new else 9)
        assert int(found.lengths[row]) == length
        assert torch.equal(found.sequences[row, :length], made[row, :length])
        assert (found.sequences[row, length:] == 1).all()


def test_drawing():
    model = model_of(GPT2LMHeadModel)
    ids, _ = prompts(6)

    def draw(seed, **options):
        generator = torch.Generator().manual_seed(seed)
        return generate(model, ids, do_sample=True, generator=generator, max_new_tokens=12, **options)

    assert torch.equal(draw(0), draw(0)) and not torch.equal(draw(0), draw(1))
    assert torch.equal(draw(0, top_k=1), generate(model, ids, max_new_tokens=12))
    assert torch.equal(draw(0, temperature=1e-4, top_p=0.9), generate(model, ids, max_new_tokens=12))
    assert all((draw(seed) != 39).all() for seed in range(5))


@torch.no_grad()
def test_the_table_of_positions_ends_in_a_short_block():
    model = model_of(GPT2LMHeadModel, size=7)  # 40 positions: five blocks and five tokens
    ids, _ = prompts(28)
    made = generate(model, ids, max_new_tokens=12, return_logits=True)
    assert made.lengths.tolist() == [40]
    expected = training_logits(model, made.sequences[0].tolist(), 7, "boundary")[35]
    torch.testing.assert_close(made.logits[-1][0, :5], expected, rtol=1e-9, atol=1e-9)


def checkpointing(model):
    model.train().gradient_checkpointing_enable()
    return model


def showing(model):
    model.config.output_attentions = True
    return model


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda m, ids: generate(hax.set_mask(m, None), ids), "needs the same mask 'block_two_stream'"),
        (lambda m, ids: generate(hax.set_mask(m, "causal"), ids), "needs the same mask 'block_two_stream'"),
        (lambda m, ids: generate(hax.set_mask(m, masks.causal(4)), ids), "needs the same mask 'block_two_stream'"),
        (lambda m, ids: block_generate(m, ids), "has no mask token in its configuration.*add_mask_token"),
        (lambda m, ids: generate(m, ids, max_new_tokens=0), "max_new_tokens .* got 0"),
        (lambda m, ids: generate(m, ids, max_new_tokens=40), "need 46 positions, but GPT2LMHeadModel has 40"),
        (lambda m, ids: generate(m, ids, temperature=2.0), "pass do_sample=True"),
        (lambda m, ids: generate(m, ids, do_sample=True, temperature=0), "temperature must be a number above 0, got 0"),
        (lambda m, ids: generate(m, ids, do_sample=True, top_k=0), "top_k"),
        (lambda m, ids: generate(m, ids, do_sample=True, top_p=1.5), "top_p"),
        (lambda m, ids: generate(m, ids[0]), "input_ids must be whole numbers"),
        (lambda m, ids: generate(m, ids, ids[:, :2]), "attention_mask is"),
        (lambda m, ids: generate(m, ids.repeat(2, 1), streamer=Heard()), "a streamer takes one text, got 2"),
        (lambda m, ids: generate(model_of(BertForMaskedLM), ids, use_cache=True), "does not cache in every layer"),
        (lambda m, ids: generate(checkpointing(m), ids), "did not use the cache.*model.eval"),
        (lambda m, ids: generate(checkpointing(hax.convert(m, tiny.KERNEL)), ids), "did not use the cache.*model.eval"),
        (lambda m, ids: generate(showing(hax.convert(m, tiny.KERNEL)), ids), "attention weights.*use_cache=False"),
    ],
)
def test_mistakes_are_one_line(call, words):
    with pytest.raises(AttnExtError, match=words) as error:
        call(model_of(GPT2LMHeadModel), prompts(6)[0])
    assert "\n" not in str(error.value)
