"""Verdicts of ``similarity_study.py``: whether a claim holds, and against which controls; thresholds are ours."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from hf_attn_ext.probe import Statistic
from hf_attn_ext.probe.counting.sums import interval
from hf_attn_ext.probe.report.findings import Level, level_of

MOST = 0.9  # of the trained model's excess over chance: "also where tokens are shuffled"
UNLEARNT = "agrees, but a model that learnt nothing gives as much"
MIXED = "agrees, also where tokens are shuffled: no language is needed"
NEAR = "does not agree: pairs at the same distances have as much"
UNTOLD = "agrees; undecided whether "
FEW = "too few texts to tell"


def judge(
    holds: bool,
    level: Level,
    untrained: tuple[float, float] | None = None,
    shuffled: tuple[float, float] | None = None,
    sign: int = 1,
    chance: bool = True,
) -> str:
    """Whether the claim holds, and if so whether nearness, no learning at all, or no language has as much.

    Args:
        holds: what the claim needs in addition to being on its side of both chance levels by their intervals.
        level: of the model.
        untrained, shuffled: :func:`contrast` with the controls, least 1 and :data:`MOST`; None where there is none.
        sign: -1 where less than chance is claimed.
        chance: whether the claim is about chance.
    """
    if math.isnan(level.interval[0]):
        return FEW
    beyond, matched = sign > 0, not math.isnan(level.matched)
    if not holds or (chance and sign * level.excess[0 if beyond else 1] <= 0):
        return "does not agree"
    if chance and matched and sign * level.excess_matched[0 if beyond else 1] <= 0:
        return NEAR

    return qualified(untrained, shuffled)


def contrast(control: Place, reference: Place, least: float, sign: int = 1, chance: bool = True) -> tuple[float, float]:
    """A control's number less ``least`` of the model's on the same texts, times ``sign``: its 95% interval.

    Numbers are what exceeds their own chance level, at the same distances where there is one; with ``chance`` False
    they are taken themselves. Both sides have drawn the same documents in each replicate of the bootstrap, so what
    documents have in common drops out. NaN where either side has no interval of its own.
    """
    if any(math.isnan(place.level.interval[0]) for place in (control, reference)):
        return math.nan, math.nan
    (value, draws), (its, its_draws) = control.excess(chance), reference.excess(chance)
    low, high = interval(sign * (draws - least * its_draws), np.array(sign * (value - least * its)))
    return float(low), float(high)


@dataclasses.dataclass(frozen=True)
class Place:
    """One head of a statistic, or the mean over a layer's (head None), by their places on its axes."""

    statistic: Statistic
    layer: int
    head: int | None = None

    @property
    def level(self) -> Level:
        """Return the value with its chance levels and intervals."""
        return level_of(self.statistic, self.layer, self.head)

    def excess(self, chance: bool) -> tuple[float, np.ndarray]:
        """The number, and what it is in each replicate (R,); ``chance``: less its level."""
        level = self.level
        values, by_count, matched = (self._of(each) for each in self.statistic.replicates)
        if not chance:
            return level.value, values
        if math.isnan(level.matched):
            return level.value - level.chance, values - by_count
        return level.value - level.matched, values - matched

    def _of(self, replicates: np.ndarray) -> np.ndarray:
        its = replicates[:, self.layer]
        if its.ndim == 1:
            return its
        return its.mean(1) if self.head is None else its[:, self.head]


def qualified(untrained: tuple[float, float] | None, shuffled: tuple[float, float] | None) -> str:
    """Return what a claim that holds comes to against the controls, by the intervals of :func:`contrast`."""
    open_questions = []
    for found, as_much, question in (
        (untrained, UNLEARNT, "a model that learnt nothing gives as much"),
        (shuffled, MIXED, "language is needed"),
    ):
        if found is None:
            continue
        if found[0] >= 0:
            return "; undecided whether ".join([as_much, *open_questions])
        if not found[1] < 0:  # also where there is no interval
            open_questions.append(question)
    return UNTOLD + ", nor whether ".join(open_questions) if open_questions else "agrees"
