"""Pairs inside one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hf_attn_ext.probe.counting.pair_set import PairSet

from .base import PairStatistic
from .findings import Claim, Finding
from .registry import register_statistic

if TYPE_CHECKING:
    from hf_attn_ext.probe.results import ProbeStatistics, Statistic


@register_statistic("within_sentence")
class WithinSentence(PairStatistic):
    """Share of high pairs inside one sentence.

    Source: 2512.21956 (last layers compare inside the sentence; a share above 33%); chance levels ours.
    """

    title = "pairs inside one sentence"
    description = "share of high pairs inside one sentence"
    needs_sentences = True
    controls_figure = True
    report_order = 30

    def of_pair(self, pairs: PairSet) -> np.ndarray:
        return pairs.same_sentence

    def loop_pair(self, ids: Sequence[int], sentences: Sequence[int], i: int, j: int) -> float:
        return sentences[i] == sentences[j]

    def findings(self, one: Statistic, statistics: ProbeStatistics) -> list[Finding]:
        last = Claim(
            "within_last",
            "last layers compare inside the sentence",
            "{where}: {value} of high pairs lie inside one sentence",
        )
        head = Claim(
            "within_head",
            "some heads compare inside the sentence",
            "{where} compares inside the sentence most clearly: {value} of its high pairs; {tally}",
            at="clearest head",
        )
        means = one.values.mean(1)
        best = int(means.argmax())
        third = self.finding(
            "within_third",
            "more than 33% of strong pairs lie inside one sentence",
            f"in {int((means > 1 / 3).sum())} of {len(means)} layers more than a third of high pairs lie inside one "
            f"sentence, most in layer {one.layers[best]}: {{value}}; the chance level decides what that is worth",
            one,
            best,
        )
        return [last.finding(self, one), third, head.finding(self, one)]

    def control_findings(self, one: Statistic) -> list[Finding]:
        name = {"cosine": "the cosine of the outputs", "attention": "A A^T"}[one.measure]
        text = f"{{where}}, {name} instead of dot products: {{value}} of high pairs lie inside one sentence"
        return [self.finding(f"control_{one.measure}", "(control, ours)", text, one, len(one.layers) - 1)]
