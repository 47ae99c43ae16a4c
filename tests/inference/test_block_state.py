"""Linear layers keep their state from block to block: the logits of computing the text anew, in constant work."""

import pytest
import torch
from transformers import BertLMHeadModel, GPT2LMHeadModel, LlamaForCausalLM

import hf_attn_ext as hax
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.inference.block_pass import BlockPasses
from hf_attn_ext.integration.linear.cache import KernelStateLayer
from tests.inference.families import DECODERS
from tests.inference.test_block_generate import VARIANTS, generate, model_of, prompts
from tests.integration import tiny

LAYERS = pytest.mark.parametrize("layers", [None, [1]], ids=["all", "hybrid"])
CACHES = ("cache", "past_key_values")


def linear_model(cls, kernel="flexformer_p", layers=None, **options):
    model = model_of(cls, **options)
    for parameter in model.parameters():  # norms and biases start at the identity, which hides mistakes
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return hax.convert(model, kernel=kernel, num_features=4, layers=layers)


def both(model, *batch, limit=10**6, **options):
    """With and without the cache; the logits of positions below ``limit`` are compared. Returns the first."""
    made = generate(model, *batch, return_logits=True, **options)
    anew = generate(model, *batch, return_logits=True, use_cache=False, **options)
    assert torch.equal(made.sequences, anew.sequences) and len(made.logits) == len(anew.logits) > 1
    for start, one, other in zip(made.starts, made.logits, anew.logits, strict=True):
        there = start[:, None] + torch.arange(one.shape[1]) < limit
        torch.testing.assert_close(one[there], other[there], rtol=1e-9, atol=1e-9)
        assert not one.requires_grad
    return made


@pytest.mark.parametrize(("context", "starts"), VARIANTS)
@pytest.mark.parametrize("cls", DECODERS)
@LAYERS
def test_the_state_changes_nothing(cls, layers, context, starts):
    """Prompts that end inside blocks, between them, and one without a token."""
    model = linear_model(cls, layers=layers, context=context, starts=starts)
    both(model, *prompts(6, 4, 0), max_new_tokens=8)


@pytest.mark.parametrize("kernel", hax.list_kernels())
def test_every_kernel_keeps_its_state(kernel):
    for context, starts in VARIANTS:
        both(linear_model(LlamaForCausalLM, kernel, context=context, starts=starts), *prompts(7, 3), max_new_tokens=8)


@pytest.mark.parametrize(("context", "starts"), VARIANTS)
@LAYERS
def test_long_texts_cost_no_more_tokens_a_pass(layers, context, starts):
    """Chunks of keys, many blocks; what is kept has one size unless a layer keeps softmax."""
    model = linear_model(LlamaForCausalLM, layers=layers, context=context, starts=starts, size=5)
    tokens, sizes = [], []

    def count(module, args, kwargs, output):
        cache = next((kwargs[name] for name in CACHES if kwargs.get(name) is not None), None)
        if cache is not None:
            tokens.append(kwargs["input_ids"].shape[1])
            sizes.append([x.state.nbytes for x in cache.layers if isinstance(x, KernelStateLayer)])

    model.register_forward_hook(count, with_kwargs=True)
    made = both(model, *prompts(203, 140), max_new_tokens=30)
    first = int(made.starts[0].max()) + 5
    assert tokens == [first, *[10] * (len(tokens) - 1)] and len(tokens) >= 6
    assert all(size == sizes[0] for size in sizes) and len(sizes[0]) == (2 if layers is None else 1)


