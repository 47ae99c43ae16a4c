"""Reports as people read them: tables for the terminal, and the JSON file, whole or not there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.speed.measuring.figures import Crossover
from hf_attn_ext._util.files import write_json
from hf_attn_ext.errors import AttnExtError

from .contestants import PASSES
from .summary import Rows

Report = dict[str, Any]
MIB = 2**20


def check_folder(folder: Path) -> Path:
    """Make the folder of a report.

    Raises:
        AttnExtError: there is a file of that name.
    """
    if folder.exists() and not folder.is_dir():
        raise AttnExtError(f"--out {str(folder)!r} is a file; name a folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_report(report: Report, path: Path) -> None:
    """Write JSON, whole or not at all."""
    write_json(path, report, indent=1)


def heading(report: Report) -> str:
    """One paragraph: machine, versions, sizes."""
    machine, settings = report["machine"], report["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    work = settings["workload"]
    return (
        f"{machine['processor']}, {machine['threads']} threads, {machine['device']}; {versions}; "
        f"batch {work['batch']}, {work['heads']} heads x {work['head_dim']}, {work['dtype']}; "
        f"median of up to {settings['repeats']} calls in turns, {settings['budget']:g} s a contestant"
    )


def attention_tables(report: Report) -> list[Table]:
    """All tables of ``bench attention``: times, speed against sdpa, peak memory, and the summary."""
    rows = Rows(report)
    tables = []
    for direction in rows.directions:
        for which in PASSES:
            tables.append(
                _lengths_table(rows, direction, which, "milliseconds, median ± half the quartiles' distance", show_time)
            )
            tables.append(_speed_table(rows, direction, which))
            if report["settings"]["memory"]:
                tables.append(_lengths_table(rows, direction, which, "peak memory, MiB", _peak))
        tables.append(_summary_table(rows, direction))
    return tables


def notes(report: Report) -> list[str]:
    """Who ran as what, what was left out and why, and the rates of the machine."""
    if report["benchmark"] == "decode":
        return [f"{row['name']}: {row['note']}" for row in report["rows"]]
    lines = [
        f"{contestant['name']}: {contestant['note']}" for contestant in report["contestants"] if contestant["note"]
    ]
    left_out: dict[tuple[str, str], list[str]] = {}
    for row in report["measurements"]:
        for key, what in (("skipped", "not run"), ("no_peak", "no peak memory")):
            if row[key] and not (key == "no_peak" and row["skipped"]) and row[key] != "not measured":
                where = f"{row['direction']} {row['pass']} {row['length']:,}"
                left_out.setdefault((row["contestant"], f"{what}: {row[key]}"), []).append(where)
    lines += [f"{name} {why} ({_shortened(places)})" for (name, why), places in left_out.items()]
    rates = report["rates"]
    lines.append(
        f"the machine's rates: {rates['products'] / 1e9:.1f} GFLOP/s in matrix products, "
        f"{rates['exponentials'] / 1e9:.2f} G exponentials/s, {rates['cosines'] / 1e9:.2f} G cosines/s"
    )
    return lines


def _shortened(places: list[str]) -> str:
    return "; ".join(places) if len(places) <= 3 else f"{places[0]}; ... {places[-1]}; {len(places)} times"


def show_time(row: dict[str, Any]) -> str:
    """Return milliseconds and their spread as text."""
    timing = row.get("seconds")
    if not timing:
        return "-"
    half = (timing["upper"] - timing["lower"]) / 2
    milliseconds = 1000 * timing["median"]
    shown = f"{milliseconds:.3g}" if milliseconds < 999.5 else f"{milliseconds:,.0f}"
    return f"{shown} ±{half / timing['median']:.0%}"


def _peak(row: dict[str, Any]) -> str:
    peak = row.get("peak_bytes")
    return "-" if peak is None else show_mebibytes(peak)


def show_mebibytes(size: int) -> str:
    """Return a size in MiB as text."""
    return f"{size / MIB:.3g}" if size < 100 * MIB else f"{size / MIB:,.0f}"


def _lengths_table(rows: Rows, direction: str, which: str, what: str, cell: Callable[[dict[str, Any]], str]) -> Table:
    table = make_table(f"{direction}, {which}: {what}", [f"{length:,}" for length in rows.lengths])
    for name in rows.names:
        table.add_row(name, *(cell(rows.row(direction, which, name, length)) for length in rows.lengths))
    return table


def _speed_table(rows: Rows, direction: str, which: str) -> Table:
    columns = [*(f"{length:,}" for length in rows.lengths), "faster from"]
    table = make_table(f"{direction}, {which}: times faster than sdpa (below 1 is slower)", columns)
    theirs = rows.seconds(direction, which, "sdpa")
    crossings = {
        row["contestant"]: row["crossover"][which]
        for row in rows.report["summary"]
        if row["direction"] == direction and row["crossover"][which]
    }
    for name in rows.names:
        if name != "sdpa":
            ours = rows.seconds(direction, which, name)
            cells = [show_factor(a / b if a and b else None) for a, b in zip(theirs, ours, strict=True)]
            found = Crossover(**crossings[name]) if name in crossings else "-"
            table.add_row(name, *cells, str(found))
    return table


def _summary_table(rows: Rows, direction: str) -> Table:
    chosen = [row for row in rows.report["summary"] if row["direction"] == direction]
    length, limit = chosen[0]["length"], chosen[0]["limit_length"]
    ranges = [row["time_growth"][which] for row in chosen for which in PASSES if row["time_growth"][which]]
    span = f" {min(x['from'] for x in ranges):,}-{max(x['to'] for x in ranges):,}" if ranges else ""
    columns = [
        f"x sdpa {length:,}",
        f"x performer-pytorch {length:,}",
        f"memory / eager {length:,}",
        f"time growth{span}",
        "memory growth",
        f"share of limit {limit:,}",
    ]
    table = make_table(f"{direction}: forward | forward+backward", columns)
    for row in chosen:
        table.add_row(
            row["contestant"],
            _pair(show_factor, row["speed_to_sdpa"]),
            _pair(show_factor, row["speed_to_performer_pytorch"]),
            _pair(_percent, row["memory_to_eager"]),
            _pair(show_slope, row["time_growth"]),
            _pair(show_slope, row["memory_growth"]),
            _pair(_percent, row["limit_share"]),
        )
    return table


def decode_tables(report: Report) -> list[Table]:
    """The tables of ``bench decode``: time a token, speed against sdpa, state, and short prompts."""
    contexts = report["settings"]["contexts"]
    columns = [f"{context:,}" for context in contexts]
    tables = []
    times = make_table(
        "milliseconds a token after so many, median ± half the quartiles' distance", [*columns, "growth"]
    )
    speed = make_table("times faster than sdpa with the default cache (below 1 is slower)", [*columns, "faster from"])
    state = make_table("state, MiB", columns)
    for row in report["rows"]:
        times.add_row(row["name"], *(show_time({"seconds": x}) for x in row["seconds"]), show_slope(row["growth"]))
        state.add_row(row["name"], *("-" if x is None else show_mebibytes(x) for x in row["state_bytes"]))
        if row["crossover"]:
            cells = [show_factor(x) for x in row["speed_to_sdpa"]]
            speed.add_row(row["name"], *cells, str(Crossover(**row["crossover"])))
    tables += [times, speed, state]
    short = report["short"]
    if short:
        title = f"generate(): {short['new_tokens']} tokens after a prompt of {short['prompt']}"
        table = make_table(title, ["milliseconds", "x sdpa"])
        for row in short["rows"]:
            table.add_row(row["name"], show_time(row), show_factor(row["speed_to_sdpa"]))
        tables.append(table)
    return tables


def make_table(title: str, columns: Iterable[str]) -> Table:
    """Return an empty table with a first column for names."""
    table = Table(title=title)
    table.add_column("")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _pair(cell: Callable[[Any], str], values: dict[str, Any]) -> str:
    return " | ".join(cell(values[which]) for which in PASSES)


def show_factor(value: float | None) -> str:
    """Return a ratio as text."""
    return "-" if value is None else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def show_slope(value: dict[str, float] | None) -> str:
    """Return a growth exponent as text."""
    return "-" if value is None else f"{value['slope']:.2f}"
