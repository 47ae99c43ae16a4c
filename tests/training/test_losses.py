"""The losses of the second stage are sums over examples and tokens, and what they are named for."""

import math

import pytest
import torch

from hf_attn_ext.training.stages.losses import distillation_loss, task_loss


def test_task_and_distillation_losses_are_sums():
    logits, teacher = torch.randn(6, 3), torch.randn(6, 3)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    for loss in (
        lambda rows: task_loss(logits[rows], labels[rows], "classification"),
        lambda rows: task_loss(logits[rows, :1], labels[rows].float(), "regression"),
        lambda rows: distillation_loss(logits[rows], teacher[rows], "classification", 2.0),
        lambda rows: distillation_loss(logits[rows, :1], teacher[rows, :1], "regression"),
    ):
        whole = loss(slice(0, 6))
        assert math.isclose(whole, loss(slice(0, 2)) + loss(slice(2, 6)), rel_tol=1e-5)


def test_distillation_loss_is_the_divergence_times_the_squared_temperature():
    logits, teacher = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    p, q = (teacher / 3).softmax(-1), (logits / 3).softmax(-1)
    wanted = 9 * (p * (p / q).log()).sum()
    assert float(distillation_loss(logits, teacher, "classification", 3.0)) == pytest.approx(float(wanted), rel=1e-5)
    assert float(distillation_loss(teacher, teacher, "classification", 3.0)) == pytest.approx(0, abs=1e-6)
