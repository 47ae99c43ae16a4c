"""A statistic of one file: everything that the package shows of it is said here."""

from __future__ import annotations

from hf_attn_ext.probe import PairStatistic, register_statistic
from hf_attn_ext.probe.statistics import Claim


@register_statistic("neighbours")
class Neighbours(PairStatistic):
    """Share of high pairs that are neighbours."""

    title = "pairs of neighbours"
    description = "share of high pairs whose tokens are neighbours"
    claim = Claim(
        "neighbours", "(a toy's claim)", "{where}: {value} of high pairs are neighbours; {tally}", at="clearest head"
    )

    def of_pair(self, pairs):
        return pairs.distance == 1

    def loop_pair(self, ids, sentences, i, j):
        return j - i == 1
