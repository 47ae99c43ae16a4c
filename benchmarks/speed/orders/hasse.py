"""``bench hasse``: the order behind a mask, against networkx at the length it can reach, alone at those it cannot."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

import networkx
import torch

from benchmarks.speed.attention.bench import check_lengths, check_limits, check_names
from benchmarks.speed.measuring.figures import growth
from benchmarks.speed.measuring.machine import describe_machine, set_threads
from benchmarks.speed.measuring.memory import PeakServer
from benchmarks.speed.measuring.timing import Timing, measure
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import Poset, minimal_joint_task

from .hasse_masks import NAMES, MaskKind, autoregressive_family, butterfly_family, find_kind, find_order

LENGTHS = (512, 1024, 2048, 4096, 8192)
PACKED = (16384, 32768)
BARS = {
    "ratio": (512, 200.0),  # times faster than networkx
    "seconds": (8192, 5.0),
    "memory": (8192, 2**30),  # bytes beyond the mask
    "packed": (32768, 60.0),  # seconds
    "joint": (None, 10.0),  # seconds
}
FAMILIES = {"autoregressive": (autoregressive_family, 256), "butterfly": (butterfly_family, 64)}


@dataclasses.dataclass(frozen=True)
class HasseBench:
    """What is measured.

    Attributes:
        lengths: positions of dense masks, increasing.
        packed: positions of masks that exist as bit rows alone, increasing; may be empty.
        masks: names of :data:`.hasse_masks.KINDS`.
        networkx_limit: the longest length that networkx is run at.
        threads: None leaves torch's number.
        repeats, budget: counted calls at most, and their seconds, of one mask at one length.
        memory: measure peak memory too.
        families: derive the joint tasks too.

    Raises:
        AttnExtError: a value that makes no sense, an unknown mask.
    """

    lengths: Sequence[int] = LENGTHS
    packed: Sequence[int] = PACKED
    masks: Sequence[str] = NAMES
    networkx_limit: int = 512
    threads: int | None = None
    repeats: int = 15
    budget: float = 3.0
    memory: bool = True
    families: bool = True

    def __post_init__(self) -> None:
        check_lengths(self.lengths)
        if self.packed:
            check_lengths(self.packed, "packed lengths")
        for name in self.masks:
            find_kind(name)
        check_names(self.masks, "masks")
        check_limits(self.repeats, self.budget, self.threads)


def bench_hasse(
    settings: HasseBench,
    progress: Callable[[str], None] = lambda text: None,
    save: Callable[[dict[str, Any]], None] = lambda report: None,
) -> dict[str, Any]:
    """Run the benchmark and return its report.

    Args:
        settings: what to measure.
        progress: told what comes next.
        save: given the unfinished report (``"complete": False``) after every mask.

    Returns:
        A dictionary fit for JSON: ``machine``, ``settings``, ``rows`` (a mask and length each: positions, classes,
        covers, ``seconds``, ``networkx`` with its seconds and whether it found the same diagram, ``ratio``, and
        ``peak_bytes`` beyond the mask), ``growth`` by mask, ``joint`` (a family each) and ``bars``, each with what was
        measured at its worst.
    """
    threads = set_threads(settings.threads)
    machine = describe_machine("cpu")
    machine["versions"] |= {name: metadata.version(name) for name in ("numpy", "networkx")}
    report: dict[str, Any] = {
        "benchmark": "hasse",
        "complete": False,
        "machine": machine,
        "settings": dataclasses.asdict(settings),
        "rows": [],
        "growth": {},
        "joint": [],
        "bars": [],
    }
    with PeakServer() as server:
        for kind in map(find_kind, settings.masks):
            for packed, lengths in ((False, settings.lengths), (True, settings.packed)):
                for length in lengths:
                    if length > kind.longest:
                        continue
                    progress(f"{kind.name}, {length:,} positions{', packed' if packed else ''}")
                    row = _row(settings, kind, length, packed)
                    if settings.memory:
                        request = {"what": "order", "mask": kind.name, "positions": length, "packed": packed}
                        row["peak_bytes"], row["no_peak"] = server.ask(request | {"threads": threads})
                    report["rows"].append(row)
            mine = [row for row in report["rows"] if row["mask"] == kind.name]
            sizes, seconds = [row["length"] for row in mine], [row["seconds"]["median"] for row in mine]
            report["growth"][kind.name] = growth(sizes, seconds, low=min(512, *sizes), high=max(sizes))
            save(report)
    if settings.families:
        for name, (family, tokens) in FAMILIES.items():
            progress(f"joint task of the {name} family, {tokens} tokens")
            report["joint"].append(_joint(settings, name, family, tokens))
    report["bars"] = check_bars(report)
    report["complete"] = True
    save(report)
    return report


def check_bars(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each bar that was measured: its value at the worst of the masks that count, where, and whether it is met.

    The masks that count are those whose :class:`.MaskKind` says so.
    """
    counted = [row for row in report["rows"] if find_kind(row["mask"]).bars]
    measured = {
        "ratio": [(row["ratio"], row) for row in counted if not row["packed"]],
        "seconds": [(row["seconds"]["median"], row) for row in counted if not row["packed"]],
        "memory": [(row["peak_bytes"], row) for row in counted if not row["packed"]],
        "packed": [(row["seconds"]["median"], row) for row in counted if row["packed"]],
        "joint": [(row["seconds"]["median"], row | {"length": None, "mask": row["family"]}) for row in report["joint"]],
    }
    bars = []
    for name, (length, limit) in BARS.items():
        values = [(value, row["mask"]) for value, row in measured[name] if row["length"] == length and value]
        if values:
            value, where = min(values) if name == "ratio" else max(values)
            met = value >= limit if name == "ratio" else value <= limit
            bars.append({"bar": name, "length": length, "limit": limit, "worst": value, "mask": where, "met": met})
    return bars


