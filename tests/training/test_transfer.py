"""Stage 1: only the maps move, every layer on its own, and what it measures."""

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from transformers import RobertaModel

from hf_attn_ext.attention import linear_attention
from hf_attn_ext.attention.losses import attention_losses
from hf_attn_ext.integration import convert, converted_layers, softmax_stream
from hf_attn_ext.training.config import Stage1Config
from hf_attn_ext.training.stages.transfer import TransferStage, evaluate_transfer, output_scales
from tests.training import small


def make_batch(rows=4, length=9, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 25, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    mask[2, 3:] = 0
    ids[mask == 0] = 1
    return {"input_ids": ids, "attention_mask": mask, "index": torch.arange(rows)}


def make_model(kernel="flexformer_p", layers=None, seed=0):
    torch.manual_seed(seed)
    model = RobertaModel(small.host_config(), add_pooling_layer=False)
    return convert(model, kernel=kernel, num_features=4, layers=layers)


def make_stage(model, config=None, batch=None):
    batch = batch or make_batch()
    config = config or Stage1Config(lr=1e-2)
    return TransferStage(model, config, output_scales(model, [batch]), lambda: [batch], Accelerator(cpu=True))


def gradients(model):
    return [parameter.grad.clone() for layer in converted_layers(model) for parameter in layer.feature_map.parameters()]


@pytest.mark.parametrize("kernel", ["flexformer_p", "hedgehog"])
def test_gradients_equal_autograd_through_captured_inputs(kernel):
    model, batch = make_model(kernel), make_batch()
    stage = make_stage(model)
    stage.backward(batch, 1 / stage.units(batch), 0)
    stage.finish_gradients(0.0)
    ours = gradients(model)
    model.zero_grad()

    calls = []
    with torch.no_grad(), softmax_stream(model.eval(), calls.append):
        model(**{name: batch[name] for name in ("input_ids", "attention_mask")})
    assert len(calls) == 2
    for call in calls:
        losses = attention_losses(
            call.query, call.key, call.value, call.feature_map, call.scaling, call.key_padding_mask
        )
        error = (losses.squared_error.sum((0, 2)) / stage.scales[call.name]).sum()
        ((losses.cross_entropy.sum() + error) / int(batch["attention_mask"].sum())).backward()
    for one, two in zip(ours, gradients(model), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-6)


def test_only_the_maps_move_and_they_come_closer():
    model, batch = make_model(), make_batch()
    maps = {id(p) for layer in converted_layers(model) for p in layer.feature_map.parameters()}
    before = {name: p.clone() for name, p in model.named_parameters()}
    stage = make_stage(model)
    start = stage.evaluate()
    for step in range(30):
        stage.backward(batch, 1 / stage.units(batch), step)
        stage.finish_gradients(1.0)
        stage.optimizer.step()
        stage.optimizer.zero_grad()
    for name, parameter in model.named_parameters():
        if id(parameter) not in maps:
            assert parameter.equal(before[name]) and parameter.grad is None and not parameter.requires_grad
    end = stage.evaluate()
    assert end["loss"] < 0.6 * start["loss"] and end["output_error"] < start["output_error"]


def test_evaluate_transfer_equals_its_definition():
    model, batches = make_model(), [make_batch(seed=0), make_batch(rows=3, length=7, seed=1)]
    report = evaluate_transfer(model, batches)
    calls = []
    with torch.no_grad(), softmax_stream(model.eval(), calls.append):
        for batch in batches:
            model(**{name: batch[name] for name in ("input_ids", "attention_mask")})
    error, norm = torch.zeros(2, 2), torch.zeros(2, 2)
    for call in calls:
        mask = call.key_padding_mask
        with torch.no_grad():
            approximate = linear_attention(
                call.query, call.key, call.value, call.feature_map, key_padding_mask=mask, scaling=call.scaling
            )
        real = mask[:, None, :, None]
        error[call.layer_idx] += ((approximate - call.output) * real).square().sum((0, 2, 3))
        norm[call.layer_idx] += (call.output * real).square().sum((0, 2, 3))
    wanted = (error / norm).mean(1)
    assert [layer["output_error"] for layer in report["layers"]] == pytest.approx(wanted.tolist(), rel=1e-4)
    assert report["output_error"] == pytest.approx(float(wanted.mean()), rel=1e-4)
    assert report["queries"] == sum(int(batch["attention_mask"].sum()) for batch in batches)
    assert report["kl"] > 0


def test_a_hybrid_trains_its_converted_layers_only():
    model = make_model(layers=[1])
    stage = make_stage(model)
    batch = make_batch()
    losses = stage.backward(batch, 1.0, 0)
    assert stage.heads == 2 and torch.isfinite(losses["loss"])
    assert [layer["layer_idx"] for layer in evaluate_transfer(model, [batch])["layers"]] == [1]


def test_the_subset_of_queries_depends_on_step_and_example_not_on_the_batch():
    model = make_model()
    stage = make_stage(model, Stage1Config(queries_per_sequence=4))
    batch = make_batch()
    assert stage.units(batch) == 4 + 4 + 3 + 4
    index, mask = stage._queries(batch, step=3)
    part = {name: tensor[1:3] for name, tensor in batch.items()}
    index_part, mask_part = stage._queries(part, step=3)
    assert index_part.equal(index[1:3]) and mask_part.equal(mask[1:3])
    assert not stage._queries(batch, step=4)[0].equal(index)
    real = batch["attention_mask"].gather(1, index)
    assert (real[mask] == 1).all() and mask.sum(1).tolist() == [4, 4, 3, 4]
    assert all(len(set(row[keep].tolist())) == int(keep.sum()) for row, keep in zip(index, mask, strict=True))


def test_training_on_subsets_works_as_well_in_the_mean():
    """The gradient on random queries is an unbiased estimate: its mean over draws comes to the whole one."""
    model, batch = make_model("hedgehog"), make_batch()
    batch["attention_mask"][:] = 1  # the same number of queries from every sequence: no weighting by length
    whole = make_stage(model)
    whole.backward(batch, 1 / whole.units(batch), 0)
    wanted = torch.cat([gradient.reshape(-1) for gradient in gradients(model)])
    model.zero_grad()
    stage = make_stage(model, Stage1Config(queries_per_sequence=3))
    for step in range(200):
        stage.backward(batch, 1 / (200 * stage.units(batch)), step)
    found = torch.cat([gradient.reshape(-1) for gradient in gradients(model)])
    assert torch.cosine_similarity(found, wanted, dim=0) > 0.99


def test_learning_rate_of_affine_maps():
    stage = make_stage(make_model(), Stage1Config(lr=1e-2, affine_lr_scale=0.2))
    assert stage.peaks == pytest.approx([1e-2, 2e-3])
    sizes = [sum(p.numel() for p in group["params"]) for group in stage.optimizer.param_groups]
    assert sizes[1] == 2 * 2 * 2 * (8 * 8 + 8)  # layers, maps, heads
    assert len(make_stage(make_model("hedgehog")).peaks) == 1


def test_no_gradient_mode_and_training_mode_are_left_as_they_were():
    model = make_model().train()
    evaluate_transfer(model, [make_batch()])
    assert model.training and torch.is_grad_enabled()
    first, second = (evaluate_transfer(model, [make_batch()])["kl"] for _ in range(2))
    assert first == second  # dropout is off in the stream


def test_output_scales_are_means_over_real_tokens():
    model, batch = make_model(), make_batch()
    scales = output_scales(model, [batch])
    padded = {
        name: torch.nn.functional.pad(batch[name], (0, 3), value=int(name == "input_ids"))
        for name in batch
        if name != "index"
    }
    for name, scale in output_scales(model, [padded]).items():
        np.testing.assert_allclose(scale, scales[name], rtol=1e-5)
