"""``hf-attn-ext evaluate``: a classifier's or regressor's scores on labelled texts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import AttnExtError


def evaluate(
    model: Annotated[str, typer.Argument(help="A model's folder, converted or stock, or a hub id.")],
    data: Annotated[str, typer.Option("--data", help="A csv, tsv, json, jsonl or parquet file, or a hub id.")],
    split: Annotated[str, typer.Option("--split", help="The split of a hub data set.")] = "validation",
    text_column: Annotated[str | None, typer.Option("--text-column", help="Default: text.")] = None,
    text_pair_column: Annotated[str | None, typer.Option("--text-pair-column", help="Default: no pair.")] = None,
    label_column: Annotated[str, typer.Option("--label-column", help="The label's column.")] = "label",
    max_length: Annotated[int, typer.Option("--max-length", min=4, help="Texts are cut to this many tokens.")] = 128,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="No score depends on it.")] = 64,
    max_examples: Annotated[int | None, typer.Option("--max-examples", min=1, help="Use only this many.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Also write the scores to this JSON file.")] = None,
) -> None:
    """Score a sequence classifier or regressor on labelled texts."""
    from .models import load_any, load_tokenizer, quiet

    quiet()
    if out is not None and not out.parent.is_dir():
        raise AttnExtError(f"--out {str(out)!r}: there is no folder {str(out.parent)!r}")
    loaded = load_any(model)
    names = _label_names(loaded, model)
    tokenizer = load_tokenizer(model)
    if tokenizer is None:
        raise AttnExtError(f"{model!r} has no tokenizer; save one into the folder")

    from accelerate import Accelerator

    from ..training.config import DataConfig
    from ..training.data import load_task_data
    from ..training.encoding import Collator, encode
    from ..training.finetune import evaluate_task
    from ..training.labels import match_teacher
    from ..training.teacher import check_fits

    file = _is_file(data)
    config = DataConfig(
        path=None if file else data,
        train=data if file else split,
        validation=data if file else split,
        text_column=text_column,
        text_pair_column=text_pair_column,
        label_column=label_column,
        task="classification" if len(names) > 1 else "regression",
        # A file may lack a class; a data set of the hub names its own, perhaps in another order than the model.
        labels=names if file and len(names) > 1 else None,
        max_eval_examples=max_examples,
    )
    task = load_task_data(config)
    order = match_teacher(task.labels, dict(enumerate(names)))
    examples = task.validation
    if len(names) > 1:
        examples.labels = _as_outputs(examples.labels, order)
    encoded = encode(examples, tokenizer, max_length)
    check_fits(loaded.config, model, encoded)
    accelerator = Accelerator()
    scores = evaluate_task(
        loaded.to(accelerator.device),
        encoded,
        Collator(tokenizer),
        task.labels.task,
        accelerator,
        batch_size,
    )
    typer.echo(f"{data}: {len(examples)} examples")
    for name, value in scores.items():
        typer.echo(f"{name:12} {value:.6g}")
    if out is not None:
        from .output import write_text

        write_text(
            out, json.dumps({"model": model, "data": data, "examples": len(examples), **scores}, indent=2) + "\n"
        )


def _label_names(model: Any, name: str) -> list[str]:
    if not type(model).__name__.endswith("ForSequenceClassification"):
        raise AttnExtError(
            f"{name!r} is a {type(model).__name__}: evaluate needs a sequence classifier or regressor "
            "(...ForSequenceClassification)"
        )
    return [str(label) for _, label in sorted(model.config.id2label.items())]


def _is_file(data: str) -> bool:
    """Whether ``data`` names a file: it exists, has a data file's ending, or can be nothing but a path."""
    from ..training.data import FILE_FORMATS

    path = Path(data)
    return path.exists() or path.suffix.lower() in FILE_FORMATS or data.startswith((".", "/", "~"))


def _as_outputs(labels: Any, order: list[int]) -> Any:
    """Number the data's classes as the model numbers its outputs."""
    import numpy as np

    return np.asarray(order)[labels]
