"""The report of ``bench hasse`` as people read it."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from benchmarks.speed.attention.report import MIB, make_table, show_factor, show_mebibytes, show_slope, show_time

from .hasse_masks import find_kind

_BARS = {
    "ratio": "times faster than networkx at {length}: at least {limit:g}",
    "seconds": "seconds at {length}: at most {limit:g}",
    "memory": "MiB beyond the mask at {length}: at most {limit:,.0f}",
    "packed": "seconds at {length}, packed: at most {limit:g}",
    "joint": "seconds for a joint task: at most {limit:g}",
}


def hasse_heading(report: dict[str, Any]) -> str:
    """One paragraph: machine, versions, calls."""
    machine, settings = report["machine"], report["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} threads; {versions}; median of up to "
        f"{settings['repeats']} calls, {settings['budget']:g} s a mask and length, in turns with networkx"
    )


def hasse_tables(report: dict[str, Any]) -> list[Table]:
    """Times and growth, networkx, memory, joint tasks, and the bars."""
    lengths = [(length, False) for length in report["settings"]["lengths"]]
    lengths += [(length, True) for length in report["settings"]["packed"]]
    columns = [f"{length:,}{' packed' if packed else ''}" for length, packed in lengths]
    rows = {(row["mask"], row["length"], row["packed"]): row for row in report["rows"]}
    times = make_table(
        "milliseconds from a mask to classes, order and covers, median ± half the quartiles' distance",
        [*columns, "log-log slope"],
    )
    memory = make_table("peak memory beyond the mask, MiB", columns)
    rivals = make_table(
        "against networkx: condensation and transitive reduction of a graph that is built already",
        ["positions", "classes", "covers", "building", "networkx", "ours", "times faster", "same diagram"],
    )
    for name in report["settings"]["masks"]:
        mine = [rows.get((name, length, packed), {}) for length, packed in lengths]
        times.add_row(name, *map(show_time, mine), show_slope(report["growth"][name]))
        peaks = [row.get("peak_bytes") for row in mine]
        if any(peak is not None for peak in peaks):
            memory.add_row(name, *("-" if peak is None else show_mebibytes(peak) for peak in peaks))
        for row in mine:
            if row.get("networkx"):
                theirs = row["networkx"]
                numbers = (f"{row[key]:,}" for key in ("positions", "classes", "covers"))
                shown = show_time({"seconds": _only(theirs["building"])}), show_time(theirs), show_time(row)
                rivals.add_row(name, *numbers, *shown, show_factor(row["ratio"]), "yes" if theirs["same"] else "NO")
    tables = [times, rivals, memory, _joint_table(report), _bars_table(report)]
    return [table for table in tables if table.row_count]


def hasse_notes(report: dict[str, Any]) -> list[str]:
    """What each mask is."""
    return [
        f"{name}: {find_kind(name).note}{'' if find_kind(name).bars else ' (no bar)'}"
        for name in report["settings"]["masks"]
    ]


def _joint_table(report: dict[str, Any]) -> Table:
    columns = ["tokens", "tasks", "their nodes", "nodes", "milliseconds", "verify", "verified"]
    table = make_table("minimal joint tasks, from dense masks", columns)
    for row in report["joint"]:
        numbers = (f"{row[key]:,}" for key in ("tokens", "tasks", "nodes", "positions"))
        shown = show_time(row), show_time({"seconds": row["verify_seconds"]}), "yes" if row["verified"] else "NO"
        table.add_row(row["family"], *numbers, *shown)
    return table


def _bars_table(report: dict[str, Any]) -> Table:
    table = make_table("bars, at the worst of the masks that count", ["measured", "of", "met"])
    for bar in report["bars"]:
        unit = MIB if bar["bar"] == "memory" else 1
        length = f"{bar['length']:,}" if bar["length"] else ""
        label = _BARS[bar["bar"]].format(length=length, limit=bar["limit"] / unit)
        table.add_row(label, f"{bar['worst'] / unit:,.3g}", bar["mask"], "yes" if bar["met"] else "NO")
    return table


def _only(seconds: float) -> dict[str, float]:
    """A single call as a timing."""
    return {"median": seconds, "lower": seconds, "upper": seconds}
