"""The statistics of attention heads: one file per statistic, which says everything about it, and their registry.

Imports :mod:`hf_attn_ext.probe.counting`; streaming, results, figures, findings and the report iterate over
:func:`list_statistics`.
"""

from .base import HeadStatistic, PairStatistic, Reduced
from .findings import Claim, Finding
from .registry import list_statistics, register_statistic, statistic_named

# Importing registers them; the order is that of results and figures.
from . import within_sentence, repeated_tokens, signal, distance  # noqa: F401  # isort: skip
from . import common_token, distance_overlap, separator_focus, special_focus, region  # noqa: F401  # isort: skip

__all__ = [
    "Claim",
    "Finding",
    "HeadStatistic",
    "PairStatistic",
    "Reduced",
    "list_statistics",
    "register_statistic",
    "statistic_named",
]
