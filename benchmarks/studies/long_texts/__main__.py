"""MiniLM reads 4,096 tokens instead of 512: what it keeps on short texts, and what it gains on long ones.

    python -m benchmarks.studies.long_texts                      # a quarter of an hour on one core
    python -m benchmarks.studies.long_texts --documents 60       # a part of it
    python -m benchmarks.studies.long_texts --seeds 0,1,2        # more seeds of the conversion

MiniLM, a sentence encoder with 512 positions, gets 4,096 (``hax.extend_positions``); its attention is converted to a
linear kernel in all layers, and the kernels learn from softmax (stage 1) on texts of all lengths from 32 to 2,048
tokens. No other weight is trained, in no contestant. A text's embedding is the mean of its tokens' outputs, as the
encoder is meant to be used; on the embeddings a ridge regression is fitted, the same for all.

**The long task**: in which year was this State of the Union address given? Addresses of more than 4,096 tokens, read
from the beginning, 512 tokens or more of them. Each president's are dated by a regression fitted on those of all
others; errors are in years, their standard errors from a bootstrap over presidents. Stage 1 has seen none of these
addresses. The converted model is compared with MiniLM's own softmax on the first 512 tokens; with the same on windows
of 512 tokens, embeddings averaged; with a control without attention (plain averaging in every layer); and with a bag of
words.

**Short texts**: the valence of review sentences (films apart), the first 128 tokens of the addresses, and how close the
converted model's embeddings are to MiniLM's.

**Cost**: processor time and peak memory of one forward pass of one document, for softmax and the converted model.

To continue a stopped run, repeat the command. Writes OUT/results.json, .md and .png; the converted
encoder is in OUT/model-SEED: ``AutoModel.from_pretrained`` opens it, after ``import hf_attn_ext``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer

import hf_attn_ext as hax
from benchmarks import checkout_environment
from benchmarks.assets import ensure
from benchmarks.studies.common.folders import claim, save_array, settings_of
from benchmarks.studies.common.options import check_least, make_parser, report_errors, say, seeds_of
from benchmarks.studies.common.results import write_results
from hf_attn_ext._util.files import new_folder, read_json, write_json
from hf_attn_ext.cli.models import quiet
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.training import distill
from hf_attn_ext.training.launch import computes_in_bf16

from . import data, scores
from . import report as reporting

WINDOW = 512  # at most the positions of the base model
KERNEL = {"kernel": "flexformer_p", "num_features": 64}
STAGE1 = {"batch_size": 2, "lr": 2e-2, "queries_per_sequence": 64, "calibration_batches": 4}


class Run:
    """One run: every part is kept in its folder when it is finished, and read from there the next time."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.out = options, Path(options.out)
        stock = AutoConfig.from_pretrained(ensure("minilm"))
        self.window = min(WINDOW, stock.max_position_embeddings - stock.pad_token_id - 1)
        if options.longest < 2 * self.window:
            least = 2 * self.window
            raise AttnExtError(f"--longest must be at least {least}, twice what MiniLM has; got {options.longest}")
        self.lengths = [self.window]
        while self.lengths[-1] < options.longest:
            self.lengths.append(min(2 * self.lengths[-1], options.longest))
        self.short = self.window // 4
        self.bf16 = computes_in_bf16() if options.precision == "auto" else options.precision == "bf16"
        self.tokenizer = AutoTokenizer.from_pretrained(ensure("minilm"), model_max_length=options.longest)
        found = data.long_documents(self.tokenizer, options.longest, options.documents)
        self.documents, self.years, self.presidents = found
        claim(self.out, settings_of(options, ("progress",)))

    # -- models ------------------------------------------------------------------------------------------------------

    def extended(self) -> Path:
        """Folder of the base model with more positions, and its tokenizer."""
        folder = self.out / "extended"
        if not folder.is_dir():
            model = hax.extend_positions(AutoModel.from_pretrained(ensure("minilm")), self.options.longest)
            with new_folder(folder) as target:
                model.save_pretrained(target)
                self.tokenizer.save_pretrained(target)
        return folder

    def stage1(self, seed: int) -> dict[str, Any]:
        """Convert and train the kernels: the library's distillation without a task. Returns its results."""
        steps, texts = self.options.steps, self.out / "stage1-texts"
        length = min(4 * self.window, self.options.longest)
        if not texts.is_dir():
            count = STAGE1["batch_size"] * steps
            with new_folder(texts) as target:
                data.write_stage1(target, self.tokenizer, count, self.window, length)
        often = {"evaluate_every": steps, "checkpoint_every": max(1, steps // 8)}
        config = {
            "model": {"name": str(self.extended())},
            "data": {
                "path": str(texts),
                "train": "train.csv",
                "validation": "validation.csv",
                "task": "regression",
                "max_length": length,
            },
            "kernel": KERNEL,
            "stage1": {**STAGE1, "steps": steps, **often},
            "stage2": {"steps": 0},
            "measure": ["converted", "stage1"],
            "mixed_precision": "bf16" if self.bf16 else "no",
            "output": {"folder": str(self.out / f"stage1-{seed}"), "progress": self.options.progress},
            "seed": seed,
        }
        return distill(config).results

    def converted(self, seed: int) -> Path:
        """Folder of the bare encoder with the trained kernels; its other weights are the base model's."""
        folder = self.out / f"model-{seed}"
        if not folder.is_dir():
            trained = AutoModelForSequenceClassification.from_pretrained(self.out / f"stage1-{seed}" / "model")
            model = hax.convert(AutoModel.from_pretrained(self.extended()), hax.AttnExtConfig(**KERNEL, seed=seed))
            for ours, theirs in zip(hax.converted_layers(model), hax.converted_layers(trained), strict=True):
                ours.feature_map.load_state_dict(theirs.feature_map.state_dict())
            with new_folder(folder) as target:
                model.save_pretrained(target)
                self.tokenizer.save_pretrained(target)
        return folder

    def model(self, kind: str, seed: int = 0) -> torch.nn.Module:
        """The encoder in one form: ``softmax``, ``converted`` or ``uniform``."""
        found = AutoModel.from_pretrained(self.converted(seed) if kind == "converted" else self.extended())
        if kind == "uniform":
            hax.convert(found, kernel="uniform", num_features=1)
        return found.eval()

    # -- embeddings --------------------------------------------------------------------------------------------------

    def embed(self, name: str, kind: str, rows: list[list[int]], seed: int = 0) -> np.ndarray:
        """Mean of the last outputs of each row's tokens (n, width); rows are token ids without the special ones."""
        path = self.out / "embeddings" / f"{name}.npy"
        path.parent.mkdir(exist_ok=True)
        done = np.load(path) if path.is_file() else None
        if done is not None and np.isfinite(done).all():
            return done
        model = self.model(kind, seed)
        found = np.full((len(rows), model.config.hidden_size), np.nan, np.float32) if done is None else done
        lengths = np.array([len(row) for row in rows])
        order = [int(i) for i in np.argsort(-lengths, kind="stable") if not np.isfinite(found[i]).all()]
        start = last = time.perf_counter()
        count = 0
        while count < len(order):
            size = max(1, 2 * self.window // (int(lengths[order[count]]) + 2))
            batch = order[count : count + size]
            found[batch] = self._forward(model, [rows[i] for i in batch])
            count += len(batch)
            if time.perf_counter() - last > 20 or count == len(order):
                last = time.perf_counter()
                save_array(path, found)
                if self.options.progress:
                    say("long", f"{name}: {count} of {len(order)} texts, {last - start:.0f} s")
        return found

    def _forward(self, model: torch.nn.Module, rows: list[list[int]]) -> np.ndarray:
        ids = torch.full((len(rows), max(map(len, rows)) + 2), self.tokenizer.pad_token_id)
        mask = torch.zeros_like(ids)
        for i, row in enumerate(rows):
            ids[i, : len(row) + 2] = torch.tensor(self._with_ends(row))
            mask[i, : len(row) + 2] = 1
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            states = model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        weights = mask[..., None].float()
        return ((states * weights).sum(1) / weights.sum(1)).numpy()

    def _with_ends(self, row: list[int]) -> list[int]:
        return [self.tokenizer.cls_token_id, *row, self.tokenizer.sep_token_id]

    def first(self, length: int) -> list[list[int]]:
        """Return the beginnings of all documents, ``length`` tokens with the special ones."""
        return [row[: length - 2] for row in self.documents]

    # -- what is measured --------------------------------------------------------------------------------------------

    def long_task(self, seeds: list[int]) -> dict[str, list[np.ndarray]]:
        """Predicted years by ``"contestant, tokens"``; of the converted model one array per seed."""

        def date(features: np.ndarray, fit: Any = scores.ridge) -> np.ndarray:
            return scores.apart(features, self.years, self.presidents, fit)

        longest, predicted = self.options.longest, {}
        predicted[f"softmax, {self.short}"] = [date(self.embed_first("softmax", self.short))]
        windows = self.windows()
        for length in self.lengths:
            name = "softmax" if length == self.window else "softmax in windows"
            predicted[f"{name}, {length}"] = [date(windows[:, : length // self.window].mean(1))]
        for length in (self.short, *self.lengths):
            embedded = [self.embed_first("converted", length, seed) for seed in seeds]
            predicted[f"converted, {length}"] = [date(features) for features in embedded]
        for length in (self.window, longest):
            predicted[f"no attention, {length}"] = [date(self.embed_first("uniform", length))]
        if self.options.softmax_whole:
            predicted[f"softmax, {longest}"] = [date(self.embed_first("softmax", longest))]
        for length in self.lengths:
            words = scores.bag_of_words(self.first(length))
            predicted[f"bag of words, {length}"] = [date(words, scores.plain_ridge)]
        return predicted

    def windows(self) -> np.ndarray:
        """Softmax embeddings of the windows that a document begins with, (documents, windows, width)."""
        room, count = self.window - 2, self.options.longest // self.window
        rows = [row[i * room : (i + 1) * room] for row in self.documents for i in range(count)]
        return self.embed("softmax-windows", "softmax", rows).reshape(len(self.documents), count, -1)

    def embed_first(self, kind: str, length: int, seed: int = 0) -> np.ndarray:
        """Return the embeddings of the beginnings of all documents, (documents, width)."""
        if kind == "softmax" and length == self.window:
            return self.windows()[:, 0]
        name = f"{kind}-{seed}-{length}" if kind == "converted" else f"{kind}-{length}"
        return self.embed(name, kind, self.first(length), seed)

    def short_task(self, seeds: list[int]) -> dict[str, Any]:
        """Valence of review sentences, and how close the converted embeddings are to the base model's."""
        rows = data.some_reviews("train", 2 * self.options.sentences)
        cut = len(rows)
        rows += data.some_reviews("test", self.options.sentences)
        ids = self.tokenizer([row["text"] for row in rows], add_special_tokens=False)["input_ids"]
        ids = [row[: self.window - 2] for row in ids]
        labels = np.array([float(row["label"]) for row in rows])
        embedded = {
            "softmax": [self.embed("sentences-softmax", "softmax", ids)],
            "converted": [self.embed(f"sentences-converted-{seed}", "converted", ids, seed) for seed in seeds],
            "no attention": [self.embed("sentences-uniform", "uniform", ids)],
        }
        predicted = {
            name: [scores.ridge(x[:cut], labels[:cut]).predict(x[cut:]) for x in found]
            for name, found in embedded.items()
        }
        films = np.array([row["movie"] for row in rows])[cut:]
        stock = embedded["softmax"][0][cut:]
        close = {"sentences": [scores.agreement(stock, x[cut:]) for x in embedded["converted"]]}
        for length in (self.short, self.window):
            stock = self.embed_first("softmax", length)
            ours = [self.embed_first("converted", length, seed) for seed in seeds]
            close[f"{length} tokens"] = [scores.agreement(stock, x) for x in ours]
        return {
            "train": cut,
            "test": len(rows) - cut,
            "films": len(np.unique(films)),
            "agreement": close,
            "valence": scores.compared(scores.pearson, labels[cut:], predicted, films, "softmax"),
        }

    def heads(self, seeds: list[int]) -> dict[str, list[float]]:
        """Error of the kernels' heads on the beginnings of four documents, by length, a number per seed."""
        errors: dict[str, list[float]] = {}
        for seed in seeds:
            path = self.out / f"heads-{seed}.json"
            if not path.is_file():
                model, found = self.model("converted", seed), {}
                for length in (self.short, self.window, self.options.longest):
                    texts = [torch.tensor([self._with_ends(row)]) for row in self.first(length)[:4]]
                    found[str(length)] = scores.heads_error(model, texts)
                write_json(path, found)
            for length, error in read_json(path).items():
                errors.setdefault(length, []).append(error)
        return errors

    def cost(self) -> dict[str, Any]:
        """Time and memory, measured in a process of their own."""
        path = self.out / "cost.json"
        if not path.is_file():
            if self.options.progress:
                say("long", "time and memory")
            command = [sys.executable, "-m", "benchmarks.studies.long_texts.cost", str(self.extended())]
            command += [str(self.converted(self.options.seeds[0])), ",".join(map(str, self.lengths))]
            command.append("bf16" if self.bf16 else "no")
            done = subprocess.run(command, env=checkout_environment(), stdout=subprocess.PIPE, text=True)
            if done.returncode:
                raise AttnExtError(f"measuring time and memory failed with code {done.returncode}")
            write_json(path, json.loads(done.stdout))
        return read_json(path)


@report_errors
def main(arguments: list[str] | None = None) -> int:
    """Parse the options and run the study."""
    parser = make_parser(__doc__)
    parser.add_argument("--longest", type=int, default=4096, help="tokens of a document")
    parser.add_argument("--documents", type=int, default=120, help="addresses of that length, at most; there are 187")
    parser.add_argument("--sentences", type=int, default=600, help="reviews to test on; twice as many to fit on")
    parser.add_argument("--steps", type=int, default=160, help="of stage 1, two texts each")
    parser.add_argument("--seeds", default="0", help="of the conversion and stage 1")
    parser.add_argument("--softmax-whole", action="store_true", help="also softmax on whole documents: slow")
    parser.add_argument("--precision", default="auto", choices=("auto", "bf16", "no"))
    parser.add_argument("--out", default="runs/long")
    parser.add_argument("--quiet", dest="progress", action="store_false", help="no progress on stderr")
    options = parser.parse_args(arguments)
    return run(options)


def run(options: argparse.Namespace) -> int:
    """Run the study with parsed options."""
    quiet()
    seeds = options.seeds = seeds_of(options.seeds)
    check_least(options, documents=1, sentences=1, steps=1)
    job = Run(options)
    transfer = [job.stage1(seed)["transfer"] for seed in seeds]
    predicted = job.long_task(seeds)

    def dated(reference: str) -> dict[str, dict[str, Any]]:
        return scores.compared(scores.root_mean_square, job.years, predicted, job.presidents, reference)

    report = {
        "options": vars(options),
        "window": job.window,
        "short": job.short,
        "lengths": job.lengths,
        "precision": "bf16" if job.bf16 else "float32",
        "kernel": KERNEL,
        "documents": len(job.documents),
        "presidents": len(np.unique(job.presidents)),
        "years": dated(f"softmax, {job.window}"),
        "years_against_converted": dated(f"converted, {options.longest}"),
        "pearson": {name: [scores.pearson(job.years, x) for x in found] for name, found in predicted.items()},
        "spread": float(np.std(job.years)),
        "short_texts": job.short_task(seeds),
        "transfer": transfer,
        "heads": job.heads(seeds),
        "cost": job.cost(),
    }
    write_results(job.out, report, reporting.tables(report), reporting.draw(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
