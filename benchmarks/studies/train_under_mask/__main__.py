"""Train a model of yours under a mask, by transformers' Trainer, as a YAML file says.

    accelerate launch -m benchmarks.studies.train_under_mask --config configs/masks/blocks_gpt2.yaml
    python -m benchmarks.studies.train_under_mask --config configs/masks/blocks_mgm.yaml    # offline
    python -m benchmarks.studies.train_under_mask --config configs/masks/butterfly_minilm.yaml    # offline too
    ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 -m benchmarks.studies.train_under_mask --config ...

``block_two_stream`` takes a causal language model and teaches it to predict a block of tokens a pass (afterwards:
``hf_attn_ext.inference.block_generate``); ``butterfly`` a masked one, and teaches it to predict every token from both
sides in one pass (``butterfly_score``). With a ``kernel`` the model is converted first and trained on linear
attention.

The Trainer saves checkpoints under OUT/checkpoints; the same command continues from the newest, and one that is at its
end is only evaluated again. OUT/settings.json keeps the settings: a run can be made longer (max_steps,
num_train_epochs) and log or save otherwise, every other difference is refused. At the end OUT/model is written, which
opens with ``attn_implementation="hasse"``, and OUT/results.json: the held-out loss before and after, which is the sum
over all labels by their count, without label smoothing, whatever the batches and processes.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

import hf_attn_ext as hax
from benchmarks.studies.common.options import make_parser
from hf_attn_ext._util.files import new_folder, write_json
from hf_attn_ext._util.versions import versions
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration import accept_neighbour_ids
from hf_attn_ext.training import BlockTwoStreamCollator, ButterflyCollator, LabelLoss
from hf_attn_ext.training.data.encoding import encode_documents
from hf_attn_ext.training.data.loading import load_task_data
from hf_attn_ext.training.results import PACKAGES

from .settings import (
    MaskTraining,
    check_settings,
    check_steps,
    checkpoint_of,
    data_config,
    kernel_config,
    read_config,
    settings_of,
    training_arguments,
)


def open_model(config: MaskTraining) -> tuple[Any, Any]:
    """The model as it is stored, and its tokenizer."""
    try:
        found = AutoConfig.from_pretrained(config.model)
        # BERT and its like are in both mappings, and causal only where their configuration says so.
        masked = type(found) in MODEL_FOR_MASKED_LM_MAPPING and not getattr(found, "is_decoder", False)
        fits = type(found) in MODEL_FOR_CAUSAL_LM_MAPPING and not masked if config.blocks else masked
        if not fits or getattr(found, "is_encoder_decoder", False):
            kind = "causal" if config.blocks else "masked"
            raise AttnExtError(
                f"{config.mask['name']} needs a {kind} language model, {config.model!r} ({found.model_type}) is none"
            )
        tokenizer = AutoTokenizer.from_pretrained(config.model)
        if len(tokenizer) <= len(tokenizer.all_special_tokens):  # Transformers makes one where a folder has none
            raise AttnExtError(f"{config.model!r} has no tokenizer; save one into it: tokenizer.save_pretrained(...)")
        model = (AutoModelForCausalLM if config.blocks else AutoModelForMaskedLM).from_pretrained(config.model)
    except AttnExtError:
        raise
    except (ImportError, LookupError, OSError, RuntimeError, ValueError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise AttnExtError(f"cannot open {config.model!r}: {said}{config.missing(config.model)}") from None
    return model, tokenizer


def put_under_mask(config: MaskTraining, model: Any, tokenizer: Any, kernel: Any, length: int) -> tuple[Any, Any]:
    """The model, converted where asked for, and the collator that lays texts of ``length`` tokens out for it."""
    if config.blocks:
        hax.add_mask_token(model, tokenizer)
    try:
        model = model if kernel is None else hax.convert(model, kernel)
        hax.set_mask(model, config.mask["name"], **{k: v for k, v in config.mask.items() if k != "name"})
    except TypeError as error:
        raise AttnExtError(f"mask: {error}") from None
    if not config.blocks:
        accept_neighbour_ids(model)
    return model, (BlockTwoStreamCollator if config.blocks else ButterflyCollator)(tokenizer, model, max_length=length)


def read_texts(data: Any, loaded: Any, tokenizer: Any) -> tuple[Any, Any]:
    """Training and held-out sequences of token ids; long texts are cut into pieces, nothing is thrown away."""
    return tuple(
        encode_documents(
            getattr(loaded, split), tokenizer, data.max_length, data.packing, data.borders, f"data.{split}"
        )
        for split in ("train", "validation")
    )


def loss_of_each(logits: Any, labels: Any) -> Any:
    """Of each text, the sum of its labels' cross-entropies and their count: (B, N, V) and (B, N) to float32 (B, 2)."""
    logits = logits[0] if isinstance(logits, tuple) else logits
    each = torch.nn.functional.cross_entropy(logits.float().transpose(1, 2), labels, reduction="none")
    return torch.stack([each.sum(1), (labels != -100).sum(1).float()], dim=1)


