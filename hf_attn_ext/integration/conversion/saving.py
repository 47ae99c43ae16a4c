"""Save a converted model in one self-contained folder, with digests of its weights.

In addition to the files of Transformers, the folder gets ``modeling_attn_ext.py`` (the shim that opens it with
``trust_remote_code=True`` where this package is installed but not imported) and ``attn_ext_manifest.json``
(digests of the weight files and the attention settings; checked when the folder is opened).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig, PreTrainedModel

from hf_attn_ext._util.files import sha256, write_json
from hf_attn_ext.config import AttnExtConfig
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.families import head_classes, stock_type
from hf_attn_ext.integration.names import CLASS_PREFIX, MANIFEST, SHIM

SHIM_TEXT = '''"""Opens this folder with the package hf_attn_ext; importing that package has the same effect.

    import hf_attn_ext                                                            # enough, or:
    AutoModel.from_pretrained(folder, trust_remote_code=True)
"""

try:
    from hf_attn_ext.integration import models as _models
except ImportError as error:
    raise ImportError(
        "this model has linear attention from the package hf_attn_ext; install it as its model card says"
    ) from error


def __getattr__(name):
    return getattr(_models, name)
'''

_PUSH_KEYWORDS = ("repo_id", "commit_message", "commit_description", "private", "create_pr", "revision", "tags")


def weight_files(variant: str | None = None) -> re.Pattern[str]:
    """Return a pattern of the names of the weight files of a variant: the one file, the shards, their index."""
    mark = f".{re.escape(variant)}" if variant else ""
    return re.compile(rf"model{mark}(-\d{{5}}-of-\d{{5}})?\.safetensors|model\.safetensors\.index{mark}\.json")


def save_converted(
    model: PreTrainedModel,
    save: Callable[..., None],
    save_directory: str | os.PathLike,
    is_main_process: bool = True,
    *args: Any,
    push_to_hub: bool = False,
    **kwargs: Any,
) -> None:
    """Save a converted model as ``save_pretrained`` does, in a temporary folder that is then renamed.

    Args:
        model: the model.
        save: the ``save_pretrained`` of Transformers, bound.
        save_directory: the folder; files of other names in it (tokenizer, README.md) stay.
        is_main_process: whether this process writes.
        push_to_hub: upload afterwards, as Transformers does, with the keywords of ``push_to_hub``.

    Raises:
        AttnExtError: ``save_directory`` is a file.
    """
    target = Path(save_directory)
    if target.is_file():
        raise AttnExtError(f"{str(target)!r} is a file; name a folder to save the model in")
    push = {name: kwargs.pop(name) for name in _PUSH_KEYWORDS if name in kwargs}
    plain = getattr(model, "_hf_peft_config_loaded", False) or kwargs.get("distributed_checkpoint")
    model.config.auto_map = auto_map(model.config)
    if plain:
        # An adapter without its base, or one rank's part: neither is a whole model, so neither gets digests.
        save(target, is_main_process, *args, **kwargs)
    else:
        _save_whole(model, save, target, is_main_process, *args, **kwargs)
        model.name_or_path = model.name_or_path or str(save_directory)
    if push_to_hub:
        more = {name: kwargs[name] for name in ("token", "max_shard_size") if kwargs.get(name) is not None}
        model.push_to_hub(push.pop("repo_id", target.name), **push, **more)


def _save_whole(
    model: PreTrainedModel, save: Callable[..., None], target: Path, is_main_process: bool, *args: Any, **kwargs: Any
) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = not target.exists()
    # Inside an existing folder, so that the renames stay on one file system even where the folder is a mount.
    name = f".{target.name}.saving-{uuid.uuid4().hex[:12]}"
    temporary = (target.parent if fresh else target) / name
    try:
        save(temporary, is_main_process, *args, **kwargs)
        if model.should_save_on_this_rank(is_main_process):
            (temporary / f"{SHIM}.py").write_text(SHIM_TEXT, encoding="utf-8")
            variant = weight_files(kwargs.get("variant"))
            write_manifest(temporary, model, _other_entries(target, model, variant))
            _move(temporary, target, fresh, variant)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _other_entries(target: Path, model: PreTrainedModel, variant: re.Pattern[str]) -> dict[str, Any]:
    """Return the manifest entries in ``target`` for other variants of the same model; their files are kept."""
    try:
        before = json.loads((target / MANIFEST).read_text(encoding="utf-8"))
        if AttnExtConfig.from_saved(before["attn_ext"]) != model.config.attn_ext:
            return {}
        return {name: entry for name, entry in before["files"].items() if not variant.fullmatch(name)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _move(temporary: Path, target: Path, fresh: bool, variant: re.Pattern[str]) -> None:
    if fresh:
        try:
            os.rename(temporary, target)
            return
        except OSError:
            # Another process made the folder in the meantime: go file by file.
            target.mkdir(parents=True, exist_ok=True)
    new = {file.name for file in temporary.iterdir()}
    for file in sorted(temporary.iterdir(), key=lambda file: file.name == MANIFEST):
        os.replace(file, target / file.name)
    for file in target.iterdir():
        # Weights of an earlier save under other names (one file, then shards) would be loaded instead of the new.
        if file.name not in new and file.is_file() and variant.fullmatch(file.name):
            file.unlink()


def write_manifest(folder: Path, model: PreTrainedModel, others: dict[str, Any] | None = None) -> None:
    """Write ``attn_ext_manifest.json`` for the weight files in ``folder``; ``others`` are entries to carry over."""
    files = dict(others or {})
    for file in sorted(folder.iterdir()):
        if file.name.endswith((".safetensors", ".json")) and file.name.startswith("model"):
            files[file.name] = {"sha256": sha256(file), "size": file.stat().st_size}
    manifest = {"format": 1, "model_type": model.config.model_type, "attn_ext": model.config.attn_ext, "files": files}
    write_json(folder / MANIFEST, manifest, sort_keys=True)


def auto_map(config: PreTrainedConfig) -> dict[str, str]:
    """Return the ``auto_map`` of a saved folder: from Auto classes to the classes that the shim finds."""
    entries = {"AutoConfig": f"{SHIM}.{type(config).__name__}"}
    for name, classes in head_classes(stock_type(config.model_type)).items():
        entries[name] = f"{SHIM}.{CLASS_PREFIX}{classes[0].__name__}"
    return entries
