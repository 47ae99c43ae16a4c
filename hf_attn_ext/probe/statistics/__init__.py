"""The statistics of attention heads: one file per statistic, which says everything about it, and their registry.

Imports :mod:`hf_attn_ext.probe.counting`; streaming, results, figures, findings and the report iterate over
:func:`list_statistics`.
"""

from .base import HeadStatistic, PairStatistic, Reduced
from .findings import Claim, Finding
from .registry import list_statistics, register_statistic, statistic_named

# Importing registers them; the order is that of results and figures.
from .within_sentence import WithinSentence  # isort: skip
from .repeated_tokens import RepeatedTokens  # isort: skip
from .signal import Noise, Signal  # isort: skip
from .distance import Distance  # isort: skip
from .common_token import TopToken, UniqueTokens  # isort: skip
from .distance_overlap import DistanceOverlap  # isort: skip
from .separator_focus import SeparatorFocus  # isort: skip
from .special_focus import SpecialFocus  # isort: skip
from .region import Region  # isort: skip

__all__ = [
    "Claim",
    "Distance",
    "DistanceOverlap",
    "Finding",
    "HeadStatistic",
    "Noise",
    "PairStatistic",
    "Reduced",
    "Region",
    "RepeatedTokens",
    "SeparatorFocus",
    "Signal",
    "SpecialFocus",
    "TopToken",
    "UniqueTokens",
    "WithinSentence",
    "list_statistics",
    "register_statistic",
    "statistic_named",
]
