"""Base classes of the statistics: count, chance level, reduction, texts and finding of each."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hf_attn_ext.probe.counting.pair_set import PairSet
from hf_attn_ext.probe.counting.sums import ratio
from hf_attn_ext.probe.counting.texts import Text

from .findings import Claim, Finding, make_finding

if TYPE_CHECKING:
    from hf_attn_ext.probe.results import ProbeStatistics, Statistic


@dataclasses.dataclass(frozen=True)
class Reduced:
    """A statistic's numbers, from the sums over texts and from each bootstrap replicate's.

    Attributes:
        values, chance, matched: (R + 1, L, H, P), or (R + 1, L, P) for a statistic of a layer; chance levels by count
            and at the same distances, NaN where there is none.
        texts: (R + 1, P) how many texts were counted.
    """

    values: np.ndarray
    chance: np.ndarray
    matched: np.ndarray
    texts: np.ndarray


class HeadStatistic:
    """Base class of statistics, registered with :func:`.register_statistic`.

    A subclass counts in one text (:meth:`count`, :meth:`count_text`); sums over texts and their bootstrap replicates
    are kept for it, and :meth:`reduce` turns them into values. Below, H is the number of heads, P that of percentages
    (1 without ``by_percent``), C any number of columns.

    Attributes:
        name: set by the registry.
        title: of figures, a few words.
        description: one line for the report.
        unit: ``"share"``, shown in percent, or the plural of what values count, such as ``"tokens"``.
        bounds: the least and the greatest possible value; intervals are cut there.
        per_head: False for a statistic of a whole layer, without the axis of heads.
        by_percent: whether it depends on which pairs are high.
        controls: whether it is also counted for the controls, cosine and A A^T.
        controls_figure: whether a figure compares it with the controls.
        needs_attention: counts attention maps, on the sample, instead of pairs.
        counted_as: name of the statistic whose sums it reads; None counts its own.
        figures: the figures that are drawn, of ``"map"`` (layers and heads) and ``"curve"`` (layers).
        claim: the finding, in most cases; see :meth:`findings`.
        report_order: findings with lower numbers come first.
        verdicts: other words for verdicts, ``{verdict: (key, words)}``.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    description: ClassVar[str]
    unit: ClassVar[str] = "share"
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    per_head: ClassVar[bool] = True
    by_percent: ClassVar[bool] = True
    controls: ClassVar[bool] = True
    controls_figure: ClassVar[bool] = False
    needs_attention: ClassVar[bool] = False
    counted_as: ClassVar[str | None] = None
    figures: ClassVar[tuple[str, ...]] = ("map", "curve")
    claim: ClassVar[Claim | None] = None
    report_order: ClassVar[int] = 1000
    verdicts: ClassVar[Mapping[str, tuple[str, str]]] = MappingProxyType({})

    def count(self, seen: Any) -> np.ndarray:
        """Count one layer of one text.

        Args:
            seen: a :class:`.PairSet` of the high pairs (H, k), or with ``needs_attention`` :class:`.AttentionRows`.

        Returns:
            (C, H, P), or (C, P) for a statistic of a layer. For the default :meth:`reduce`: the numerator, and the
            numerator at the same distances where there is one.
        """
        raise NotImplementedError

    def count_text(self, text: Text) -> np.ndarray:
        """Count what does not depend on the model in one text.

        Returns:
            (C, P). For the default :meth:`reduce`: the numerator that chance would give, the denominator, and 1 where
            the text counts, 0 where it does not.
        """
        raise NotImplementedError

    def reduce(self, counts: np.ndarray, of_texts: np.ndarray) -> Reduced:
        """Turn sums over texts into values.

        Args:
            counts: (C, R + 1, L, H, P) sums of :meth:`count`, or (C, R + 1, L, P).
            of_texts: (C, R + 1, 1, 1, P) sums of :meth:`count_text`, or (C, R + 1, 1, P).
        """
        chance, over, texts = of_texts
        matched = ratio(counts[1], over) if len(counts) > 1 else np.full(counts[0].shape, np.nan)
        return self.reduced(ratio(counts[0], over), ratio(chance, over), matched, texts)

    @staticmethod
    def reduced(values: np.ndarray, chance: np.ndarray, matched: np.ndarray, texts: np.ndarray) -> Reduced:
        """Bring arrays that broadcast into the shapes of :class:`Reduced`."""
        chance, matched = (np.broadcast_to(each, values.shape) for each in (chance, matched))
        return Reduced(values, chance, matched, texts.reshape(len(texts), -1))

    def findings(self, one: Statistic, statistics: ProbeStatistics) -> list[Finding]:
        """Return findings on the measured values ``one``: claim, numbers, verdict; by default that of ``claim``."""
        return [] if self.claim is None else [self.claim.finding(self, one)]

    def control_findings(self, one: Statistic) -> list[Finding]:
        """Return findings on the values of a control, ``one.measure``."""
        return []

    def loops(self, texts: Sequence[Any]) -> dict[str, np.ndarray]:
        """Compute one layer's numbers by slow loops, for the test that runs over every statistic.

        Args:
            texts: ``LoopText`` of ``tests/probe/naive.py``.

        Returns:
            ``values`` and, where there are such levels, ``chance`` and ``chance_matched``: (H,), or () for a layer.
        """
        raise NotImplementedError

    def finding(self, key: str, claim: str, text: str, one: Statistic, layer: int, head: int | None = None) -> Finding:
        """Make one finding; see :func:`.make_finding`."""
        return make_finding(self, key, claim, text, one, layer, head)


class PairStatistic(HeadStatistic):
    """A mean over high pairs of a number that each pair has by itself; a bool makes it a share.

    Both chance levels follow: the mean over all pairs of the text, and over the pairs at the same distances.

    Attributes:
        needs_sentences: texts whose sentences are not known are left out.
        matched: whether the level at the same distances says anything.
    """

    needs_sentences: ClassVar[bool] = False
    matched: ClassVar[bool] = True

    def of_pair(self, pairs: PairSet) -> np.ndarray:
        """Return each pair's value, an array of the shape of ``pairs.i``."""
        raise NotImplementedError

    def loop_pair(self, ids: Sequence[int], sentences: Sequence[int], i: int, j: int) -> float:
        """Return the value of one pair, computed in plain Python; the tests compare every statistic with it."""
        raise NotImplementedError

    def count(self, pairs: PairSet) -> np.ndarray:
        text = pairs.text
        if self.needs_sentences and text.sentences is None:
            return np.zeros((1 + self.matched, len(pairs.i), len(text.counts)))
        columns = [pairs.up_to(self.of_pair(pairs))]
        if self.matched:
            columns.append(pairs.up_to(np.take(self._means(text)[1], pairs.distance, mode="clip")))
        return np.stack(columns)

    def count_text(self, text: Text) -> np.ndarray:
        counts = np.array(text.counts, dtype=np.float64)
        if self.needs_sentences and text.sentences is None:
            return np.zeros((3, len(counts)))
        return np.stack([counts * self._means(text)[0], counts, np.ones_like(counts)])

    def _means(self, text: Text) -> tuple[float, np.ndarray]:
        """The mean over all pairs, and at each distance, float32 (n,)."""
        return text.once(self, lambda: self._means_of(PairSet.every(text)))

    def _means_of(self, pairs: PairSet) -> tuple[float, np.ndarray]:
        length = pairs.text.length
        sums = np.bincount(pairs.distance, weights=self.of_pair(pairs), minlength=length)
        return float(sums.sum() / len(pairs.i)), (sums / (length - np.arange(length))).astype(np.float32)
