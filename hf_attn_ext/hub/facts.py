"""The content of a model card, gathered from a model's ``config.json`` and a run's ``results.json``."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Mapping
from typing import Any

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.families import LAYER_COUNTS
from hf_attn_ext.integration.names import CLASS_PREFIX

_HUB_NAME = re.compile(r"^[A-Za-z0-9][\w.-]*(/[\w.-]+)?$")
_LABELS = {
    "teacher": "teacher (softmax)",
    "control": "control without attention",
    "converted": "converted, untrained",
    "untrained": "converted, untrained",
    "stage1": "after stage 1 (attention transfer)",
    "stage2": "after stage 2 (fine-tuning)",
}
_PIPELINES = {
    "ForSequenceClassification": "text-classification",
    "ForTokenClassification": "token-classification",
    "ForQuestionAnswering": "question-answering",
    "ForMultipleChoice": None,
    "ForMaskedLM": "fill-mask",
    "ForCausalLM": "text-generation",
}
_EMPTY: tuple[Any, ...] = (None, {}, [], "")
_AUTO = {"LMHeadModel": "AutoModelForCausalLM", "Model": "AutoModel"}


@dataclasses.dataclass(frozen=True)
class Names:
    """The classes that a card names.

    Attributes:
        auto_class: the AutoModel class that opens the folder.
        stock_class: the class that would open it as softmax.
        pipeline_tag: the hub's name of the task, or None.
    """

    auto_class: str
    stock_class: str
    pipeline_tag: str | None

    @property
    def decoder(self) -> bool:
        """Whether it writes text token by token."""
        return self.auto_class == "AutoModelForCausalLM"


def names_of(config: Mapping[str, Any]) -> Names:
    """Find the classes from ``config["architectures"]``, such as ``["AttnExtRobertaForMaskedLM"]``."""
    architecture = (config.get("architectures") or ["AutoModel"])[0]
    stock = architecture.removeprefix(CLASS_PREFIX)
    match = re.search(r"(For[A-Z]\w*)$", stock)
    if match:
        head = match.group(1)
        return Names(f"AutoModel{head}", stock, _PIPELINES.get(head))
    auto = next((auto for ending, auto in _AUTO.items() if stock.endswith(ending)), "AutoModel")
    return Names(auto, stock, "text-generation" if auto == "AutoModelForCausalLM" else None)


def base_model_of(results: Mapping[str, Any]) -> str:
    """The base model's name or path, or ``""``; the configuration only knows where the *converted* model was."""
    model = results.get("base_model") or results.get("model") or ""
    return str(model.get("name") or "") if isinstance(model, Mapping) else str(model)


def shown_name(name: str) -> str:
    """A hub id as it is; of a path only the last part, for the rest is somebody's disk."""
    return name if is_hub_name(name) else re.split(r"[\\/]", name.rstrip("\\/"))[-1]


def is_hub_name(name: str) -> bool:
    """Return whether ``name`` can be a hub id, and is not a path of this machine."""
    return bool(_HUB_NAME.match(name)) and name not in {".", ".."} and not os.path.exists(name)


def layers_text(config: Mapping[str, Any]) -> str:
    """``"all 6 layers"`` or ``"layers 0, 2 of 6"``."""
    total = next((config[key] for key in LAYER_COUNTS if key in config), None)
    layers = config["attn_ext"].get("layers")
    of = f" of {total}" if total else ""
    if layers is None or len(layers) == total:
        return f"all {total} layers" if total else "all layers"
    return f"{'layers' if len(layers) > 1 else 'layer'} {', '.join(map(str, layers))}{of}"


def score_table(results: Mapping[str, Any]) -> tuple[list[str], list[dict[str, Any]]]:
    """Return ``(metric names, rows)`` of the scores at every step, with standard errors where they are known.

    Raises:
        AttnExtError: the scores are not tables of numbers.
    """
    scores, errors = _mapping(results, "scores"), _mapping(results, "standard_errors")
    tables = {step: _numbers(values, f"scores.{step}") for step, values in scores.items() if values is not None}
    metrics = list(dict.fromkeys(name for table in tables.values() for name in table))
    rows = []
    for step, table in tables.items():
        spread = errors.get(step) or {}
        values = [show(table.get(name)) + (f" ± {show(spread[name])}" if name in spread else "") for name in metrics]
        rows.append({"label": _LABELS.get(step, step), "values": values})
    return metrics, rows


def transfer_table(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return rows of output error and KL divergence, one per step at which the transfer was measured."""
    rows = []
    for step, values in _mapping(results, "transfer").items():
        if values is None:
            continue
        if not isinstance(values, Mapping):
            raise AttnExtError(f"results: field 'transfer.{step}' must be a mapping of numbers, got {values!r}")
        error, kl = _mean(values.get("output_error")), _mean(values.get("kl"))
        rows.append({"label": _LABELS.get(step, step), "output_error": show(error), "kl": show(kl)})
    return rows


def provenance(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return data, seed, steps, durations and versions as ``(name, value)`` pairs; unknown values are left out."""
    lines = []
    for field in (
        "data",
        "task",
        "metric",
        "seed",
        "steps",
        "seconds",
        "peak_memory_mb",
        "device",
        "versions",
    ):
        if results.get(field) not in _EMPTY:
            lines.append((field.replace("_", " "), _inline(results[field])))
    return lines


def show(value: Any) -> str:
    """A number as a card shows it; ``-`` for none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:.4f}" if abs(value) < 1000 else f"{value:,.1f}"
    return str(value)


def _mean(value: Any) -> float | None:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return sum(value) / len(value) if value else None
    return value


def _mapping(results: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = results.get(field) or {}
    if not isinstance(value, Mapping):
        raise AttnExtError(f"results: field {field!r} must be a mapping, got {value!r}")
    return value


def _numbers(values: Any, where: str) -> dict[str, float | int]:
    table = values if isinstance(values, Mapping) else {"score": values}
    for name, value in table.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise AttnExtError(f"results: field '{where}.{name}' must be a number, got {value!r}")
    return dict(table)


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_inline(entry)}" for key, entry in value.items() if entry not in _EMPTY)
    if isinstance(value, (list, tuple)):
        return ", ".join(_inline(entry) for entry in value)
    if isinstance(value, float):
        return f"{value:.4g}"
    text = str(value)
    text = shown_name(text) if text.startswith(("/", "~", ".")) or os.path.exists(text) else text
    return text.replace("|", "\\|").replace("\n", " ")
