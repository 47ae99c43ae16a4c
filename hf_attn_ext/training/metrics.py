"""Task metrics, from scikit-learn and scipy, with standard errors.

`evaluate.load("accuracy")` fetches a script from the hub at run time, so it fails offline. The scripts of GLUE call the
very functions used here; taking them from the well-kept libraries needs no copies of files to look after.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats
from sklearn import metrics as sklearn_metrics

from hf_attn_ext.errors import AttnExtError, suggest
from hf_attn_ext.training.data.labels import LANGUAGE

# of labels (an array, or None for language modelling) and predictions
Metric = Callable[[Any, np.ndarray], float]


def _f1(labels: np.ndarray, predictions: np.ndarray) -> float:
    """F1 of class 1 for two classes, as in GLUE; the mean over classes for more."""
    two = max(labels.max(initial=0), predictions.max(initial=0)) < 2
    return sklearn_metrics.f1_score(labels, predictions, average="binary" if two else "macro", zero_division=0.0)


def _correlation(function: Callable) -> Metric:
    def metric(labels: np.ndarray, predictions: np.ndarray) -> float:
        # a constant prediction has no correlation; it knows nothing, which is a 0
        if len(labels) < 2 or np.ptp(labels) == 0 or np.ptp(predictions) == 0:
            return 0.0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", category=stats.NearConstantInputWarning)
            return float(function(labels, predictions)[0])

    return metric


def _mean_loss(_: np.ndarray | None, rows: np.ndarray) -> float:
    """Nats per predicted token, of sums and counts (n, 2)."""
    total, tokens = rows.sum(0)
    return float(total / tokens)


def perplexity(loss: float) -> float:
    """Return ``exp(loss)``; finite for any loss, so that it can be written down."""
    return math.exp(min(loss, 700.0))


CLASSIFICATION: dict[str, Metric] = {
    "accuracy": sklearn_metrics.accuracy_score,
    "f1": _f1,
    "matthews": sklearn_metrics.matthews_corrcoef,
}
REGRESSION: dict[str, Metric] = {
    "pearson": _correlation(stats.pearsonr),
    "spearman": _correlation(stats.spearmanr),
    "rmse": lambda labels, predictions: float(np.sqrt(np.mean((labels - predictions) ** 2))),
}
LANGUAGE_MODELING: dict[str, Metric] = {
    "perplexity": lambda _, rows: perplexity(_mean_loss(_, rows)),
    "loss": _mean_loss,
    "bits_per_token": lambda _, rows: _mean_loss(_, rows) / math.log(2),
}
LOWER_IS_BETTER = ("rmse", "loss", "perplexity", "bits_per_token")
_BY_TASK = {"classification": CLASSIFICATION, "regression": REGRESSION, LANGUAGE: LANGUAGE_MODELING}


def metrics_of(task: str) -> dict[str, Metric]:
    """Return the metrics of a task by name; the first is the usual one."""
    return _BY_TASK[task]


def gap_metric(name: str) -> str:
    """Return what gaps are measured in: the metric itself, but for a perplexity its logarithm, the loss."""
    return "loss" if name in LANGUAGE_MODELING else name


def main_metric(task: str, name: str | None, data_name: str = "") -> str:
    """Return the metric that decides: ``name`` if given, else the task's usual one (CoLA: Matthews).

    Raises:
        AttnExtError: a name that the task does not have.
    """
    known = list(dict.fromkeys([*metrics_of(task), "loss"]))
    if name is None:
        return "matthews" if data_name.split("/")[-1] == "cola" else known[0]
    if name not in known:
        raise AttnExtError(f"field 'data.metric': a {task} task has no metric {name!r}.{suggest(name, known)}")
    return name


def predictions_of(logits: np.ndarray, task: str) -> np.ndarray:
    """Return classes (int64) or numbers (float64) from logits (n, classes) or (n, 1).

    For language modelling ``logits`` are each sequence's summed loss and number of predicted tokens, (n, 2), and stay.
    """
    if task == LANGUAGE:
        return logits
    return logits[:, 0].astype(np.float64) if task == "regression" else logits.argmax(-1)


def compute(labels: np.ndarray | None, logits: np.ndarray, task: str) -> dict[str, float]:
    """Return every metric of the task.

    Args:
        labels: (n,) classes or numbers; ``None`` for language modelling.
        logits: (n, classes) or (n, 1); for language modelling (n, 2), see :func:`predictions_of`.

    Example:
        >>> compute(np.array([0, 1]), np.array([[2.0, 0.0], [0.0, 1.0]]), "classification")["accuracy"]
        1.0
    """
    predictions = predictions_of(logits, task)
    return {name: float(metric(labels, predictions)) for name, metric in metrics_of(task).items()}


def _resampled(
    labels: np.ndarray | None, predictions: np.ndarray, task: str, resamples: int, seed: int = 0
) -> dict[str, np.ndarray]:
    """Return every metric on ``resamples`` bootstrap draws of the examples, (resamples,) each.

    Classes are drawn as confusion matrices, which is a hundred times faster than calling scikit-learn for each draw.
    """
    generator = np.random.default_rng(seed)
    size = len(predictions)
    draws = [generator.integers(size, size=size) for _ in range(resamples)]
    if task != "classification":
        return {
            name: np.array([metric(None if labels is None else labels[rows], predictions[rows]) for rows in draws])
            for name, metric in metrics_of(task).items()
        }
    assert labels is not None  # a classification task has labels
    classes = int(max(labels.max(), predictions.max())) + 1
    cells = labels * classes + predictions
    counts = np.stack([np.bincount(cells[rows], minlength=classes**2) for rows in draws])
    return from_counts(counts.reshape(-1, classes, classes))


def from_counts(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Return accuracy, F1 and Matthews' coefficient of confusion matrices (n, classes, classes), true class first."""
    counts = counts.astype(np.float64)
    right = np.diagonal(counts, axis1=1, axis2=2)
    true, predicted, total = counts.sum(2), counts.sum(1), counts.sum((1, 2))
    with np.errstate(invalid="ignore", divide="ignore"):
        f1 = np.nan_to_num(2 * right / (true + predicted))
        present = (true + predicted) > 0
        f1 = f1[:, 1] if counts.shape[1] == 2 else (f1 * present).sum(1) / present.sum(1)
        spread = (total**2 - (true**2).sum(1)) * (total**2 - (predicted**2).sum(1))
        matthews = np.nan_to_num(
            (right.sum(1) * total - (true * predicted).sum(1)) / np.sqrt(spread), posinf=0, neginf=0
        )
    return {"accuracy": right.sum(1) / total, "f1": f1, "matthews": matthews}


def standard_errors(labels: np.ndarray | None, logits: np.ndarray, task: str, resamples: int = 200) -> dict[str, float]:
    """Return the bootstrap standard error of every metric of the task over the examples or sequences (seeded)."""
    drawn = _resampled(labels, predictions_of(logits, task), task, resamples)
    return {name: float(np.std(values, ddof=1)) for name, values in drawn.items()}


def difference_error(
    labels: np.ndarray | None, first: np.ndarray, second: np.ndarray, task: str, name: str, resamples: int = 200
) -> float:
    """Return the bootstrap standard error of ``metric(first) - metric(second)`` on the same examples.

    Args:
        first, second: logits of two models on the same examples.
        name: the metric.
    """
    one, two = (_resampled(labels, predictions_of(x, task), task, resamples)[name] for x in (first, second))
    return float(np.std(one - two, ddof=1))
