"""The reports' pictures: log-log, one line a contestant, coloured by family."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_attn_ext._util.files import atomic_write

from .contestants import BOTH, CONTROL, FLEXFORMER, OTHER, PACKAGE, PASSES, SOFTMAX
from .summary import Rows

# Each family's colours, dark to light, and the dashes that tell its members apart where print is grey.
PALETTE = {
    SOFTMAX: ("#111111", "#8c8c8c"),
    PACKAGE: ("#d1495b",),
    FLEXFORMER: ("#0b6e4f", "#2fa36b", "#86c232", "#00a6a6", "#5b8c5a"),
    OTHER: ("#30459c", "#6f7fd6", "#8e44ad", "#c08be0", "#3fa7e0", "#00518a"),
    CONTROL: ("#b9a27c",),
}
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKERS = "osD^vPX"


def draw_attention(report: dict[str, Any], path: Path) -> None:
    """Draw time and memory over length: one row per direction, one column per pass, and one for memory."""
    rows = Rows(report)
    styles = _styles(report["contestants"])
    with_memory = any(row["peak_bytes"] for row in report["measurements"])
    columns = [(f"{which}, milliseconds", which, "time") for which in PASSES]
    if with_memory:
        columns.append((f"{BOTH}, peak MiB", BOTH, "memory"))
    figure, axes = _figure(len(rows.directions), len(columns))
    drawn: dict[str, Any] = {}
    for line, direction in zip(axes, rows.directions, strict=True):
        for axis, (title, which, kind) in zip(line, columns, strict=True):
            for name in rows.names:
                if kind == "time":
                    found = [rows.row(direction, which, name, length).get("seconds") for length in rows.lengths]
                    artist = _timings(axis, rows.lengths, found, styles[name])
                else:
                    artist = _line(axis, rows.lengths, rows.peaks(direction, which, name), 2**-20, styles[name])
                if artist is not None:
                    drawn.setdefault(name, artist)
            _finish(axis, f"{direction}: {title}", rows.lengths, "tokens")
    widths = {contestant["name"]: contestant["feature_dim"] for contestant in report["contestants"]}
    names = [name for name in rows.names if name in drawn]
    labels = [f"{name} ({widths[name]})" if widths[name] else name for name in names]
    _legend(figure, [drawn[name] for name in names], labels, "name (features)")
    _save(figure, path)


def draw_decode(report: dict[str, Any], path: Path) -> None:
    """Draw time a token and state over the context."""
    contexts = report["settings"]["contexts"]
    styles = _styles(report["rows"])
    figure, axes = _figure(1, 2)
    drawn = []
    for row in report["rows"]:
        drawn.append(_timings(axes[0][0], contexts, row["seconds"], styles[row["name"]]))
        _line(axes[0][1], contexts, row["state_bytes"], 2**-20, styles[row["name"]])
    _finish(axes[0][0], "decoding: milliseconds a token", contexts, "tokens before")
    _finish(axes[0][1], "decoding: state, MiB", contexts, "tokens before")
    kept = [(artist, row["name"]) for artist, row in zip(drawn, report["rows"], strict=True) if artist is not None]
    _legend(figure, [artist for artist, _ in kept], [name for _, name in kept])
    _save(figure, path)


def draw_panels(
    lines: Sequence[tuple[str, Sequence[int], Sequence[dict | None], Sequence[float | None], dict[str, Any]]],
    lengths: Sequence[int],
    title: str,
    label: str,
    path: Path,
) -> None:
    """Draw time and, where there is any, memory over length.

    Args:
        lines: name, lengths, timings, bytes and style of each.
        lengths: the ticks.
        title: what was called.
        label: of the horizontal axis.
    """
    with_memory = any(any(peaks) for _, _, _, peaks, _ in lines)
    figure, axes = _figure(1, 1 + with_memory)
    artists = [_timings(axes[0][0], at, seconds, style) for _, at, seconds, _, style in lines]
    _finish(axes[0][0], f"{title}, milliseconds", lengths, label)
    if with_memory:
        for _, at, _, peaks, style in lines:
            _line(axes[0][1], at, peaks, 2**-20, style)
        _finish(axes[0][1], f"{title}, peak MiB", lengths, label)
    kept = [(artist, line[0]) for artist, line in zip(artists, lines, strict=True) if artist is not None]
    _legend(figure, [artist for artist, _ in kept], [name for _, name in kept])
    _save(figure, path)


def _styles(everybody: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """A colour from the family, dashes and a marker from the place in it."""
    styles, seen = {}, dict.fromkeys(PALETTE, 0)
    for contestant in everybody:
        family = contestant["family"]
        place, colours = seen[family], PALETTE[family]
        seen[family] += 1
        styles[contestant["name"]] = {
            "color": colours[place % len(colours)],
            "linestyle": DASHES[place % len(DASHES)],
            "marker": MARKERS[place % len(MARKERS)],
            "markersize": 4,
            "linewidth": 2.2 if family == SOFTMAX else 1.6,
            "zorder": 3 if family == SOFTMAX else 2,
        }
    return styles


def _figure(rows: int, columns: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.8 + 4.4 * columns, 0.5 + 4.0 * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _timings(axis: Any, lengths: Sequence[int], timings: Sequence[dict | None], style: dict[str, Any]) -> Any:
    """The medians as a line, the quartiles as a band; milliseconds."""
    points = [(n, t) for n, t in zip(lengths, timings, strict=True) if t]
    if not points:
        return None
    x = [n for n, _ in points]
    lower, upper = ([1000 * t[bound] for _, t in points] for bound in ("lower", "upper"))
    axis.fill_between(x, lower, upper, color=style["color"], alpha=0.12, linewidth=0)
    return _line(axis, x, [t["median"] for _, t in points], 1000, style)


def _line(axis: Any, x: Sequence[int], y: Sequence[float | None], factor: float, style: dict[str, Any]) -> Any:
    points = [(a, factor * b) for a, b in zip(x, y, strict=True) if b]
    if not points:
        return None
    return axis.plot(*zip(*points, strict=True), **style)[0]


def _finish(axis: Any, title: str, lengths: Sequence[int], label: str) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_title(title, fontsize=10)
    axis.set_xlabel(label)
    axis.set_xticks(lengths, [f"{n // 1024}k" if n >= 1024 and n % 1024 == 0 else str(n) for n in lengths])
    axis.xaxis.set_minor_locator(NullLocator())
    bottom, top = axis.get_ylim()
    decades = math.log10(top / bottom)
    labelled = (1, 2, 3, 5, 7) if decades < 1 else (1, 2, 5) if decades < 2 else (1, 3) if decades < 4 else (1,)
    axis.yaxis.set_major_locator(LogLocator(base=10, subs=labelled))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}" if y < 1000 else f"{y:,.0f}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.grid(True, which="major", color="#dddddd", linewidth=0.7)
    axis.grid(True, which="minor", axis="y", color="#f0f0f0", linewidth=0.5)
    axis.set_axisbelow(True)


def _legend(figure: Any, artists: list[Any], labels: list[str], title: str | None = None) -> None:
    options = {"loc": "outside right upper", "frameon": False, "fontsize": 9, "handlelength": 3.2}
    figure.legend(artists, labels, title=title, title_fontsize=9, alignment="left", **options)


def _save(figure: Any, path: Path) -> None:
    with atomic_write(path) as temporary_path:
        figure.savefig(temporary_path, format="png", dpi=130)
