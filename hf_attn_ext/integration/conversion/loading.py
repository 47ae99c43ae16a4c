"""Load a converted folder strictly: every weight is there, none is left over, none has changed since it was saved."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import cached_file

from hf_attn_ext._util.files import sha256
from hf_attn_ext.config import AttnExtConfig
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.kernel_modules.layers import ATTRIBUTE, restore_unsaved_buffers
from hf_attn_ext.integration.names import CLASS_PREFIX, MANIFEST

from .saving import weight_files

_DOWNLOAD_KEYWORDS = ("cache_dir", "force_download", "proxies", "local_files_only", "token", "revision", "subfolder")
_ALIGNMENT = 64  # bytes, as torch allocates on the CPU


def load_converted(
    class_of: Callable[[type], type], load: Callable[..., Any], name_or_path: Any, *args: Any, **kwargs: Any
) -> Any:
    """Load a converted model as ``from_pretrained`` does, and check its files, settings, keys and shapes.

    Args:
        class_of: returns the converted class of a class of Transformers.
        load: the ``from_pretrained`` of Transformers, bound to the converted class to load.
        name_or_path: a folder or a hub id; None with ``state_dict=`` given.

    Returns:
        The model; with ``output_loading_info=True`` the pair (model, info), as Transformers gives it.

    Raises:
        AttnExtError: a weight file is missing, truncated or altered; ``config.json`` has other attention settings than
            were saved; keys are missing or unexpected, except those by which the requested head differs from the saved
            one; shapes do not fit, except outside feature maps with ``ignore_mismatched_sizes=True``.
    """
    wants_info = kwargs.pop("output_loading_info", False)
    ignore_sizes = kwargs.pop("ignore_mismatched_sizes", False)
    manifest = None
    if name_or_path is not None:
        download = {key: kwargs[key] for key in _DOWNLOAD_KEYWORDS if key in kwargs}
        manifest = verify_files(name_or_path, download, kwargs.get("variant"))
    try:
        # Sizes are checked below: Transformers' message has neither the key nor the shapes.
        model, info = load(name_or_path, *args, output_loading_info=True, ignore_mismatched_sizes=True, **kwargs)
    except SafetensorError as error:
        raise AttnExtError(f"{name_or_path}: the weights cannot be read, truncated or damaged: {error}") from error
    if manifest is not None:
        _check_settings(name_or_path, model.config, manifest)
    check_sizes(name_or_path, model, info, ignore_sizes)
    check_keys(name_or_path, model, info, class_of)
    restore_unsaved_buffers(model, AttnExtConfig.from_dict(model.config.attn_ext))
    align_memory(model)
    return (model, info) if wants_info else model


def verify_files(
    name_or_path: str | os.PathLike, download: dict[str, Any], variant: str | None = None
) -> dict[str, Any] | None:
    """Check the weight files of a variant against the manifest; return it, or None where the folder has none."""
    path = _find(name_or_path, MANIFEST, download)
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as stream:
            manifest = json.load(stream)
        files = {str(name): (str(entry["sha256"]), int(entry["size"])) for name, entry in manifest["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AttnExtError(f"{path} cannot be read (truncated or edited?): {error}") from error
    wanted = weight_files(variant)
    for name, (digest, size) in files.items():
        if not wanted.fullmatch(name):
            continue
        file = _find(name_or_path, name, download)
        if file is None:
            raise AttnExtError(f"{name_or_path}: the weight file {name!r}, named in {MANIFEST}, is missing")
        present = os.path.getsize(file)
        if present != size:
            kind = "truncated" if present < size else "altered"
            raise AttnExtError(f"{file} is {kind}: {present} bytes, but {size} were saved; copy it again")
        if sha256(file) != digest:
            raise AttnExtError(
                f"{file} is not the file that was saved (its sha256 differs from {MANIFEST}); copy it again, or, if "
                f"you replaced it on purpose, save the model with save_pretrained or delete {MANIFEST}"
            )
    return manifest


@torch.no_grad()
def align_memory(model: torch.nn.Module) -> None:
    """Copy CPU weights to memory aligned as torch's own allocations are.

    Transformers maps the file into memory, where weights start at odd addresses, and the CPU's matrix routines give
    other last bits for other alignments. With the copy a reloaded model equals the saved one bit for bit.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu" and tensor.data_ptr() % _ALIGNMENT:
            tensor.data = tensor.data.clone()


def check_keys(
    name_or_path: Any, model: PreTrainedModel, info: dict[str, Any], class_of: Callable[[type], type]
) -> None:
    """Raise AttnExtError for missing or unexpected keys that a difference between the heads does not explain.

    It explains a missing key that the saved class does not have, and an unexpected key that it has.
    """
    missing, unexpected = set(info.get("missing_keys") or ()), set(info.get("unexpected_keys") or ())
    if not missing and not unexpected:
        return
    saved = _saved_keys(model, class_of)
    lost = sorted(key for key in missing if _bare(key, model) in saved)
    extra = sorted(key for key in unexpected if _bare(key, model) not in saved)
    for keys, what in ((lost, "lacks"), (extra, "holds the unexpected")):
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            raise AttnExtError(f"{name_or_path}: the checkpoint {what} {keys[0]!r}{more}; it was not saved whole")


def check_sizes(name_or_path: Any, model: PreTrainedModel, info: dict[str, Any], ignore: bool) -> None:
    """Raise AttnExtError if a shape differs from the checkpoint's; ``ignore`` permits this outside feature maps."""
    for key, in_file, in_model in sorted(info.get("mismatched_keys") or ()):
        if ignore and f".{ATTRIBUTE}." not in key:
            continue
        hint = (
            "config.json was edited"
            if f".{ATTRIBUTE}." in key
            else "pass ignore_mismatched_sizes=True to start this part anew"
        )
        raise AttnExtError(
            f"{name_or_path}: {key!r} has shape {tuple(in_file)} in the checkpoint, but {tuple(in_model)} by the "
            f"configuration; {hint}"
        )


def _check_settings(name_or_path: Any, config: PreTrainedConfig, manifest: dict[str, Any]) -> None:
    saved = AttnExtConfig.from_saved(manifest.get("attn_ext"))
    if not isinstance(saved, dict) or saved == config.attn_ext:
        return
    for field in sorted(saved.keys() | config.attn_ext.keys()):
        before, now = saved.get(field), config.attn_ext.get(field)
        if before != now:
            raise AttnExtError(
                f"{name_or_path}: attn_ext.{field} is {now!r} in the configuration, but the weights were saved with "
                f"{before!r}; restore it"
            )


def _saved_keys(model: PreTrainedModel, class_of: Callable[[type], type]) -> set[str]:
    """The keys, without prefix, of the class that was saved; those of ``model`` where the configuration names none."""
    names = getattr(model.config, "architectures", None) or [type(model).__name__]
    stock = getattr(transformers, names[0].removeprefix(CLASS_PREFIX), None)
    if not isinstance(stock, type) or getattr(type(model), "stock_class", None) is stock:
        return {_bare(key, model) for key in model.state_dict()}
    with torch.device("meta"):
        saved = class_of(stock)(model.config)
    return {_bare(key, saved) for key in saved.state_dict()}


def _bare(key: str, model: PreTrainedModel) -> str:
    return key.removeprefix(model.base_model_prefix + ".")


def _find(name_or_path: str | os.PathLike, file: str, download: dict[str, Any]) -> str | None:
    if os.path.isdir(name_or_path):
        path = os.path.join(name_or_path, download.get("subfolder") or "", file)
        return path if os.path.isfile(path) else None
    return cached_file(
        str(name_or_path),
        file,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        **download,
    )
