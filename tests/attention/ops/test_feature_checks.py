"""A feature map whose result is not what it declares is refused: wrong numbers would be silent."""

import pytest
import torch

from hf_attn_ext.attention import FeatureMap, Features, linear_attention, naive_attention
from hf_attn_ext.errors import AttnExtError


class Wrong(FeatureMap):
    signed = False

    def __init__(self, result, feature_dim=4):
        super().__init__(num_heads=2, head_dim=4, num_features=4, feature_dim=feature_dim)
        self.result = result

    def forward(self, x, side):
        return self.result(x.exp())


@pytest.mark.parametrize("attention", [linear_attention, naive_attention])
@pytest.mark.parametrize("causal", [False, True])
def test_another_width_or_kind_of_result_is_refused(attention, causal):
    q, k, v = torch.randn(3, 1, 2, 5, 4).unbind()
    attention(q, k, v, Wrong(lambda x: Features(None, x)), causal=causal)
    with pytest.raises(AttnExtError, match="returned features of width 4, but its feature_dim is 16"):
        attention(q, k, v, Wrong(lambda x: Features(None, x), feature_dim=16), causal=causal)
    with pytest.raises(AttnExtError, match="must return Features, got Tensor"):
        attention(q, k, v, Wrong(lambda x: x), causal=causal)
