"""What ``long_texts.py`` computes from embeddings and models: regressions, agreement, bootstrap, kernels' errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import hf_attn_ext as hax
from benchmarks.studies.common.results import group_draws
from hf_attn_ext.training import attention_losses

RESAMPLES = 1000


def ridge(features: np.ndarray, targets: np.ndarray) -> Any:
    """A ridge regression on standardised features, its penalty chosen by leaving out one training text at a time."""
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), RidgeCV(alphas=np.logspace(0, 5, 16))).fit(features, targets)


def plain_ridge(features: np.ndarray, targets: np.ndarray) -> Any:
    """The same for a bag of words, whose scale means something."""
    from sklearn.linear_model import RidgeCV

    return RidgeCV(alphas=np.logspace(-3, 1, 9)).fit(features, targets)


def apart(features: np.ndarray, targets: np.ndarray, groups: np.ndarray, fit: Callable = ridge) -> np.ndarray:
    """Predict each group's targets by a regression on all other groups."""
    predicted = np.empty(len(targets))
    for group in np.unique(groups):
        test = groups == group
        predicted[test] = fit(features[~test], targets[~test]).predict(features[test])
    return predicted


def bag_of_words(rows: list[list[int]]) -> np.ndarray:
    """Logarithms of how often each token comes, weighted by rarity, of length 1; as coordinates, (n, n)."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    counted = TfidfVectorizer(analyzer=list, sublinear_tf=True, min_df=2).fit_transform(rows)
    values, vectors = np.linalg.eigh((counted @ counted.T).toarray())
    return vectors * np.sqrt(values.clip(0))


def root_mean_square(targets: np.ndarray, predicted: np.ndarray) -> float:
    """Return the root of the mean squared error."""
    return float(np.sqrt(np.mean((predicted - targets) ** 2)))


def pearson(targets: np.ndarray, predicted: np.ndarray) -> float:
    """Return Pearson's correlation; 0 for constant predictions."""
    if np.ptp(predicted) == 0:
        return 0.0  # a constant knows nothing
    return float(np.corrcoef(targets, predicted)[0, 1])


def compared(
    metric: Callable[[np.ndarray, np.ndarray], float],
    targets: np.ndarray,
    predicted: dict[str, list[np.ndarray]],
    groups: np.ndarray,
    reference: str,
) -> dict[str, dict[str, Any]]:
    """Score contestants on the same texts.

    Args:
        metric: of targets and predictions.
        predicted: by contestant, one array per seed; scores are means over seeds.
        groups: what the bootstrap draws.
        reference: the contestant that the others are compared with.

    Returns:
        By contestant: ``score``, its ``error`` (bootstrap standard error), ``seeds`` (each seed's score),
        ``difference`` to the reference and its ``difference_error`` (the same draws for both).
    """
    draws = list(group_draws(groups, RESAMPLES))
    drawn = {
        name: np.array([np.mean([metric(targets[rows], seed[rows]) for seed in seeds]) for rows in draws])
        for name, seeds in predicted.items()
    }
    report = {}
    for name, seeds in predicted.items():
        scores = [metric(targets, seed) for seed in seeds]
        report[name] = {"score": float(np.mean(scores)), "error": float(np.std(drawn[name], ddof=1)), "seeds": scores}
    for name, row in report.items():
        row["difference"] = row["score"] - report[reference]["score"]
        row["difference_error"] = float(np.std(drawn[name] - drawn[reference], ddof=1))
    return report


def agreement(stock: np.ndarray, other: np.ndarray) -> dict[str, float]:
    """Mean cosine of the two embeddings of a text, and rank correlation of the similarities between texts."""
    from scipy.stats import spearmanr

    stock, other = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (stock, other))
    pairs = np.triu_indices(len(stock), 1)
    ranks = spearmanr((stock @ stock.T)[pairs], (other @ other.T)[pairs])[0]
    return {"cosine": float((stock * other).sum(1).mean()), "ranks": float(ranks)}


@torch.no_grad()
def heads_error(model: torch.nn.Module, texts: list[torch.Tensor], queries: int = 64) -> float:
    """Relative squared error of the heads' outputs against softmax, mean over heads and layers.

    Args:
        model: converted; its layers receive the hidden states of the softmax model.
        texts: token ids, (1, N) each.
        queries: of each text, evenly spread.
    """
    sums: dict[str, torch.Tensor] = {}

    def listen(call: hax.integration.AttentionCall) -> None:
        length = call.query.shape[2]
        index = torch.linspace(0, length - 1, min(queries, length)).long()[None]
        parts = attention_losses(
            call.query, call.key, call.value, call.feature_map, call.scaling, call.key_padding_mask, index
        )
        both = torch.stack([parts.squared_error.double().sum((0, 2)), parts.squared_norm.double().sum((0, 2))])
        sums[call.name] = sums.get(call.name, 0) + both

    with hax.softmax_stream(model, listen):
        for ids in texts:
            model(input_ids=ids, attention_mask=torch.ones_like(ids))
    return float(np.mean([float((error / norm).mean()) for error, norm in sums.values()]))
