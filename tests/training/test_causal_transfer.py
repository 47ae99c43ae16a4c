"""Stage 1 of causal layers: losses against a twin that cuts the keys off, gradients, evaluation, subsets."""

import pytest
import torch
from accelerate import Accelerator
from transformers import GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from hf_attn_ext.attention import attention_weights, linear_attention, make_feature_map
from hf_attn_ext.attention.losses import WEIGHT_FLOOR, attention_backward, attention_losses
from hf_attn_ext.integration import convert, converted_layers, softmax_stream
from hf_attn_ext.training.config import Stage1Config
from hf_attn_ext.training.stages.transfer import TransferStage, evaluate_transfer, output_scales
from tests.training import small_gpt

KERNELS = ["flexformer_p", "flexformer_n", "hedgehog", "cosformer"]
PLACES = {None: [], "right": [4, 5], "left": [0, 1], "inside": [2]}


def inputs(length=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [2 * torch.randn(2, 2, length, 4, generator=generator, dtype=torch.float64) for _ in range(3)]


def padded(where, length=6):
    if where is None:
        return None
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[1, PLACES[where]] = False
    return mask


def twin(query, key, value, feature_map, mask, rows=None):
    """Every query by itself: the last of a sequence that ends with it."""
    totals = [0.0, 0.0, 0.0, 0.0]
    for b in range(2):
        real = [i for i in range(query.shape[2]) if mask is None or mask[b, i]]
        for place, position in enumerate(real):
            if rows is not None and position not in rows[b]:
                continue
            seen = real[: place + 1]
            q, k, v = (x[b : b + 1, :, seen] for x in (query, key, value))
            weights = attention_weights(q, k, feature_map, scaling=0.4)[0, :, -1]
            for h in range(2):
                target = (k[0, h] @ q[0, h, -1] * 0.4).softmax(0)
                clamped = weights[h].clamp_min(WEIGHT_FLOOR)
                totals[0] = totals[0] - (target * (clamped / clamped.sum()).log()).sum()
                totals[1] = totals[1] - (target * target.log()).sum()
                totals[2] = totals[2] + (weights[h] @ v[0, h] - target @ v[0, h]).square().sum()
                totals[3] = totals[3] + (target @ v[0, h]).square().sum()
    return totals


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("padding", list(PLACES))
@pytest.mark.parametrize("subset", [False, True])
def test_values_and_gradients_equal_the_twin(kernel, padding, subset):
    query, key, value = inputs()
    mask, index, rows = padded(padding), None, None
    if subset:
        index, rows = torch.tensor([[0, 3, 5], [1, 3, 4]]), [{0, 3, 5}, {1, 3, 4}]
    feature_map = make_feature_map(kernel, 2, 4, 4).double()
    found = attention_losses(query, key, value, feature_map, 0.4, mask, index, with_entropy=True, causal=True)
    sums = [part.sum() for part in found]
    wanted = twin(query, key, value, feature_map, mask, rows)
    for one, two in zip(sums, wanted, strict=True):
        assert one.item() == pytest.approx(two.item(), rel=1e-9)
    parameters = list(feature_map.parameters())
    if not parameters:
        return
    ours = torch.autograd.grad(0.7 * sums[0] + sums[2], parameters)
    theirs = torch.autograd.grad(0.7 * wanted[0] + wanted[2], parameters)
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-11)

    factors = torch.ones(2, dtype=torch.float64)
    closed = attention_backward(
        query, key, value, feature_map, 0.4, mask, index, cross_entropy=0.7, output_error=factors, causal=True
    )
    torch.testing.assert_close(closed[0].sum(), sums[0].detach())
    torch.testing.assert_close(closed[1].sum(), sums[2].detach())
    for parameter, gradient in zip(parameters, ours, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-8, atol=1e-11)


def test_a_token_gets_no_gradient_from_queries_before_it():
    query, key, value = (x.requires_grad_(True) for x in inputs())
    losses = attention_losses(query, key, value, make_feature_map("flexformer_p", 2, 4, 4).double(), causal=True)
    (losses.cross_entropy[:, :, :3].sum() + losses.squared_error[:, :, :3].sum()).backward()
    for x in (key, value):
        assert torch.count_nonzero(x.grad[:, :, 3:]) == 0 and torch.count_nonzero(x.grad[:, :, :3]) > 0


def make_batch(rows=3, length=9, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 24, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    return {"input_ids": ids, "attention_mask": mask, "index": torch.arange(rows)}


def make_model(family="gpt2", kernel="flexformer_p"):
    torch.manual_seed(0)
    if family == "gpt2":
        model = GPT2LMHeadModel(small_gpt.host_config())
    else:
        sizes = {
            "hidden_size": 32,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "vocab_size": 24,
            "initializer_range": 0.3,
        }
        model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))
    return convert(model, kernel=kernel, num_features=4)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_evaluation_equals_its_definition(family):
    model, batches = make_model(family), [make_batch(), make_batch(2, 7, seed=1)]
    report = evaluate_transfer(model, batches)
    calls = []
    with torch.no_grad(), softmax_stream(model.eval(), calls.append):
        for batch in batches:
            model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False)
    heads = calls[0].query.shape[1]
    error, norm = torch.zeros(2, heads), torch.zeros(2, heads)
    for call in calls:
        assert call.causal
        mask = torch.ones(call.query.shape[::2][:2], dtype=torch.bool)
        mask = mask if call.key_padding_mask is None else call.key_padding_mask
        with torch.no_grad():
            found = linear_attention(
                call.query,
                call.key,
                call.value,
                call.feature_map,
                causal=True,
                key_padding_mask=mask,
                scaling=call.scaling,
            )
        real = mask[:, None, :, None]
        error[call.layer_idx] += ((found - call.output) * real).square().sum((0, 2, 3))
        norm[call.layer_idx] += (call.output * real).square().sum((0, 2, 3))
    assert report["output_error"] == pytest.approx(float((error / norm).mean()), rel=1e-4)
    assert report["queries"] == sum(int(batch["attention_mask"].sum()) for batch in batches)


def test_the_uniform_control_is_the_mean_of_the_past():
    model = make_model(kernel="uniform")
    calls = []
    with torch.no_grad(), softmax_stream(model.eval(), calls.append):
        model(input_ids=make_batch()["input_ids"], use_cache=False)
    call = calls[0]
    found = linear_attention(call.query, call.key, call.value, call.feature_map, causal=True, scaling=call.scaling)
    counts = torch.arange(1, found.shape[2] + 1)[:, None]
    torch.testing.assert_close(found, call.value.cumsum(2) / counts, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("queries", [None, 3])
@pytest.mark.parametrize("kernel", ["flexformer_p", "hedgehog"])
def test_the_maps_come_closer_and_only_they_move(kernel, queries):
    model, batch = make_model(kernel=kernel), make_batch()
    config = Stage1Config(lr=2e-2, queries_per_sequence=queries)
    scales = output_scales(model, [batch])
    stage = TransferStage(model, config, scales, lambda: [batch], Accelerator(cpu=True))
    maps = {id(p) for layer in converted_layers(model) for p in layer.feature_map.parameters()}
    before = {name: p.clone() for name, p in model.named_parameters()}
    start = stage.evaluate()
    for step in range(40):
        stage.backward(batch, 1 / stage.units(batch), step)
        stage.finish_gradients(0.0)
        stage.optimizer.step()
        stage.optimizer.zero_grad()
    assert stage.evaluate()["loss"] < 0.7 * start["loss"]
    for name, parameter in model.named_parameters():
        assert id(parameter) in maps or parameter.equal(before[name])
