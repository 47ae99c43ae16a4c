"""The attention losses against a naive float64 twin, gradients included; and their additivity."""

import pytest
import torch

from hf_attn_ext.attention import attention_weights, make_feature_map
from hf_attn_ext.attention.losses import WEIGHT_FLOOR, attention_backward, attention_losses

KERNELS = ["flexformer_p", "flexformer_n", "hedgehog"]


def inputs(batch=2, heads=2, length=5, dim=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, heads, length, dim, generator=generator, dtype=torch.float64) for _ in range(3)]


def twin(query, key, value, feature_map, scaling, mask, rows=None):
    """Loop over every sequence, head and query; only real tokens exist."""
    totals = [0.0, 0.0, 0.0, 0.0]
    for b in range(query.shape[0]):
        real = [i for i in range(query.shape[2]) if mask is None or mask[b, i]]
        q, k, v = (x[b : b + 1, :, real] for x in (query, key, value))
        weights = attention_weights(q, k, feature_map, scaling=scaling).double()
        for h in range(query.shape[1]):
            for place, position in enumerate(real):
                if rows is not None and position not in rows[b]:
                    continue
                scores = torch.stack([q[0, h, place] @ k[0, h, j] * scaling for j in range(len(real))])
                target = scores.softmax(0)
                w = weights[0, h, place]
                clamped = w.clamp_min(WEIGHT_FLOOR)
                totals[0] = totals[0] - (target * (clamped / clamped.sum()).log()).sum()
                totals[1] = totals[1] - (target * target.log()).sum()
                totals[2] = totals[2] + ((w @ v[0, h]) - (target @ v[0, h])).square().sum()
                totals[3] = totals[3] + (target @ v[0, h]).square().sum()
    return totals


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("padding", [None, "right", "left", "inside"])
def test_values_and_gradients_equal_the_twin(kernel, padding):
    query, key, value = inputs()
    mask = None
    if padding:
        mask = torch.ones(2, 5, dtype=torch.bool)
        mask[1, {"right": [3, 4], "left": [0], "inside": [2]}[padding]] = False
    feature_map = make_feature_map(kernel, 2, 4, 3).double()
    found = attention_losses(query, key, value, feature_map, 0.4, mask, with_entropy=True)
    sums = [part.sum() for part in found]
    wanted = twin(query, key, value, feature_map, 0.4, mask)
    for one, two in zip(sums, wanted, strict=True):
        assert one.item() == pytest.approx(two.item(), rel=1e-10)
    parameters = list(feature_map.parameters())
    ours = torch.autograd.grad(sums[0] + sums[2], parameters)
    theirs = torch.autograd.grad(wanted[0] + wanted[2], parameters)
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-9, atol=1e-12)


def test_a_subset_of_queries_equals_those_queries_of_the_twin():
    query, key, value = inputs(length=6)
    mask = torch.ones(2, 6, dtype=torch.bool)
    mask[0, 4:] = False
    feature_map = make_feature_map("flexformer_n", 2, 4, 3).double()
    index = torch.tensor([[0, 3, 0], [1, 2, 5]])
    counts = torch.tensor([[True, True, False], [True, True, True]])
    found = attention_losses(query, key, value, feature_map, 0.5, mask, index, counts)
    wanted = twin(query, key, value, feature_map, 0.5, mask, rows=[{0, 3}, {1, 2, 5}])
    assert found.cross_entropy.sum().item() == pytest.approx(wanted[0].item(), rel=1e-10)
    assert found.squared_error.sum().item() == pytest.approx(wanted[2].item(), rel=1e-10)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("subset", [False, True])
def test_the_closed_form_gradient_equals_autograds(kernel, padding, subset):
    query, key, value = (2 * x for x in inputs(length=6))
    mask = index = counts = None
    if padding:
        mask = torch.ones(2, 6, dtype=torch.bool)
        mask[0, 4:] = False
    if subset:
        index, counts = torch.tensor([[0, 3, 0], [1, 2, 5]]), torch.tensor([[True, True, False], [True, True, True]])
    feature_map = make_feature_map(kernel, 2, 4, 3).double()
    factors = torch.tensor([0.5, 3.0], dtype=torch.float64)
    losses = attention_losses(query, key, value, feature_map, 0.5, mask, index, counts)
    errors = losses.squared_error.sum((0, 2))
    (0.1 * (0.7 * losses.cross_entropy.sum() + (errors * factors).sum())).backward()
    wanted = [parameter.grad.clone() for parameter in feature_map.parameters()]
    feature_map.zero_grad()
    found = attention_backward(
        query, key, value, feature_map, 0.5, mask, index, counts, cross_entropy=0.7, output_error=factors, scale=0.1
    )
    torch.testing.assert_close(found[0], losses.cross_entropy.detach().sum((0, 2)))
    torch.testing.assert_close(found[1], errors.detach())
    for parameter, gradient in zip(feature_map.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-12)


def test_padding_gets_no_gradient_and_changes_nothing():
    query, key, value = (x.requires_grad_(True) for x in inputs(length=7))
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[:, 5:] = False
    feature_map = make_feature_map("flexformer_p", 2, 4, 3).double()
    losses = attention_losses(query, key, value, feature_map, 0.5, mask)
    (losses.cross_entropy.sum() + losses.squared_error.sum()).backward()
    for x in (query, key, value):
        assert torch.count_nonzero(x.grad[:, :, 5:]) == 0
        assert torch.count_nonzero(x.grad[:, :, :5]) > 0
    cut = attention_losses(*(x[:, :, :5] for x in (query, key, value)), feature_map, 0.5)
    torch.testing.assert_close(losses.cross_entropy[:, :, :5], cut.cross_entropy, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_cross_entropy_never_falls_below_the_entropy(kernel):
    """Signed weights above 1 would make it negative without the floor and the renormalisation."""
    query, key, value = (3 * x for x in inputs(length=9, seed=3))
    feature_map = make_feature_map(kernel, 2, 4, 3).double()
    losses = attention_losses(query, key, value, feature_map, with_entropy=True)
    assert (losses.cross_entropy - losses.entropy).min() >= -1e-6


def test_half_precision_inputs_are_computed_in_float32():
    query, key, value = (x.to(torch.bfloat16) for x in inputs())
    losses = attention_losses(query, key, value, make_feature_map("flexformer_p", 2, 4, 3))
    assert all(part.dtype == torch.float32 for part in losses if part is not None)
