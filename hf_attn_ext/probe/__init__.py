"""Context similarity: what every attention head makes of every pair of tokens, in any model, over any corpus.

    from hf_attn_ext.probe import ContextSimilarityProbe

    with ContextSimilarityProbe(model, tokenizer) as probe:
        probe.feed(texts)
    probe.statistics().to_json("statistics.json")

:mod:`.similarity` (matrices and their high pairs), :mod:`.annotate` (words and sentences by offsets), :mod:`.texts` and
:mod:`.measures` (what is counted in one text, and by chance), :mod:`.sums` and :mod:`.stream` (streamed, with a
bootstrap), :mod:`.summarise` and :mod:`.results` (tables).

Models outside the host's attention interface are read at their output projections (``projections=``).

:mod:`.run` takes files of texts (:mod:`.corpus`, :mod:`.cutting`) as :mod:`.config` says, resumable
(:mod:`.run_folder`), and writes tables, :mod:`.figures`, :mod:`.findings` in words, and one :mod:`.report` with a head
:mod:`.browser`.

:mod:`.segmentation` cuts a text by what its sentences are to the heads (:mod:`.sentence_vectors`, :mod:`.boundaries`);
:mod:`.segmentation_scores` compares with true borders.

:mod:`.compare` sets two models side by side, head by head (:mod:`.comparison`); :mod:`.suggest` says which layers of a
hybrid should keep softmax (:mod:`.neighbours`), and :mod:`.pruning` which heads can go.
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
