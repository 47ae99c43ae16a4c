"""The report of ``bench order`` as people read it: tables, and a log-log picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.speed.attention.plot import DASHES, MARKERS, draw_panels
from benchmarks.speed.attention.report import make_table, show_factor, show_mebibytes, show_slope, show_time

from .order_contestants import NAMES, OURS, SDPA

_COLOURS = dict(zip(NAMES, ("#0b6e4f", "#30459c", "#d1495b"), strict=True))


def order_tables(report: dict[str, Any]) -> list[Table]:
    """Times, speed against sdpa, memory, preparation, and the bars."""
    lengths, names = report["settings"]["lengths"], report["settings"]["masks"]
    rows = {(row["mask"], row["length"]): row for row in report["rows"]}
    slopes = {(row["mask"], row["contestant"], row["quantity"]): row for row in report["growth"]}
    columns = [f"{length:,}" for length in lengths]
    kernel = report["settings"]["kernel"]
    times = make_table(
        "forward and backward, milliseconds, median ± half the quartiles' distance", [*columns, "log-log slope"]
    )
    speed = make_table("times faster than sdpa with the dense mask (below 1 is slower)", columns)
    memory = make_table("peak memory, MiB", [*columns, "log-log slope"])
    plans = make_table("prepared once an order, milliseconds", ["chains", *columns])
    for name in names:
        mine = [rows.get((name, length), {}) for length in lengths]
        for who, label in ((OURS, kernel), (SDPA, "sdpa")):
            found = [row.get(who, {}) for row in mine]
            times.add_row(f"{name}, {label}", *map(show_time, found), show_slope(slopes.get((name, who, "time"))))
            peaks = [row.get("peak_bytes") for row in found]
            if any(peaks):
                cells = ["-" if peak is None else show_mebibytes(peak) for peak in peaks]
                memory.add_row(f"{name}, {label}", *cells, show_slope(slopes.get((name, who, "memory"))))
        if any(row.get("speed_to_sdpa") for row in mine):
            speed.add_row(name, *(show_factor(row.get("speed_to_sdpa")) for row in mine))
        prepared = [f"{1000 * row['prepared_seconds']:.3g}" if row else "-" for row in mine]
        plans.add_row(name, f"{max(row['chains'] for row in mine if row)}", *prepared)
    return [table for table in (times, speed, memory, plans, _bars(report)) if table.row_count]


def order_notes(report: dict[str, Any]) -> list[str]:
    """What was left out, and why."""
    reasons: dict[str, list[str]] = {}
    for row in report["rows"]:
        for who in (OURS, SDPA):
            if row[who]["skipped"]:
                what = f"{who}: {row[who]['skipped']}"
                reasons.setdefault(what, []).append(f"{row['mask']} {row['length']:,}")
    return [f"{reason} ({'; '.join(places)})" for reason, places in reasons.items()]


def draw_order(report: dict[str, Any], path: Path) -> None:
    """Draw time and memory over positions, one line per mask and contestant."""
    lines = []
    for place, name in enumerate(report["settings"]["masks"]):
        rows = [row for row in report["rows"] if row["mask"] == name]
        for who, label in ((OURS, report["settings"]["kernel"]), (SDPA, "sdpa, dense mask")):
            style = {
                "color": _COLOURS[name],
                "linestyle": DASHES[0 if who == OURS else 1],
                "marker": MARKERS[place],
                "markersize": 4,
                "linewidth": 2.0 if who == OURS else 1.4,
            }
            found = [row[who] for row in rows]
            seconds, peaks = [x["seconds"] for x in found], [x["peak_bytes"] for x in found]
            lines.append((f"{name}: {label}", [row["positions"] for row in rows], seconds, peaks, style))
    draw_panels(lines, report["settings"]["lengths"], "forward+backward", "positions", path)


def _bars(report: dict[str, Any]) -> Table:
    table = make_table("bars, at the worst mask", ["measured", "of", "met"])
    for bar in report["bars"]:
        bound = "at least" if bar["length"] else "at most"
        label = (
            f"{bar['bar']}{f' at {bar_length:,}' if (bar_length := bar['length']) else ''}: {bound} {bar['limit']:g}"
        )
        table.add_row(label, f"{bar['worst']:.3g}", bar["mask"], "yes" if bar["met"] else "NO")
    return table
