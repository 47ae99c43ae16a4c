"""``hf-attn-ext evaluate``: a classifier's or regressor's scores on labelled texts, a language model's perplexity."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_attn_ext.errors import AttnExtError

if TYPE_CHECKING:
    from hf_attn_ext.training.config import DataConfig, Task
    from hf_attn_ext.training.data.encoding import EncodedSplit


def evaluate(
    model: Annotated[str, typer.Argument(help="A model's folder, converted or not, or a hub id.")],
    data: Annotated[str, typer.Option("--data", help="A csv, tsv, json, jsonl, txt or parquet file, or a hub id.")],
    split: Annotated[str, typer.Option("--split", help="The split of a hub data set.")] = "validation",
    text_column: Annotated[str | None, typer.Option("--text-column", help="Default: text.")] = None,
    text_pair_column: Annotated[str | None, typer.Option("--text-pair-column", help="Default: no pair.")] = None,
    label_column: Annotated[
        str, typer.Option("--label-column", help="The label's column; language models need none.")
    ] = "label",
    max_length: Annotated[
        int,
        typer.Option("--max-length", min=4, help="Texts, or a language model's sequences, are cut to so many tokens."),
    ] = 128,
    packing: Annotated[
        bool,
        typer.Option(help="Language models: join the texts and cut them into sequences; otherwise a sequence a text."),
    ] = True,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="No score depends on it.")] = 64,
    max_examples: Annotated[int | None, typer.Option("--max-examples", min=1, help="Use only this many.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Also write the scores to this JSON file.")] = None,
) -> None:
    """Score a sequence classifier or regressor on labelled texts, or a causal language model on plain ones.

    A language model's scores are its perplexity, its loss in nats and in bits per token, and how many tokens were
    predicted: all but the first, each once, from what stands before it in its sequence.
    """
    from hf_attn_ext.cli.models import load_any, load_tokenizer, quiet

    quiet()
    if out is not None and not out.parent.is_dir():
        raise AttnExtError(f"--out {str(out)!r}: there is no folder {str(out.parent)!r}")
    loaded = load_any(model)
    task = _task_of(loaded, model)
    tokenizer = load_tokenizer(model)
    if tokenizer is None:
        raise AttnExtError(f"{model!r} has no tokenizer; save one into the folder")

    from accelerate import Accelerator

    from hf_attn_ext.training.config import DataConfig
    from hf_attn_ext.training.data.encoding import Collator
    from hf_attn_ext.training.data.labels import LANGUAGE
    from hf_attn_ext.training.stages.finetune import evaluate_task
    from hf_attn_ext.training.stages.teacher import check_causal, check_fits

    file = _is_file(data)
    config = DataConfig(
        path=None if file else data,
        train=data if file else split,
        validation=data if file else split,
        text_column=text_column,
        text_pair_column=text_pair_column,
        label_column=label_column,
        task=task,
        max_length=max_length,
        packing=packing,
        max_eval_examples=max_examples,
    )
    if task == LANGUAGE:
        check_causal(loaded, model)
        examples, encoded = _documents(config, tokenizer)
    else:
        examples, encoded = _labelled(config, loaded, tokenizer, file)
    check_fits(loaded.config, model, encoded)
    accelerator = Accelerator()
    scores = evaluate_task(
        loaded.to(accelerator.device), encoded, Collator(tokenizer, task), task, accelerator, batch_size
    )
    if task == LANGUAGE:
        scores = {**scores, "tokens": int((encoded.lengths - 1).sum())}
    unit = "text" if task == LANGUAGE else "example"
    typer.echo(f"{data}: {examples} {unit}{'s' if examples != 1 else ''}")
    for name, value in scores.items():
        typer.echo(f"{name:14} {value}" if isinstance(value, int) else f"{name:14} {value:.6g}")
    if out is not None:
        from hf_attn_ext._util.files import write_json

        write_json(out, {"model": model, "data": data, "examples": examples, **scores})


def _task_of(model: Any, name: str) -> Task:
    from hf_attn_ext.training.data.labels import LANGUAGE
    from hf_attn_ext.training.stages.teacher import is_language_model

    kind = type(model).__name__
    if is_language_model(kind):
        return LANGUAGE
    if not kind.endswith("ForSequenceClassification"):
        raise AttnExtError(
            f"{name!r} is a {kind}: evaluate needs a sequence classifier or regressor (...ForSequenceClassification) "
            "or a causal language model (...ForCausalLM, ...LMHeadModel)"
        )
    return "classification" if len(model.config.id2label) > 1 else "regression"


def _documents(config: DataConfig, tokenizer: Any) -> tuple[int, EncodedSplit]:
    """The number of texts, and their sequences."""
    from hf_attn_ext.training.data.encoding import encode_documents
    from hf_attn_ext.training.data.loading import load_task_data

    texts = load_task_data(config).validation
    return len(texts), encode_documents(texts, tokenizer, config.max_length, config.packing)


def _labelled(config: DataConfig, model: Any, tokenizer: Any, file: bool) -> tuple[int, EncodedSplit]:
    """The number of examples, and these with their labels numbered as the model's outputs are."""
    import dataclasses

    import numpy as np

    from hf_attn_ext.training.data.encoding import encode
    from hf_attn_ext.training.data.labels import match_teacher
    from hf_attn_ext.training.data.loading import load_task_data

    names = [str(label) for _, label in sorted(model.config.id2label.items())]
    # A file may lack a class; a data set of the hub names its own, perhaps in another order than the model.
    config = dataclasses.replace(config, labels=names if file and len(names) > 1 else None)
    task = load_task_data(config)
    order = match_teacher(task.task_labels, dict(enumerate(names)))
    examples = task.validation
    if len(names) > 1:
        examples.labels = np.asarray(order)[examples.labels]
    return len(examples), encode(examples, tokenizer, config.max_length)


def _is_file(data: str) -> bool:
    """Whether ``data`` names a file: it exists, has a data file's ending, or can be nothing but a path."""
    from hf_attn_ext._util.tables import FORMATS

    path = Path(data)
    return path.exists() or path.suffix.lower() in FORMATS or data.startswith((".", "/", "~"))