@LAYERS
@torch.no_grad()
def test_mask_tokens_never_enter_and_passes_have_no_memory_of_others(layers):
    model, (ids, _) = linear_model(GPT2LMHeadModel, layers=layers), prompts(9, 9)
    start, runs = torch.tensor([6, 3]), []
    one, other = BlockPasses(model, 39, use_cache=True), BlockPasses(model, 39, use_cache=True)
    for number in range(2):
        runs.append((one.predict(ids, start + 3 * number), other.predict(ids.flip(0), start + 3 * number)))
        for layer in one.cache.layers:
            assert layer.get_seq_length() == 6 + 3 * number
            if isinstance(layer, KernelStateLayer):
                assert layer.state.length.tolist() == (start + 3 * number).tolist()
        assert (one.known is None) == (layers is None)
    state = next(layer.state for layer in one.cache.layers if isinstance(layer, KernelStateLayer))
    again = BlockPasses(model, 38, use_cache=True)  # another mask token, the same state
    for number in range(2):
        assert not torch.equal(again.predict(ids, start + 3 * number), runs[number][0])
    assert torch.equal(next(x.state.sums for x in again.cache.layers if isinstance(x, KernelStateLayer)), state.sums)
    for text, column in ((ids, 0), (ids.flip(0), 1)):
        alone = BlockPasses(model, 39, use_cache=True)
        for number in range(2):
            assert torch.equal(alone.predict(text, start + 3 * number), runs[number][column])


@pytest.mark.parametrize("kernel", ["flexformer_p", "cosformer"])
def test_a_text_that_ended_runs_past_the_table_beside_another(kernel):
    """The longer needs one pass, the other two: in the second, block and clean tokens of the first lie behind all 40
    positions.
    """
    model = model_of(GPT2LMHeadModel, size=7)
    options = {"max_length": 40} if kernel == "cosformer" else {}
    hax.convert(model, kernel=kernel, num_features=4, kernel_options=options)
    made = both(model, *prompts(6, 38), max_new_tokens=2, limit=40)
    assert [start.tolist() for start in made.starts] == [[0, 35], [7, 42]]


def test_a_decoder_made_of_an_encoder_and_float32():
    config = tiny.tiny_config("bert", is_decoder=True, add_cross_attention=True)
    torch.manual_seed(0)
    model = hax.set_mask(BertLMHeadModel(config).double().eval(), "block_two_stream", block_size=3)
    both(hax.convert(model, tiny.KERNEL), *prompts(7, 3), max_new_tokens=9)
    model = linear_model(LlamaForCausalLM).float()
    made, anew = (generate(model, *prompts(7, 3), return_logits=True, use_cache=c) for c in (True, False))
    torch.testing.assert_close(made.logits[-1], anew.logits[-1], rtol=1e-3, atol=1e-4)


def test_a_state_goes_on_only_after_what_passed_is_cropped():
    layer, x = KernelStateLayer(), torch.zeros(1, 1, 5, 2)
    layer.update(x, x, kwargs={})
    layer.commit(None, passing=3)
    assert layer.get_seq_length() == 5
    with pytest.raises(AttnExtError, match=r"last 3 tokens are not in the state; call crop\(-3\) first"):
        layer.update(x, x, kwargs={})
    with pytest.raises(AttnExtError, match="cannot be cropped by -2 tokens"):
        layer.crop(-2)
    layer.crop(-3)
    layer.crop(0)
    assert layer.get_seq_length() == 2
    with pytest.raises(AttnExtError, match="cannot be cropped by -3 tokens"):
        layer.crop(-3)


@torch.no_grad()
def test_another_model_that_runs_inside_keeps_its_own_mask():
    outer, inner = linear_model(LlamaForCausalLM), hax.set_mask(linear_model(LlamaForCausalLM), "causal")
    found, ids = [], torch.randint(3, 38, (1, 9))
    expected = inner(ids, use_cache=False).logits
    hook = outer.register_forward_pre_hook(lambda *_: found.append(inner(ids, use_cache=False).logits))
    generate(outer, ids[:, :6], max_new_tokens=3)
    hook.remove()
    assert found and all(torch.equal(logits, expected) for logits in found)


def test_maps_attached_by_the_generation_itself(tmp_path):
    model_of(LlamaForCausalLM).save_pretrained(tmp_path)
    model = LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation="flexformer", dtype=torch.float64)
    with pytest.warns(UserWarning, match="untrained"):
        first = generate(model, *prompts(6, 4), max_new_tokens=8)
    assert torch.equal(first, generate(model, *prompts(6, 4), max_new_tokens=8))
