"""The statistics of queries and keys, and what calibration computes from such moments."""

import pytest
import torch

from hf_attn_ext.attention import QKStatistics
from hf_attn_ext.attention.moments import matrix_power, phase_scale
from hf_attn_ext.errors import AttnExtError

from .kernels import tokens


def test_statistics_are_additive_and_match_the_plain_formulas():
    q, k = tokens(4, 2, 9, 3, seed=1), tokens(4, 2, 9, 3, seed=2)
    whole, first, second = (QKStatistics(2, 3) for _ in range(3))
    whole.update(q, k)
    first.update(q[:1], k[:1])
    second.update(q[1:], k[1:])
    first.merge(second)
    for name in ("query_mean", "key_mean", "query_covariance", "key_covariance"):
        torch.testing.assert_close(getattr(first, name), getattr(whole, name))
    flat = k.transpose(0, 1).flatten(1, 2)
    for head in range(2):
        torch.testing.assert_close(whole.key_covariance[head], flat[head].mT.cov(correction=0))
        assert {tuple(row) for row in whole.key_sample[head].tolist()} == {
            tuple(row) for row in flat[head].float().tolist()
        }
    assert first.key_sample.shape == whole.key_sample.shape == (2, 36, 3)
    with pytest.raises(AttnExtError, match="no token"):
        _ = QKStatistics(2, 3).key_mean


def test_matrix_power():
    x = tokens(2, 20, 4)
    matrix = x.mT @ x
    root = matrix_power(matrix, 0.5)
    torch.testing.assert_close(root @ root, matrix)
    torch.testing.assert_close(matrix_power(matrix, -1.0), torch.linalg.inv(matrix))


def test_phase_scale_sets_the_spread_of_phases():
    x = tokens(2, 500, 4, seed=3) * 3
    frequency = tokens(2, 6, 4, seed=4)
    scaled = frequency * phase_scale(frequency, x.mT @ x / 500, 0.7)
    torch.testing.assert_close((x @ scaled.mT).square().mean((1, 2)).sqrt(), torch.full((2,), 0.7, dtype=torch.float64))
