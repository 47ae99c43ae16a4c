"""Findings of a probe: what its statistics say of the paper's claims, and what a reader must know of their gaps."""

from __future__ import annotations

import numpy as np

from hf_attn_ext.probe.results import ProbeStatistics
from hf_attn_ext.probe.statistics import list_statistics, statistic_named
from hf_attn_ext.probe.statistics.findings import VERDICTS, Finding, Level, level_of, percentage

__all__ = ["VERDICTS", "Finding", "Level", "findings", "gaps", "level_of", "percentage"]


def findings(statistics: ProbeStatistics) -> list[Finding]:
    """Return what the statistics say of each of the paper's findings, at the first percentage; controls come last."""
    percent = statistics.settings["percents"][0]
    kinds = {name: statistic_named(name) for name in list_statistics()}
    measured = [
        one
        for one in statistics.statistics
        if one.name in kinds and one.percent in (None, percent) and np.isfinite(one.values).any()
    ]
    measured.sort(key=lambda one: kinds[one.name].report_order)
    main = [f for one in measured if one.measure == "dot" for f in kinds[one.name].findings(one, statistics)]
    return main + [f for one in measured if one.measure != "dot" for f in kinds[one.name].control_findings(one)]


def gaps(statistics: ProbeStatistics) -> list[str]:
    """Return what a reader must know before the findings, in sentences."""
    notes = list(statistics.notes)
    counts = statistics.counts
    seen = counts["texts"] + counts["skipped"]
    if 0 < counts["sentences"] <= seen:
        notes.append(
            "Every text is one sentence: within-sentence shares and signal are 1 by construction, and say nothing. "
            "Give longer texts for them."
        )
    if len(statistics.settings["heads"]) * len(statistics.settings["layers"]) > 1:
        notes.append(
            "Every interval is for one number at 95%: of many heads that do what chance does, one in forty lies above "
            "chance by its interval. The head named as clearest has the highest lower bound of all over pairs at the "
            "same distances; its own interval does not know that it was chosen."
        )
    unknown = sorted({one.name for one in statistics.statistics} - set(list_statistics()))
    if unknown:
        notes.append(f"No module that was imported registers {', '.join(unknown)}: there are no figures of them.")
    return notes
