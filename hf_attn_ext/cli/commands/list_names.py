"""``hf-attn-ext list``: the kernels, masks, statistics and model types that this installation knows.

The built-in names are read from the files that register them, without importing torch. The registries are asked once
the package is loaded, as ``hf-attn-ext --import MODULE list`` does.
"""

from __future__ import annotations

import ast
import importlib
import re
import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

from hf_attn_ext.errors import AttnExtError, suggest

_ROOT = Path(__file__).parents[2]
_REGISTRIES = {  # topic: module, its function that lists the names, the folder with the built-in entries
    "kernels": ("hf_attn_ext.attention", "list_kernels", "attention/feature_maps"),
    "masks": ("hf_attn_ext.hasse.masks", "list_masks", "hasse/masks"),
    "statistics": ("hf_attn_ext.probe.statistics", "list_statistics", "probe/statistics"),
    "models": ("hf_attn_ext.integration", "supported_model_types", None),
}
TOPICS = tuple(_REGISTRIES)


def list_names(
    topic: Annotated[str | None, typer.Argument(help="kernels, masks, statistics or models; default: all.")] = None,
) -> None:
    """List the kernels, the masks, the probe's statistics and the model types, one per line."""
    if topic is not None and topic not in TOPICS:
        near = suggest(topic, TOPICS)
        raise AttnExtError(f"there is nothing to list under {topic!r}: kernels, masks, statistics or models.{near}")
    for name in TOPICS if topic is None else (topic,):
        _print(name, names_of(name), heading=topic is None)


def names_of(topic: str) -> list[str]:
    """Return the names of one topic: from its registry if the package is loaded, else from the files."""
    module, function, folder = _REGISTRIES[topic]
    if "hf_attn_ext.attention" in sys.modules:
        return list(getattr(importlib.import_module(module), function)())
    if folder is None:
        return list(runpy.run_path(str(_ROOT / "integration" / "model_types.py"))["FAMILIES"])
    return built_in_names(_ROOT / folder, ordered=topic == "statistics")


def built_in_names(folder: Path, ordered: bool = False) -> list[str]:
    """Return the names that the modules of a folder register, without importing them.

    Args:
        folder: its ``__init__.py`` imports the modules.
        ordered: keep the order in which they are imported; otherwise the names are sorted.
    """
    modules: list[str] = []
    for statement in ast.parse((folder / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ImportFrom) and statement.level == 1:  # with a module, or without
            modules += [statement.module] if statement.module else [alias.name for alias in statement.names]
    names = [
        name
        for module in dict.fromkeys(modules)
        for name in re.findall(
            r'^@register_\w+\(\s*"(\w+)"', (folder / f"{module}.py").read_text(encoding="utf-8"), re.MULTILINE
        )
    ]
    return names if ordered else sorted(names)


def _print(title: str, names: list[str], heading: bool) -> None:
    if heading:
        typer.echo(f"{title}:")
    for name in names:
        typer.echo(f"  {name}" if heading else name)
