"""Verdicts of ``similarity_study.py``: whether a claim holds, and beside which controls; thresholds are ours."""

from __future__ import annotations

import math

from hf_attn_ext.probe.findings import Level

MOST = 0.9  # of the trained model's excess over chance: "also where tokens are shuffled"
UNLEARNT = "agrees, but a model that learnt nothing gives as much"
MIXED = "agrees, also where tokens are shuffled: no language is needed"
NEAR = "does not agree: pairs at the same distances have as much"
UNTOLD = "agrees; cannot be told whether "
NO_INTERVAL = " (by numbers alone, without an interval)"
FEW = "too few texts to tell"


def judge(
    holds: bool,
    level: Level,
    untrained: Level | None = None,
    shuffled: Level | None = None,
    sign: int = 1,
    reference: Level | None = None,
    chance: bool = True,
) -> str:
    """Whether the claim holds, and if so whether nearness, no learning at all, or no language has as much.

    Args:
        holds: what the claim needs beside being on its side of both chance levels by their intervals.
        level: of the model.
        untrained, shuffled: of the controls.
        sign: -1 where less than chance is claimed.
        reference: of the model on the controls' texts; None is ``level``.
        chance: whether the claim is about chance; otherwise the numbers themselves are compared with the controls'.
    """
    if math.isnan(level.interval[0]):
        return FEW
    beyond, matched = sign > 0, not math.isnan(level.matched)
    if not holds or (chance and sign * level.excess[0 if beyond else 1] <= 0):
        return "does not agree"
    if chance and matched and sign * level.excess_matched[0 if beyond else 1] <= 0:
        return NEAR

    def excess(its: Level) -> tuple[float, float]:
        bounds = its.interval if not chance else its.excess_matched if matched else its.excess
        return bounds if beyond else (-bounds[1], -bounds[0])

    return qualified(
        excess(level if reference is None else reference),
        *(None if its is None else excess(its) for its in (untrained, shuffled)),
    )


def qualified(
    reference: tuple[float, float], untrained: tuple[float, float] | None, shuffled: tuple[float, float] | None
) -> str:
    """What a claim that holds comes to beside the controls, from 95% intervals on the same texts.

    The interval of a control's number less ``MOST`` of the model's goes from its low less the other's high to its high
    less the other's low: at least 95%, however the two hang together.
    """
    open_questions = []
    for control, least, as_much, question in (
        (untrained, 1.0, UNLEARNT, "a model that learnt nothing gives as much"),
        (shuffled, MOST, MIXED, "language is needed"),
    ):
        if control is None:
            continue
        if control[0] - least * reference[1] >= 0:
            return "; cannot be told whether ".join([as_much, *open_questions])
        if not control[1] - least * reference[0] < 0:  # also where there is no interval
            open_questions.append(question)
    return UNTOLD + ", nor whether ".join(open_questions) if open_questions else "agrees"
