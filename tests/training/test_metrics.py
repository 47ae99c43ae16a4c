"""Metrics against known values, and their standard errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attn_ext.training import metrics


def test_metrics_against_known_values():
    labels = np.array([0, 0, 1, 1, 1])
    logits = np.eye(2)[[0, 1, 1, 1, 0]]
    found = metrics.compute(labels, logits, "classification")
    assert found == pytest.approx({"accuracy": 0.6, "f1": 2 / 3, "matthews": 1 / 6})
    numbers = np.array([0.0, 1.0, 2.0, 4.0], dtype=np.float32)
    found = metrics.compute(numbers, np.array([[0.0], [1.0], [2.0], [3.0]]), "regression")
    assert found["spearman"] == pytest.approx(1) and found["rmse"] == pytest.approx(0.5)
    assert found["pearson"] == pytest.approx(np.corrcoef(numbers, [0, 1, 2, 3])[0, 1])
    assert metrics.compute(numbers, np.zeros((4, 1)), "regression")["pearson"] == 0.0
    assert metrics.main_metric("classification", None, "glue/cola") == "matthews"


def test_standard_error_of_an_accuracy_is_the_binomial_one():
    generator = np.random.default_rng(0)
    labels = generator.integers(2, size=400)
    right = generator.random(400) < 0.8
    logits = np.eye(2)[np.where(right, labels, 1 - labels)]
    share = right.mean()
    found = metrics.standard_errors(labels, logits, "classification", resamples=400)["accuracy"]
    assert found == pytest.approx((share * (1 - share) / 400) ** 0.5, rel=0.15)
    assert metrics.difference_error(labels, logits, logits, "classification", "accuracy") == 0.0


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 4), st.integers(5, 40), st.integers(0, 10**6))
def test_metrics_from_counts_are_scikit_learns(classes, size, seed):
    generator = np.random.default_rng(seed)
    labels, predictions = generator.integers(classes, size=(2, size))
    count = int(max(labels.max(), predictions.max())) + 1
    if count < 2:
        return
    counts = np.bincount(labels * count + predictions, minlength=count**2).reshape(1, count, count)
    found = {name: values[0] for name, values in metrics.from_counts(counts).items()}
    wanted = {name: metric(labels, predictions) for name, metric in metrics.CLASSIFICATION.items()}
    assert found == pytest.approx(wanted, abs=1e-12)
