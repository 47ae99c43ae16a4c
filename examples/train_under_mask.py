"""Train an encoder under the butterfly mask with the Trainer: each token is predicted from all others, in one pass.

    python examples/train_under_mask.py                                          # MiniLM, 1 minute on two cores
    python examples/train_under_mask.py --model roberta-base --texts texts.csv --steps 2000

``make assets`` fetches the default model and texts. Masked language modelling predicts 15% of the tokens per pass, and
scoring a text of n tokens takes n passes; under ``butterfly`` both take one pass over 3n - 2 positions.
``python -m benchmarks.studies.train_under_mask`` does the same from a YAML file and continues where it was stopped.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, Trainer, TrainingArguments

import hf_attn_ext as hax
from hf_attn_ext.inference import butterfly_score
from hf_attn_ext.training import ButterflyCollator, LabelLoss, accept_neighbour_ids


def main(arguments: list[str] | None = None) -> None:
    """Parse the options and run the example."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=".assets/minilm-roberta", help="a folder or a hub id of a masked model")
    parser.add_argument("--texts", type=Path, default=Path(".assets/reviews/train.csv"), help="a CSV file, column text")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--max-length", type=int, default=32, help="tokens of a text; longer ones are cut")
    parser.add_argument("--out", type=Path, default=Path("runs/train_under_mask"))
    options = parser.parse_args(arguments)

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForMaskedLM.from_pretrained(options.model)
    accept_neighbour_ids(hax.set_mask(model, "butterfly"))
    with options.texts.open(encoding="utf-8", newline="") as stream:
        texts = [row["text"] for row in csv.DictReader(stream)]
    data = [{"input_ids": ids} for ids in tokenizer(texts, add_special_tokens=False)["input_ids"] if len(ids) > 1]
    held_out, train = data[:32], data[32:]
    trainer = Trainer(
        model,
        TrainingArguments(
            output_dir=str(options.out / "checkpoints"),
            max_steps=options.steps,
            per_device_train_batch_size=options.batch_size,
            learning_rate=5e-4,
            warmup_steps=options.steps // 10,
            logging_steps=max(1, options.steps // 6),
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=train,
        eval_dataset=held_out,
        data_collator=ButterflyCollator(tokenizer, model, max_length=options.max_length),
        compute_loss_func=LabelLoss(),  # right for every model and gradient_accumulation_steps
        processing_class=tokenizer,
    )
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    print(f"held-out loss, nats per token: {before:.2f} before, {trainer.evaluate()['eval_loss']:.2f} after")
    model.save_pretrained(options.out / "model")
    tokenizer.save_pretrained(options.out / "model")

    # A folder of a model that is not converted is opened with attn_implementation="hasse".
    opened = AutoModelForMaskedLM.from_pretrained(options.out / "model", attn_implementation="hasse").eval()
    ids = torch.tensor([held_out[0]["input_ids"][: options.max_length]])
    scores = butterfly_score(opened, ids)[0]
    print("log-probability of each token given all the others, in one pass:")
    tokens = tokenizer.convert_ids_to_tokens(ids[0])
    print("  ".join(f"{token} {score:.1f}" for token, score in zip(tokens, scores, strict=True)))


if __name__ == "__main__":
    main()
