"""``hf-attn-ext doctor``: is this installation sound, and does this folder open?"""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Annotated

import typer

from hf_attn_ext._util.versions import version
from hf_attn_ext.errors import AttnExtError

PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "peft",
    "datasets",
    "safetensors",
    "huggingface_hub",
    "numpy",
)


def doctor(
    folder: Annotated[
        str | None, typer.Argument(help="A model's folder to examine: is it a converted one, does it open?")
    ] = None,
) -> None:
    """Check the installation, and a model's folder when one is named.

    Exit code 0 when all is well, 2 when something needs mending (the last line says what).
    """
    problems = [*_versions(), *_compute(), *_registrations()]
    if folder is not None:
        _examine(folder)
    if problems:
        raise AttnExtError("; ".join(problems))
    typer.echo("all well")


def _say(name: str, value: object) -> None:
    typer.echo(f"{name:18} {value}")


def _versions() -> list[str]:
    from packaging.requirements import Requirement

    from hf_attn_ext import __version__

    _say("hf-attn-ext", __version__)
    _say("python", platform.python_version())
    ranges = {}
    for text in _requirements():
        requirement = Requirement(text)
        ranges[requirement.name.replace("-", "_").lower()] = requirement.specifier
    problems = []
    for name in PACKAGES:
        number, asked = version(name), ranges.get(name)
        suitable = number is not None and (not asked or asked.contains(number, prereleases=True))
        _say(name, f"{number or 'missing'}{f' (supported: {asked})' if asked else ''}")
        if not suitable:
            problems.append(f"{name} {number or 'is missing'}, but {asked} is supported")
    return problems


def _requirements() -> list[str]:
    """Return the requirements in pyproject.toml; empty if the package is not installed."""
    try:
        return metadata.requires("hf-attn-ext") or []
    except metadata.PackageNotFoundError:
        return []


def _compute() -> list[str]:
    import torch

    from hf_attn_ext.attention import describe_native_op

    _say("threads", f"{torch.get_num_threads()} of {os.cpu_count()} cores")
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            _say(f"cuda:{index}", torch.cuda.get_device_name(index))
    else:
        _say("cuda", "none, runs on the CPU")
    _say("native op", describe_native_op())
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
    _say("hub", "offline by HF_HUB_OFFLINE" if offline else os.environ.get("HF_ENDPOINT", "default endpoint"))
    return []


def _registrations() -> list[str]:
    """Every model type must be known to AutoConfig and to at least AutoModel: a plugin half registered is useless."""
    from transformers import CONFIG_MAPPING, MODEL_MAPPING
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    from hf_attn_ext.attention import list_kernels
    from hf_attn_ext.integration import supported_model_types

    problems = []
    if "flexformer" not in ALL_ATTENTION_FUNCTIONS.valid_keys():
        problems.append("the attention implementation 'flexformer' is not registered")
    types = supported_model_types()
    for name in types:
        ours = f"attn_ext_{name}"
        if ours not in CONFIG_MAPPING or CONFIG_MAPPING[ours] not in MODEL_MAPPING:
            problems.append(f"the model type {ours!r} is not registered")
    _say("kernels", ", ".join(list_kernels()))
    _say("model types", ", ".join(types))
    return problems


def _examine(folder: str) -> None:
    from hf_attn_ext.cli.models import load_converted, quiet
    from hf_attn_ext.integration import converted_layers

    quiet()
    model = load_converted(folder)
    config = model.config.attn_ext
    layers = [layer.layer_idx for layer in converted_layers(model)]
    _say("folder", folder)
    _say("opens as", type(model).__name__)
    _say("kernel", f"{config['kernel']}, {config['num_features']} features, layers {layers}")
