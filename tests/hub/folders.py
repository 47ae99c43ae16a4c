"""Folders that look like a saved converted model, made without a model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import save_file


def write_manifest(folder: Path) -> None:
    weights = sorted(folder.glob("model*.safetensors"))
    digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in weights}
    (folder / "attn_ext_manifest.json").write_text(json.dumps({"files": digests}))


def converted_folder(folder: Path, shards: int = 1) -> Path:
    """Everything that a run leaves in a model folder, and some that must never be uploaded."""
    folder.mkdir(parents=True)
    config = {
        "model_type": "attn_ext_roberta",
        "architectures": ["AttnExtRobertaForMaskedLM"],
        "attn_ext": {"kernel": "flexformer_p", "num_features": 8, "layers": None, "seed": 0},
        "auto_map": {"AutoConfig": "modeling_attn_ext.AttnExtRobertaConfig"},
        "num_hidden_layers": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling_attn_ext.py").write_text("import hf_attn_ext\n")
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (folder / "README.md").write_text("---\nlibrary_name: transformers\n---\n# A card\n")
    if shards == 1:
        save_file({"weight": torch.arange(2000.0)}, folder / "model.safetensors")
    else:
        names = [f"model-{i:05}-of-{shards:05}.safetensors" for i in range(1, shards + 1)]
        for i, name in enumerate(names):
            save_file({f"weight{i}": torch.full((2000,), float(i))}, folder / name)
        index = {"metadata": {}, "weight_map": {f"weight{i}": name for i, name in enumerate(names)}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    write_manifest(folder)
    for unwanted in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin", "log.txt"):
        (folder / unwanted).write_bytes(b"not for the hub")
    (folder / "metrics.jsonl").write_text("{}\n")
    (folder / ".env").write_text("SECRET=1\n")
    (folder / "notes.py").write_text("print('mine')\n")
    (folder / "other.safetensors").write_bytes(b"not ours")
    (folder / "checkpoint-10").mkdir()
    (folder / "checkpoint-10" / "model.safetensors").write_bytes(b"a checkpoint")
    return folder