def loss_of_all(prediction: Any) -> dict[str, float]:
    """The mean over all labels, of :func:`loss_of_each`'s."""
    total, count = prediction.predictions.astype("float64").sum(0)
    if not count:
        raise AttnExtError("data.validation: no text has a token to predict")
    return {"label_loss": float(total / count)}


def make_trainer(model: Any, arguments: Any, smoothing: float, **parts: Any) -> Any:
    """A Trainer whose loss is right whatever the accumulation and processes, and whose held-out loss is a label's."""
    import transformers

    try:
        return transformers.Trainer(
            model,
            arguments,
            # BERT's own loss ignores num_items_in_batch, and the Trainer believes that it does.
            compute_loss_func=LabelLoss(smoothing),
            preprocess_logits_for_metrics=loss_of_each,
            compute_metrics=loss_of_all,
            **parts,
        )
    except (ImportError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise AttnExtError(f"training: {error or type(error).__name__}") from None


def loss_before(trainer: Any) -> float:
    """The held-out loss before training, after which the processes still train together."""
    loss = trainer.evaluate()["eval_label_loss"]
    if not (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled):
        # Evaluation marks the model as prepared, and training would not wrap it: every process would train its own.
        trainer.accelerator.free_memory()
        vars(trainer.model).pop("_is_accelerate_prepared", None)
    return loss


def check_together(trainer: Any) -> None:
    """Raise AttnExtError where processes trained a model each."""
    if trainer.args.world_size > 1 and trainer.model_wrapped is trainer.model and not trainer.is_fsdp_enabled:
        raise AttnExtError("the processes trained without sharing gradients; train in one process")


def train_or_load(trainer: Any, out: Path) -> int:
    """Train to the end, from the newest checkpoint on; load it where it is the end. Return the steps that are done."""
    arguments, found = trainer.args, checkpoint_of(out)
    if found is None:
        trainer.train()
        check_together(trainer)
        return trainer.state.global_step
    checkpoint, state = found
    wanted = arguments.max_steps
    if wanted < 1:
        a_pass = -(-len(trainer.get_train_dataloader()) // arguments.gradient_accumulation_steps)
        wanted = math.ceil(arguments.num_train_epochs * a_pass)
    if state["global_step"] < wanted:
        trainer.train(resume_from_checkpoint=str(checkpoint))
        check_together(trainer)
        return trainer.state.global_step
    best = state.get("best_model_checkpoint")  # the Trainer would take one more step
    chosen = checkpoint.parent / Path(best).name if arguments.load_best_model_at_end and best else checkpoint
    trainer._load_from_checkpoint(str(chosen))
    return state["global_step"]


def run(path: str, overrides: list[str]) -> dict[str, Any]:
    """Train, save, and return the held-out losses."""
    import transformers

    config = read_config(path, overrides)
    data, kernel, out = data_config(config, path), kernel_config(config), Path(config.out)
    arguments, smoothing = training_arguments(config, path)
    if config.mask.get("backend") == "flex" and arguments.device.type == "cpu":
        raise AttnExtError(f"{path}: mask.backend 'flex' cannot train on the CPU; leave it out")
    settings = settings_of(config, data, arguments.world_size)
    check_settings(out, settings)
    found = checkpoint_of(out)
    check_steps(out, arguments, found[1]["global_step"] if found else 0)
    loaded = load_task_data(data)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AttnExtError(f"cannot write into out, {config.out!r}: {error.strerror or error}") from None

    transformers.set_seed(arguments.seed)
    model, tokenizer = open_model(config)
    model, collator = put_under_mask(config, model, tokenizer, kernel, data.max_length)
    train, held_out = read_texts(data, loaded, tokenizer)
    trainer = make_trainer(
        model,
        arguments,
        smoothing,
        train_dataset=train,
        eval_dataset=held_out,
        data_collator=collator,
        processing_class=tokenizer,
    )
    before = loss_before(trainer)
    if trainer.is_world_process_zero():
        write_json(out / "settings.json", settings)
    steps = train_or_load(trainer, out)
    after = trainer.evaluate()["eval_label_loss"]
    result = {"loss_before": before, "loss_after": after, "steps": steps}
    if trainer.is_world_process_zero():
        with new_folder(out / "model") as target:
            trainer.model.save_pretrained(target)
            tokenizer.save_pretrained(target)
        write_json(
            out / "results.json", {"config": dataclasses.asdict(config), **result, "versions": versions(*PACKAGES)}
        )
        print(f"held-out loss, nats a prediction: {before:.3f} before, {after:.3f} after {steps} steps", end=" ")
        print(f"(seed {arguments.seed})\nwritten: {out / 'model'}, {out / 'results.json'}")
    return result


def main(arguments: list[str] | None = None) -> int:
    """Parse the options and run the study."""
    parser = make_parser(__doc__)
    parser.add_argument("--config", required=True, help="a YAML file, such as those in configs/masks/")
    parser.add_argument("--set", action="append", default=[], metavar="FIELD=VALUE", help="overrides the file")
    options = parser.parse_args(arguments)
    try:
        run(options.config, options.set)
    except AttnExtError as error:
        print("error: " + " ".join(str(error).split()), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
