"""One self-contained HTML file: findings, maps, curves, a head browser, counts and provenance."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_attn_ext._util.files import as_path, write_text
from hf_attn_ext.probe.results import MEASURES, ProbeStatistics
from hf_attn_ext.probe.statistics import list_statistics, statistic_named

from .browser import BrowserText, rounded
from .figures import Drawing, draw
from .findings import VERDICTS, findings, gaps

TEMPLATE = "report.html.j2"
LIMIT = 5 * 2**20
# With more heads than this, the browser has no numbers per head: they would take megabytes.
_MOST_HEADS = 1024
_COUNTS = {
    "texts": "texts",
    "skipped": "texts of one token, left out",
    "tokens": "tokens that count",
    "special": "special tokens, excluded",
    "padding": "padding, excluded",
    "pairs": "pairs",
    "sentences": "sentences",
    "words": "words",
    "sampled": "texts in the sample of controls and attention maps",
}


def write_report(
    statistics: ProbeStatistics,
    path: str | os.PathLike,
    *,
    browser: Sequence[BrowserText] = (),
    provenance: Mapping[str, Any] | None = None,
    title: str | None = None,
    drawings: Sequence[Drawing] | None = None,
) -> Path:
    """Write the report atomically.

    Args:
        statistics: a probe's, also read by :meth:`ProbeStatistics.from_json`.
        path: path of the HTML file.
        browser: texts of the head browser, from :func:`.browser.browse`.
        provenance: rows of the last table, such as model, texts and command.
        title: title of the page.
        drawings: the figures, if they are already drawn.

    Returns:
        The path.

    Raises:
        AttnExtError: the file cannot be written.

    Example:
        >>> write_report(probe.statistics(), "report.html")  # doctest: +SKIP
        PosixPath('report.html')
    """
    path = as_path(path)
    drawings = draw(statistics) if drawings is None else drawings
    text = _render(statistics, browser, provenance or {}, title, drawings, None)
    if len(text.encode()) > LIMIT and browser:
        note = "The head browser was left out: with it this file would exceed 5 MiB."
        text = _render(statistics, (), provenance or {}, title, drawings, note)
    write_text(path, text)
    return path


def _render(
    statistics: ProbeStatistics,
    browser: Sequence[BrowserText],
    provenance: Mapping[str, Any],
    title: str | None,
    drawings: Sequence[Drawing],
    note: str | None,
) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("hf_attn_ext.probe.report", "templates"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    settings = statistics.settings
    figures = [
        {"kind": each.kind, "caption": each.caption, "data": base64.b64encode(each.svg).decode("ascii")}
        for each in drawings
    ]
    return environment.get_template(TEMPLATE).render(
        title=title or "Context similarity of attention heads",
        percent=f"{settings['percents'][0]:g}",
        percents=", ".join(f"{percent:g}%" for percent in settings["percents"]),
        resampled=settings.get("resampled") or "texts",
        layers=len(settings["layers"]),
        heads=len(settings["heads"]),
        findings=findings(statistics),
        verdicts=VERDICTS,
        notes=[*gaps(statistics), *([note] if note else [])],
        figures=figures,
        counts=[(label, f"{statistics.counts[name]:,}") for name, label in _COUNTS.items()],
        descriptions={name: statistic_named(name).description for name in list_statistics()},
        measures=MEASURES,
        provenance=[(name, str(value)) for name, value in provenance.items()],
        settings=[(name, _shown(value)) for name, value in settings.items()],
        browser=_script(_browser_data(statistics, browser)) if browser else None,
    )


def _browser_data(statistics: ProbeStatistics, browser: Sequence[BrowserText]) -> dict[str, Any]:
    layers, heads = statistics.settings["layers"], statistics.settings["heads"]
    percent = statistics.settings["percents"][0]
    numbers = []
    if len(layers) * len(heads) <= _MOST_HEADS:
        kinds = {name: statistic_named(name) for name in list_statistics()}
        for one in statistics.statistics:
            if one.name in kinds and one.measure == "dot" and one.percent in (None, percent) and one.heads is not None:
                fields = (one.values, one.interval[..., 0], one.interval[..., 1], one.chance, one.chance_matched)
                numbers.append(
                    {
                        "label": one.name.replace("_", " "),
                        "share": kinds[one.name].unit == "share",
                        "values": [rounded(field) for field in fields],
                    }
                )
    return {
        "layers": list(layers),
        "heads": list(heads),
        "percent": percent,
        "numbers": numbers,
        "texts": [text.to_dict() for text in browser],
    }


def _script(data: dict[str, Any]) -> Any:
    """JSON for a script element, escaped so that no text can end the element."""
    from markupsafe import Markup

    return Markup(json.dumps(data, separators=(",", ":"), ensure_ascii=True).replace("<", "\\u003c"))


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        whole = [v for v in value if isinstance(v, int)]
        if len(whole) == len(value) > 2 and whole == list(range(whole[0], whole[-1] + 1)):
            return f"{whole[0]} to {whole[-1]}"
        return ", ".join(f'"{each}"' if isinstance(each, str) else _shown(each) for each in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
