"""Bound maps that are kept from call to call never outlive what they were made from."""

import copy
import pickle

import pytest
import torch

from hf_attn_ext.attention import BoundMaps, causal_attention, list_kernels, make_feature_map


def attend(feature_map, maps, scaling=None, dtype=torch.float64):
    q, k, v = torch.randn(3, 1, 2, 5, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    return causal_attention(q, k, v, feature_map, scaling=scaling, maps=maps)[0]


@pytest.mark.parametrize("kernel", list_kernels())
@torch.no_grad()
def test_whatever_changes_is_seen(kernel):
    feature_map, maps = make_feature_map(kernel, 2, 4, 6).double(), BoundMaps()
    for change in range(3):
        for scaling in (None, 0.3, None):
            assert attend(feature_map, maps, scaling).equal(attend(feature_map, None, scaling))
        assert attend(feature_map, maps, dtype=torch.float32).dtype == torch.float32
        for tensor in (*feature_map.parameters(), *feature_map.buffers()):
            if change == 0 and tensor.is_floating_point():
                tensor.mul_(1.1)
        if change == 1:
            for name, parameter in list(feature_map.named_parameters(recurse=False)):
                setattr(feature_map, name, torch.nn.Parameter(parameter * 0.9))
    other = make_feature_map(kernel, 2, 4, 6, seed=3).double()
    assert attend(other, maps).equal(attend(other, None))


def test_they_are_kept_and_bound_again_only_where_something_changed():
    feature_map, maps = make_feature_map("flexformer_p", 2, 4, 6), BoundMaps()
    with torch.no_grad():
        kept = maps.of(feature_map, torch.float32, None)
        assert maps.of(feature_map, torch.float32, None) is kept
        feature_map.real.add_(1)
        assert maps.of(feature_map, torch.float32, None) is not kept
    with_gradient = maps.of(feature_map, torch.float32, None)
    assert maps.of(feature_map, torch.float32, None) is not with_gradient


def test_gradients_reach_the_map_whatever_was_kept():
    feature_map, maps = make_feature_map("flexformer_p", 2, 4, 6).double(), BoundMaps()
    with torch.no_grad():
        attend(feature_map, maps)
    attend(feature_map, maps).sum().backward()
    assert feature_map.real.grad.abs().sum() > 0


def test_a_copy_starts_anew():
    feature_map, maps = make_feature_map("flexformer_p", 2, 4, 6), BoundMaps()
    with torch.no_grad():
        kept = maps.of(feature_map, torch.float32, None)
        for other in (copy.deepcopy(maps), pickle.loads(pickle.dumps(maps))):
            assert other.of(feature_map, torch.float32, None) is not kept


def test_maps_made_in_inference_mode_are_bound_each_time():
    with torch.inference_mode():
        feature_map, maps = make_feature_map("flexformer_p", 2, 4, 6), BoundMaps()
        before = attend(feature_map, maps, dtype=torch.float32)
        feature_map.real.add_(1)
        assert not attend(feature_map, maps, dtype=torch.float32).equal(before)
