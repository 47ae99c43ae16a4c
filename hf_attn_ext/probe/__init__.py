"""Context similarity: what every attention head makes of every pair of tokens, in any model, over any corpus.

    from hf_attn_ext.probe import ContextSimilarityProbe

    with ContextSimilarityProbe(model, tokenizer) as probe:
        probe.feed(texts)
    probe.statistics().to_json("statistics.json")

:mod:`.similarity` (matrices and their high pairs), :mod:`.annotate` (words and sentences by offsets), :mod:`.texts` and
:mod:`.measures` (what is counted in one text, and by chance), :mod:`.sums` and :mod:`.stream` (streamed, with a
bootstrap), :mod:`.summarise` and :mod:`.results` (tables).
"""

from .annotate import Annotation, annotate, sentence_starts
from .probe import ContextSimilarityProbe
from .results import ProbeStatistics, Statistic
from .similarity import similarity_matrices

__all__ = [
    "Annotation",
    "ContextSimilarityProbe",
    "ProbeStatistics",
    "Statistic",
    "annotate",
    "sentence_starts",
    "similarity_matrices",
]
