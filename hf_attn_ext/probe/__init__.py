"""Context similarity: dot products of every head's outputs for all token pairs, in any model, over any corpus.

    from hf_attn_ext.probe import ContextSimilarityProbe

    with ContextSimilarityProbe(model, tokenizer) as probe:
        probe.feed(texts)
    probe.statistics().to_json("statistics.json")

Subpackages, each of which imports only from those before it:
:mod:`.corpus` (files of texts, words and sentences), :mod:`.counting` (pairs of one text),
:mod:`.statistics` (one file per statistic), :mod:`.streaming` (passes to results), :mod:`.report` (figures, findings,
the page), :mod:`.applications` (segmentation, pruning, comparison, layer choice). :mod:`.run` runs files of texts.
"""

from .applications.compare import compare
from .applications.comparison import HeadComparison
from .applications.pruning import PruningScores, pruning_scores
from .applications.segmentation import Segmentation, segment, segment_sentences
from .applications.segmentation_scores import segmentation_scores
from .applications.sentence_vectors import SentenceVectors, sentence_vectors
from .applications.suggest import LayerSuggestion, suggest_layers
from .config import ProbeConfig, load_probe_config
from .corpus.annotate import Annotation, annotate, sentence_starts
from .counting.similarity import similarity_matrices
from .probe import ContextSimilarityProbe
from .report.findings import Finding, findings
from .report.report import write_report
from .results import ProbeStatistics, Statistic
from .run import ProbeRun, run_probe
from .statistics import HeadStatistic, PairStatistic, list_statistics, register_statistic

__all__ = [
    "Annotation",
    "ContextSimilarityProbe",
    "Finding",
    "HeadComparison",
    "HeadStatistic",
    "LayerSuggestion",
    "PairStatistic",
    "ProbeConfig",
    "ProbeRun",
    "ProbeStatistics",
    "PruningScores",
    "Segmentation",
    "SentenceVectors",
    "Statistic",
    "annotate",
    "compare",
    "findings",
    "list_statistics",
    "load_probe_config",
    "pruning_scores",
    "register_statistic",
    "run_probe",
    "segment",
    "segment_sentences",
    "segmentation_scores",
    "sentence_starts",
    "sentence_vectors",
    "similarity_matrices",
    "suggest_layers",
    "write_report",
]
