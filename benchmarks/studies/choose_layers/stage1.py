"""Stage 1 of ``choose_layers.py``: the feature maps of all layers, trained on the softmax stream."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

import hf_attn_ext as hax
from benchmarks.assets import ensure
from benchmarks.studies.common.corpora import CORPORA, MAX_LENGTH, texts_folder
from hf_attn_ext.training import distill


def stage1(folder: Path, corpus: str, seed: int, options: argparse.Namespace) -> Path:
    """Train the feature maps of all layers; return the model's folder."""
    steps, its = options.steps, CORPORA[corpus]
    stage = {"steps": steps, "batch_size": its["batch"], "lr": 2e-2, "evaluate_every": steps, "eval_sequences": 32}
    config: dict[str, Any] = {
        "model": {"name": str(ensure(its["model"]))},
        "kernel": {"kernel": options.kernel, "num_features": options.num_features},
        "output": {"folder": str(folder), "progress": options.progress},
        "seed": seed,
        "mixed_precision": "no",
        "measure": [],
        "stage1": stage,
        "stage2": {"steps": 0},
    }
    texts = str(texts_folder(corpus, Path(options.out)))
    names = {split: its["file"].format(split) for split in ("train", "validation", "test")}
    if is_language(corpus):
        data = {"path": texts, **names, "task": "language_modeling", "max_length": MAX_LENGTH, "packing": False}
        config |= {"data": data, "teacher": {"steps": 0}}
        config["model"]["dropout"] = 0.0
        return distill(config).model_folder
    # an encoder's run must have a task; where the corpus is another one, that is all that reviews are for
    config["data"] = {"path": str(ensure("reviews")), "max_length": 64, "task": "regression", "max_eval_examples": 16}
    config["data"] |= {split: f"{split}.csv" for split in names}
    if corpus != "reviews":
        its_own = {split: names[split] for split in ("train", "validation")}
        config["stage1_data"] = {"path": texts, **its_own, "max_length": MAX_LENGTH}
        config["stage1"] |= {"packing": its["words"] is not None, "max_length": MAX_LENGTH}
    return distill(config).model_folder


def trained_maps(folder: Path, corpus: str) -> dict[int, Any]:
    """The state of every layer's feature map."""
    auto = AutoModelForCausalLM if is_language(corpus) else AutoModelForSequenceClassification
    layers = hax.converted_layers(auto.from_pretrained(folder))
    return {layer.layer_idx: layer.feature_map.state_dict() for layer in layers}


def is_language(corpus: str) -> bool:
    """Whether the corpus is a language model's."""
    return CORPORA[corpus]["model"] == "mgm"
