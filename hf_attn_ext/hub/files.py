"""The files of a model folder that are uploaded to the hub, as an allow-list, so that no other file is.

Optimizer states, checkpoints, logs, training data and caches are never named here, hence never uploaded.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from hf_attn_ext._util.files import read_json_object, sha256
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.names import MANIFEST

WEIGHTS_PATTERNS = ("model.safetensors", "model-[0-9]*-of-[0-9]*.safetensors", "model.safetensors.index.json")
"""The weight files that ``save_pretrained`` writes: one file, or shards and their index."""

MODEL_FILES = ("README.md", "LICENSE", "config.json", "generation_config.json", MANIFEST)

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)


@dataclasses.dataclass(frozen=True)
class UploadFile:
    """One file to upload.

    Attributes:
        path: its name in the repository.
        size: bytes.
        sha256: hexadecimal digest of its content.
    """

    path: str
    size: int
    sha256: str


def check_folder(folder: str | Path) -> tuple[Path, dict[str, Any]]:
    """Return ``(path, config)`` of a converted model's folder.

    Raises:
        AttnExtError: the folder does not exist, or holds no converted model.
    """
    path = Path(folder)
    if not path.is_dir():
        raise AttnExtError(f"there is no folder {str(folder)!r}; name the folder of a converted model")
    if not (path / "config.json").is_file():
        raise AttnExtError(f"folder {str(folder)!r} holds no model: config.json is missing")
    config = read_json_object(path / "config.json")
    if not isinstance(config.get("attn_ext"), dict):
        model_type = config.get("model_type")
        raise AttnExtError(
            f"folder {str(folder)!r} holds a base model (model type {model_type!r}), not a converted one; "
            "convert it first: hf-attn-ext convert"
        )
    return path, config


def files_to_upload(folder: str | Path) -> list[UploadFile]:
    """List exactly the files that a push of ``folder`` uploads, sorted by name, with sizes and digests.

    The weights are checked against ``attn_ext_manifest.json``, so a damaged folder is found before anything is sent.

    Args:
        folder: a converted model's folder, as ``save_pretrained`` wrote it.

    Raises:
        AttnExtError: not a converted model's folder, no weights in it, a shard is missing, or weights that do not
            match the manifest.

    Example:
        >>> [file.path for file in files_to_upload("runs/reviews/model")]  # doctest: +SKIP
        ['README.md', 'attn_ext_manifest.json', 'config.json', 'model.safetensors', ...]
    """
    path, config = check_folder(folder)
    weights = {found for pattern in WEIGHTS_PATTERNS for found in path.glob(pattern) if found.is_file()}
    _check_weights(path, weights)
    named = {path / name for name in (*MODEL_FILES, *TOKENIZER_FILES, *_shim_files(config))}
    chosen = sorted(weights | {file for file in named if file.is_file()}, key=lambda file: file.name)
    files = [UploadFile(file.name, file.stat().st_size, sha256(file)) for file in chosen]
    _check_manifest(path, files)
    return files


def _shim_files(config: dict[str, Any]) -> set[str]:
    """The code files that ``config.auto_map`` refers to, such as ``modeling_attn_ext.py``."""
    names = set()
    for reference in (config.get("auto_map") or {}).values():
        for one in reference if isinstance(reference, (list, tuple)) else [reference]:
            if isinstance(one, str) and "--" not in one:
                names.add(one.split(".")[0] + ".py")
    return names


def _check_weights(path: Path, weights: set[Path]) -> None:
    index = path / "model.safetensors.index.json"
    if index.is_file():
        shards = set((read_json_object(index).get("weight_map") or {}).values())
        missing = sorted(shards - {file.name for file in weights})
        if missing:
            raise AttnExtError(f"folder {str(path)!r} lacks the weight file {missing[0]!r} that its index names")
    elif not (path / "model.safetensors").is_file():
        raise AttnExtError(f"folder {str(path)!r} holds no weights: model.safetensors is missing")


def _check_manifest(path: Path, files: list[UploadFile]) -> None:
    """Compare the weights with the digests written when the folder was saved."""
    if not (path / MANIFEST).is_file():
        raise AttnExtError(f"{path / MANIFEST} is missing, so the weights cannot be vouched for; save the model again")
    manifest = read_json_object(path / MANIFEST)
    present = {file.path: file.sha256 for file in files}
    for name, digest in _manifest_digests(manifest).items():
        if name not in present:
            raise AttnExtError(f"folder {str(path)!r} lacks {name!r}, which {MANIFEST} names")
        if present[name] != digest:
            raise AttnExtError(
                f"{path / name} is not the file that was saved: its sha256 is {present[name][:12]}..., "
                f"{MANIFEST} says {str(digest)[:12]}...; save the model again"
            )


def _manifest_digests(manifest: dict[str, Any]) -> dict[str, str]:
    files = manifest.get("files", {})
    return {name: entry["sha256"] if isinstance(entry, dict) else entry for name, entry in files.items()}
