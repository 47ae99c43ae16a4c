"""What block two-stream fine-tuning starts from: a causal language model, and the same converted."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import hf_attn_ext as hax
from benchmarks.assets import ensure
from benchmarks.studies.common.folders import claim, tidy
from benchmarks.studies.common.objectives import NextToken
from benchmarks.studies.common.texts import FILES, Texts, documents, load
from benchmarks.studies.common.training import fit
from benchmarks.studies.common.vocabulary import train_tokenizer
from benchmarks.studies.common.written_texts import write_samples
from benchmarks.studies.train_sotu_gpt.models import stock_model
from hf_attn_ext._util.files import new_folder
from hf_attn_ext.training import distill


def texts_of(options: argparse.Namespace) -> tuple[Path, Texts]:
    """The folder of the texts, and the texts encoded."""
    out = Path(options.out)
    if options.model == "mgm":
        checkpoint = ensure("mgm")
        # one set for all seeds: they differ in the order of the texts
        folder, packing = write_samples(checkpoint, out / "samples", 0, options.samples), False
        tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    else:
        folder, packing = ensure("sotu"), True
        tokenizer = train_tokenizer(out / "tokenizer", load(folder).train.texts, options.vocabulary)
    if tokenizer.mask_token is None:
        tokenizer.add_special_tokens({"mask_token": "<mask>"})
    sizes = (options.validation_sequences, options.test_sequences)
    return folder, documents(folder, tokenizer, options.context, packing, *sizes)


def stock_folder(
    options: argparse.Namespace, seed: int, texts: Texts, settings: dict[str, Any], accelerator: Any
) -> Path:
    """The folder of the softmax model: the checkpoint itself, or a small GPT trained here, once per seed."""
    if options.model == "mgm":
        return ensure("mgm")

    folder = Path(options.out) / "start" / f"seed-{seed}"
    claim(folder, settings)
    if not (folder / "model").is_dir():
        sizes = argparse.Namespace(**vars(options), positions="rotary", local_window=0, initializer_range=0.02)
        tokenizer = texts.tokenizer  # its last token is the mask token, which a GPT is pretrained without
        model = stock_model(sizes, tokenizer.mask_token_id, tokenizer.eos_token_id, seed)
        model, _ = fit(
            "pretraining",
            model,
            NextToken(tokenizer),
            texts,
            folder,
            accelerator,
            steps=options.pretrain_steps,
            batch_size=options.batch_size,
            lr=options.pretrain_lr,
            weight_decay=0.1,
            seed=seed,
        )
        with new_folder(folder / "model") as target:
            model.save_pretrained(target)
            tokenizer.save_pretrained(target)
        tidy(folder)
    return folder / "model"


def converted_folder(options: argparse.Namespace, kernel: str, seed: int, stock: Path, data: Path) -> Path:
    """The folder of the converted model, its maps trained on the softmax stream (stage 1), once per seed."""
    settings = {
        "model": {"name": str(stock), "dropout": 0.0},
        "data": {
            "task": "language_modeling",
            "path": str(data),
            **FILES,
            "max_length": options.context,
            "packing": options.model == "sotu",
        },
        "kernel": {"kernel": kernel, "num_features": options.num_features},
        "output": {"folder": str(Path(options.out) / "start" / f"seed-{seed}-{kernel}"), "progress": False},
        "stage1": {
            "steps": options.stage1_steps,
            "batch_size": options.batch_size,
            "lr": 2e-2,
            "eval_sequences": 64,
            "evaluate_every": options.stage1_steps,
        },
        "stage2": {"steps": 0},
        "measure": [],
        "seed": seed,
        "mixed_precision": "no",
    }
    return distill(settings).model_folder


def open_model(folder: Path, tokenizer: Any) -> nn.Module:
    """The model of a folder in float32, without dropout, and with a mask token."""
    config = AutoConfig.from_pretrained(folder)
    for field, value in config.to_dict().items():
        if ("dropout" in field or field.endswith("_pdrop")) and isinstance(value, float):
            setattr(config, field, 0.0)
    model = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32)
    return hax.add_mask_token(model, tokenizer)
