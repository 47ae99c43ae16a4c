"""Start times: imports and the quick commands, each in fresh processes, in CPU time (user and system).

The baseline imports torch and Transformers' auto classes and loads them. ``transformers.modeling_utils`` has a row of
its own: the package registers its attention function there, and every model of Transformers imports it.
"""

from __future__ import annotations

import dataclasses
import resource
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from rich.table import Table

from benchmarks import checkout_environment
from benchmarks.speed.attention.report import make_table, show_time
from benchmarks.speed.measuring.machine import describe_machine
from benchmarks.speed.measuring.timing import Timing
from hf_attn_ext.errors import AttnExtError

AUTO_CLASSES = "import torch; from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer"
COMMAND = "import sys, hf_attn_ext_launcher; sys.argv[0] = 'hf-attn-ext'; hf_attn_ext_launcher.run()"
BASE, MODELS, PACKAGE, LIST = (
    "torch and auto classes",
    "and transformers.modeling_utils",
    "and hf_attn_ext",
    "hf-attn-ext list",
)
CONTESTANTS = {  # what `python` is called with, by name
    BASE: ("-c", AUTO_CLASSES),
    MODELS: ("-c", f"{AUTO_CLASSES}; import transformers.modeling_utils"),
    PACKAGE: ("-c", f"{AUTO_CLASSES}; import hf_attn_ext"),
    "hf-attn-ext --version": ("-c", COMMAND, "--version"),
    LIST: ("-c", COMMAND, "list"),
}
BARS = {"ratio": 1.1, "list": 1.0}


@dataclasses.dataclass(frozen=True)
class StartBench:
    """Settings of :func:`bench_start`."""

    repeats: int = 5


def bench_start(settings: StartBench, progress: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Run the benchmark and return its report.

    Returns:
        A dictionary fit for JSON: ``machine``, ``settings``, ``rows`` (one per contestant: CPU ``seconds`` of one
        process, and ``ratio`` of the medians to that of the baseline) and ``bars``.

    Raises:
        AttnExtError: a process failed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for turn in range(settings.repeats):
        progress(f"turn {turn + 1} of {settings.repeats}")
        for name, arguments in CONTESTANTS.items():
            seconds[name].append(cpu_seconds(name, arguments))
    timings = {name: Timing(tuple(measured)) for name, measured in seconds.items()}
    base = timings[BASE].median
    return {
        "benchmark": "start",
        "machine": describe_machine("cpu"),
        "settings": dataclasses.asdict(settings),
        "rows": [
            {"name": name, "seconds": timing.as_dict(), "ratio": timing.median / base}
            for name, timing in timings.items()
        ],
        "bars": [
            _bar("import hf_attn_ext, times the auto classes: at most 1.1", timings[PACKAGE].median / base, "ratio"),
            _bar("hf-attn-ext list, seconds: at most 1", timings[LIST].median, "list"),
        ],
    }


def cpu_seconds(name: str, arguments: tuple[str, ...]) -> float:
    """Return the CPU time of ``python *arguments``, user and system, in seconds.

    Raises:
        AttnExtError: the process failed.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *arguments], env=checkout_environment(), capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise AttnExtError(f"{name} failed: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def start_heading(report: dict[str, Any]) -> str:
    """Return one paragraph: machine, versions, repeats."""
    machine = report["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['processor']}, {machine['cores']} cores; {versions}; CPU time, median of "
        f"{report['settings']['repeats']} fresh processes, in turns"
    )


def start_tables(report: dict[str, Any]) -> list[Table]:
    """Return one table of all contestants."""
    table = make_table("one process", ["milliseconds", "times the auto classes"])
    for row in report["rows"]:
        table.add_row(row["name"], show_time(row), f"{row['ratio']:.2f}")
    return [table]


def start_notes(report: dict[str, Any]) -> list[str]:
    """Return a line per bar."""
    return [f"{bar['name']}: {bar['value']:.3g}, {'met' if bar['met'] else 'NOT met'}" for bar in report["bars"]]


def _bar(name: str, value: float, limit: str) -> dict[str, Any]:
    return {"name": name, "value": value, "met": value <= BARS[limit]}
