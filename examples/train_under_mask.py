"""Train a model of yours under a mask, by transformers' Trainer, as a YAML file says.

    accelerate launch examples/train_under_mask.py --config configs/masks/blocks_gpt2.yaml           # needs the hub
    python examples/train_under_mask.py --config configs/masks/blocks_mgm.yaml                       # needs none
    python examples/train_under_mask.py --config configs/masks/butterfly_minilm.yaml --set training.max_steps=50

``block_two_stream`` takes a causal language model and teaches it to predict a block of tokens a pass (afterwards:
``hf_attn_ext.inference.block_generate``); ``butterfly`` a masked one, and teaches it to predict every token from both
sides in one pass (``butterfly_score``). With a ``kernel`` the model is converted first and trained on linear
attention.

The Trainer saves checkpoints under OUT/checkpoints; the same command goes on from the newest. At the end OUT/model is
written, which opens with ``attn_implementation="hasse"``, and OUT/results.json: the held-out loss before and after.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from hf_attn_ext.errors import AttnExtError, suggest  # noqa: E402

MASKS = ("block_two_stream", "butterfly")


@dataclasses.dataclass
class MaskTraining:
    """What the YAML file says.

    Attributes:
        model: a folder or hub id: a causal language model for block_two_stream, a masked one for butterfly.
        mask: ``name``, and the mask's options.
        out: folder of everything that is written.
        data: plain texts, fields of ``hf_attn_ext.training.DataConfig``; ``task`` need not be given.
        training: fields of ``transformers.TrainingArguments``.
        kernel: fields of ``hf_attn_ext.AttnExtConfig``: convert first; None: softmax.
    """

    model: str
    mask: dict[str, Any]
    out: str
    data: dict[str, Any]
    training: dict[str, Any] = dataclasses.field(default_factory=dict)
    kernel: dict[str, Any] | None = None


def read_config(path: str, overrides: list[str]) -> MaskTraining:
    """Read the file and the settings of ``--set``; raise AttnExtError for what does not fit."""
    from hf_attn_ext.config_tools import from_mapping
    from hf_attn_ext.yaml_files import apply_overrides, read_mapping

    config = from_mapping(MaskTraining, apply_overrides(read_mapping(path), overrides), where=path)
    name = config.mask.get("name")
    if name not in MASKS:
        raise AttnExtError(f"{path}: mask.name must be one of {', '.join(MASKS)}, got {name!r}.{suggest(name, MASKS)}")
    if "output_dir" in config.training:
        raise AttnExtError(f"{path}: training.output_dir is OUT/checkpoints; set out instead")
    return config


def training_arguments(config: MaskTraining, where: str) -> Any:
    """The Trainer's arguments, whose names are checked."""
    from transformers import TrainingArguments

    known = [field.name for field in dataclasses.fields(TrainingArguments) if field.init]
    wrong = next((name for name in config.training if name not in known), None)
    if wrong is not None:
        raise AttnExtError(f"{where}: TrainingArguments has no field {wrong!r}.{suggest(wrong, known)}")
    given = {"report_to": "none", "save_total_limit": 2, **config.training}
    try:
        return TrainingArguments(output_dir=str(Path(config.out) / "checkpoints"), **given)
    except (TypeError, ValueError) as error:
        raise AttnExtError(f"{where}: training: {error}") from None


def open_model(config: MaskTraining) -> tuple[Any, Any, Any]:
    """The model under its mask, its tokenizer, and the collator that lays texts out for it."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

    import hf_attn_ext as hax
    from hf_attn_ext.config_tools import from_mapping
    from hf_attn_ext.integration import accept_neighbour_ids
    from hf_attn_ext.training import BlockTwoStreamCollator, ButterflyCollator

    options = dict(config.mask)
    name = options.pop("name")
    blocks = name == "block_two_stream"
    try:
        tokenizer = AutoTokenizer.from_pretrained(config.model)
        model = (AutoModelForCausalLM if blocks else AutoModelForMaskedLM).from_pretrained(config.model)
    except (OSError, ValueError) as error:
        raise AttnExtError(f"cannot open {config.model!r}: {str(error).splitlines()[0]}") from None
    if blocks:
        hax.add_mask_token(model, tokenizer)
    if config.kernel is not None:
        model = hax.convert(model, from_mapping(hax.AttnExtConfig, config.kernel, where="kernel"))
    hax.set_mask(model, name, **options)
    if not blocks:
        accept_neighbour_ids(model)
    return model, tokenizer, (BlockTwoStreamCollator if blocks else ButterflyCollator)(tokenizer, model)


def read_texts(config: MaskTraining, tokenizer: Any, collator: Any, where: str) -> tuple[Any, Any]:
    """Training and held-out sequences of token ids; long texts are cut into pieces, nothing is thrown away."""
    from hf_attn_ext.config_tools import from_mapping
    from hf_attn_ext.training import DataConfig
    from hf_attn_ext.training.data import load_task_data
    from hf_attn_ext.training.encoding import encode_documents

    data = from_mapping(DataConfig, {"task": "language_modeling", **config.data}, where=where, _path="data")
    if collator.max_length is not None and data.max_length > collator.max_length:
        raise AttnExtError(
            f"{where}: data.max_length is {data.max_length}, but {config.model!r} has {collator.max_length} positions"
        )
    loaded = load_task_data(data)
    return tuple(
        encode_documents(
            getattr(loaded, split), tokenizer, data.max_length, data.packing, data.borders, f"data.{split}"
        )
        for split in ("train", "validation")
    )


def run(path: str, overrides: list[str]) -> dict[str, Any]:
    """Train, save, and return the held-out losses."""
    import transformers
    from transformers.trainer_utils import get_last_checkpoint

    from hf_attn_ext.training.files import new_folder, write_json
    from hf_attn_ext.training.results import versions

    config = read_config(path, overrides)
    arguments = training_arguments(config, path)
    transformers.set_seed(arguments.seed)
    model, tokenizer, collator = open_model(config)
    train, held_out = read_texts(config, tokenizer, collator, path)
    trainer = transformers.Trainer(
        model, arguments, train_dataset=train, eval_dataset=held_out, data_collator=collator, processing_class=tokenizer
    )
    out = Path(config.out)
    before = trainer.evaluate()["eval_loss"]
    checkpoints = out / "checkpoints"
    trainer.train(resume_from_checkpoint=get_last_checkpoint(checkpoints) if checkpoints.is_dir() else None)
    result = {"loss_before": before, "loss_after": trainer.evaluate()["eval_loss"], "steps": trainer.state.global_step}
    if trainer.is_world_process_zero():
        with new_folder(out / "model") as target:
            trainer.model.save_pretrained(target)
            tokenizer.save_pretrained(target)
        write_json(out / "results.json", {"config": dataclasses.asdict(config), **result, "versions": versions()})
        after, steps = result["loss_after"], result["steps"]
        print(f"held-out loss, nats a prediction: {before:.3f} before, {after:.3f} after {steps} steps", end=" ")
        print(f"(seed {arguments.seed})\nwritten: {out / 'model'}, {out / 'results.json'}")
    return result


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