def _row(settings: HasseBench, kind: MaskKind, length: int, packed: bool) -> dict[str, Any]:
    mask = kind.packed(length) if packed else kind.dense(length)
    calls: dict[str, Callable[[], object]] = {"hasse": lambda: find_order(mask)}
    theirs = None
    if not packed and length <= settings.networkx_limit:
        start = time.perf_counter()
        graph = networkx.from_numpy_array(mask.numpy().T, create_using=networkx.DiGraph)
        theirs = {"building": time.perf_counter() - start}
        calls["networkx"] = lambda: networkx.transitive_reduction(networkx.condensation(graph))
    timings, failed = measure(calls, settings.repeats, settings.budget)
    if failed:
        name, reason = next(iter(failed.items()))
        raise AttnExtError(f"{kind.name} at {length:,} positions: {name} {reason}; give fewer positions")
    poset = find_order(mask)
    if theirs:
        theirs |= {"seconds": timings["networkx"].as_dict(), "same": _same(poset, graph)}
    return {
        "mask": kind.name,
        "length": length,
        "packed": packed,
        "positions": poset.num_positions,
        "classes": len(poset),
        "covers": poset.num_covers,
        "seconds": timings["hasse"].as_dict(),
        "networkx": theirs,
        "ratio": timings["networkx"].median / timings["hasse"].median if theirs else None,
        "peak_bytes": None,
        "no_peak": "not measured",
    }


def _same(poset: Poset, graph: networkx.DiGraph) -> bool:
    """Whether networkx finds the same classes and covers."""
    condensed = networkx.condensation(graph)
    members = {number: tuple(sorted(found)) for number, found in condensed.nodes(data="members")}
    theirs = {(members[lower], members[upper]) for lower, upper in networkx.transitive_reduction(condensed).edges}
    ours = {(poset.classes[lower], poset.classes[upper]) for lower, upper in poset.covers}
    return set(members.values()) == set(poset.classes) and theirs == ours


def _joint(settings: HasseBench, name: str, family: Callable[[int], list], tokens: int) -> dict[str, Any]:
    """Time the derivation from a family given with dense masks, orders of the single tasks included, and its proof."""
    seconds, proofs = [], []
    while (len(seconds) < settings.repeats and sum(seconds) + sum(proofs) < settings.budget) or not seconds:
        tasks = family(tokens)  # anew: a task keeps its order once it is found
        start = time.perf_counter()
        joint = minimal_joint_task(tasks)
        seconds.append(time.perf_counter() - start)
        start = time.perf_counter()
        verification = joint.verify()
        proofs.append(time.perf_counter() - start)
    return {
        "family": name,
        "tokens": tokens,
        "tasks": len(tasks),
        "nodes": sum(len(task) for task in tasks),
        "positions": len(joint),
        "causal": bool(torch.equal(joint.mask, torch.ones_like(joint.mask).tril())),
        "seconds": Timing(tuple(seconds)).as_dict(),
        "verify_seconds": Timing(tuple(proofs)).as_dict(),
        "verified": bool(verification),
    }
