"""A kernel of one's own enters the table, and the factory names what it does not take."""

import textwrap

import pytest
import torch

from hf_attn_ext.attention import (
    FeatureMap,
    Features,
    attention_weights,
    linear_attention,
    make_feature_map,
    register_kernel,
)
from hf_attn_ext.errors import AttnExtError

from .kernels import tokens


def test_the_documented_example_of_a_kernel_runs_in_half_precision():
    from hf_attn_ext.attention import registry

    example = textwrap.dedent(registry.__doc__.partition("in one file:\n")[2].partition("\nAfter that")[0])
    try:
        exec(example, {})
        feature_map = make_feature_map("squared_relu", 2, 4, 3).bfloat16()
        q, k, v = torch.randn(3, 1, 2, 5, 4).bfloat16()
        assert linear_attention(q, k, v, feature_map).isfinite().all()
    finally:
        registry._KERNELS.pop("squared_relu", None)


def test_a_kernel_of_ones_own():
    @register_kernel("test_squared_relu")
    class SquaredReLU(FeatureMap):
        def __init__(self, num_heads, head_dim, num_features, seed=0):
            super().__init__(num_heads, head_dim, num_features, num_features)

        def forward(self, x, side):
            return Features(None, torch.relu(x[..., : self.num_features]) ** 2 + 0.1)

    try:
        feature_map = make_feature_map("test_squared_relu", 2, 4, 3)
        weights = attention_weights(tokens(1, 2, 5, 4), tokens(1, 2, 5, 4), feature_map)
        torch.testing.assert_close(weights.sum(-1), torch.ones(1, 2, 5, dtype=torch.float64))
    finally:
        from hf_attn_ext.attention import registry

        del registry._KERNELS["test_squared_relu"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("hedgehg", 2, 4, 3), ["'hedgehg'", "Did you mean 'hedgehog'?"]),
        (("hedgehog", 2, 4, 0), ["num_features", "0"]),
        (("hedgehog", 2, 4, 2.5), ["num_features", "2.5"]),
        (("hedgehog", 0, 4, 2), ["num_heads", "0"]),
        (("hedgehog", 2, 4, 2**16 + 1), ["num_features", "at most 65536", "65537"]),
        (("hedgehog", 2, 4, 3, -1), ["seed", "-1"]),
        (("hedgehog", 2, 4, 3, "x"), ["seed", "'x'"]),
    ],
)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(AttnExtError) as caught:
        make_feature_map(*arguments)
    assert all(word in str(caught.value) for word in words) and "\n" not in str(caught.value)


def test_unknown_option_is_named_with_the_nearest():
    with pytest.raises(AttnExtError, match=r"no option 'roh'. Did you mean 'rho'?"):
        make_feature_map("flexformer_n", 2, 4, 3, roh=0.1)


@pytest.mark.parametrize(
    ("kernel", "options", "words"),
    [
        ("flexformer_c", {"rho": "x"}, ["'rho'", "finite number", "'x'"]),
        ("flexformer_p", {"affine": 1}, ["'affine'", "true or false", "1"]),
        ("flexformer_s", {"frequency_std": float("inf")}, ["'frequency_std'", "inf"]),
        ("hedgehog", {"weight_std": None}, ["'weight_std'", "None"]),
        ("cosformer", {"max_length": 512.0}, ["'max_length'", "whole number", "512.0"]),
        ("cosformer", {"max_length": True}, ["'max_length'", "whole number", "True"]),
        ("cosformer", {"max_length": 0}, ["max_length", "between 1 and 1048576", "0"]),
        ("polaformer", {"opposite_weight": 1.0}, ["opposite_weight", "between 0 and 1", "1.0"]),
        ("polaformer", {"alpha": -1}, ["alpha", "at least 0", "-1"]),
    ],
)
def test_an_option_of_the_wrong_type_or_out_of_range_is_named(kernel, options, words):
    with pytest.raises(AttnExtError) as caught:
        make_feature_map(kernel, 2, 4, 3, **options)
    assert all(word in str(caught.value) for word in words) and "\n" not in str(caught.value)


def test_an_integer_does_where_a_number_is_asked_for():
    ours = make_feature_map("flexformer_p", 2, 4, 3, key_normaliser=1, spread=None).state_dict()
    assert ours["key_normaliser"].equal(torch.ones(2))


def test_a_name_cannot_be_taken_twice():
    with pytest.raises(AttnExtError, match="already registered"):

        @register_kernel("hedgehog")
        class Other(FeatureMap):
            pass
