"""``results.json``: everything a run measured, with what it takes to repeat it; and the table that shows it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from rich.table import Table

from hf_attn_ext._util.versions import versions
from hf_attn_ext.training.data.loading import TaskData

from . import metrics as task_metrics
from .config import DistillConfig
from .run_folder import RunFolder

TITLES = {
    "teacher": "teacher (softmax)",
    "control": "control (no attention)",
    "converted": "converted, untrained",
    "stage1": "after stage 1",
    "stage2": "after stage 2",
}
PACKAGES = ("hf-attn-ext", "torch", "transformers", "accelerate", "datasets", "scikit-learn")


def collect(
    phases: Mapping[str, Mapping[str, Any]],
    config: DistillConfig,
    folder: RunFolder,
    data: TaskData,
    metric: str,
    steps: Mapping[str, int],
    tokens: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return the content of ``results.json``.

    Args:
        phases: what each phase measured, by name.
        config: the run's configuration.
        folder: has the logits, for errors of differences.
        data: the task.
        metric: the deciding metric.
        steps: steps of each trained phase.
        tokens: predicted tokens of each split, for language modelling.
    """
    labels = data.task_labels
    order = [name for name in TITLES if name in phases]
    report: dict[str, Any] = {
        "base_model": config.model.name,
        "task": labels.task,
        "metric": metric,
        "scores": {name: phases[name]["scores"] for name in order},
        "standard_errors": {name: phases[name].get("standard_errors") for name in order},
        "transfer": {name: phases[name]["transfer"] for name in order if "transfer" in phases[name]},
        "validation": {name: phases[name]["validation"] for name in order if phases[name].get("validation")},
        "skipped": {name: phases[name]["skipped"] for name in order if "skipped" in phases[name]},
        "data": {
            "name": data.name,
            "split": data.reported_on,
            "train": len(data.train),
            "validation": len(data.validation),
            "test": len(data.test) if data.reported_on == "test" else 0,
            "labels": labels.names,
            **({"tokens": dict(tokens)} if tokens else {}),
        },
        "seed": config.seed,
        "steps": dict(steps),
        "seconds": {name: phases[name].get("seconds") for name in order},
        "processes": folder.accelerator.num_processes,
        "mixed_precision": folder.accelerator.mixed_precision,
        "device": _device(folder),
        "versions": versions(*PACKAGES),
        "config": config.to_dict(),
    }
    report.update(_gap(report["scores"], folder, data, metric))
    return report


def _gap(scores: Mapping[str, Any], folder: RunFolder, data: TaskData, metric: str) -> dict[str, Any]:
    """Return the share of the gap between control and teacher that is closed, and whether there is a gap.

    The gap is how much better the teacher is: above 0 also for a metric that is better when it is lower.
    """
    if any(not scores.get(name) for name in ("teacher", "control", "stage2")):
        return {}
    name = task_metrics.gap_metric(metric)
    lower = name in task_metrics.LOWER_IS_BETTER
    teacher, control, student = (scores[phase][name] for phase in ("teacher", "control", "stage2"))
    gap = control - teacher if lower else teacher - control
    closed = control - student if lower else student - control
    result = {"gap": gap, "gap_metric": name, "gap_closed": closed / gap if gap else None}
    if not lower:
        result["share_of_teacher"] = student / teacher if teacher else None
    task = data.task_labels.task
    if name in task_metrics.metrics_of(task):
        first, second = folder.logits("teacher"), folder.logits("control")
        assert first is not None and second is not None  # written with the scores
        error = task_metrics.difference_error(data.test.labels, first, second, task, name)
        result["gap_standard_error"] = error
        result["gap_is_clear"] = gap > 2 * error
    return result


def _device(folder: RunFolder) -> str:
    device = folder.accelerator.device
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return (
        f"{device.type}, {torch.get_num_threads()} of {os.cpu_count()} threads" if device.type == "cpu" else str(device)
    )


def results_table(results: Mapping[str, Any]) -> Table:
    """Return a table of a run, one row a step, to print with rich.

    Args:
        results: the content of ``results.json``.
    """
    names = [*task_metrics.metrics_of(results["task"])]
    if results["metric"] in names:
        names = [results["metric"], *(name for name in names if name != results["metric"])]
    table = Table(
        title=f"{results['data']['name']}: {results['kernel']['kernel']} on the {results['data']['split']} split"
    )
    table.add_column("", no_wrap=True)
    for name in [*names, "output error", "KL (nats)"]:
        table.add_column(name, justify="right")
    for step, scores in results["scores"].items():
        errors = results["standard_errors"].get(step) or {}
        cells = []
        for name in names:
            if not scores:
                cells.append("-")
            elif name in errors:
                cells.append(f"{scores[name]:.4f} ± {errors[name]:.4f}")
            else:
                cells.append(f"{scores[name]:.4f}")
        transfer = results["transfer"].get(step)
        cells += [f"{transfer[name]:.4f}" for name in ("output_error", "kl")] if transfer else ["", ""]
        table.add_row(TITLES.get(step, step), *cells)
    if results.get("gap_closed") is not None:
        clear = "" if results.get("gap_is_clear", True) else " (the gap is below two standard errors: task too easy)"
        what = " in loss" if results["metric"] != results.get("gap_metric", results["metric"]) else ""
        closed = f"closes {100 * results['gap_closed']:.1f}% of the gap"
        table.caption = f"{closed}{what} between control and teacher{clear}"
    return table
