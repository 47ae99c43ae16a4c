"""Text segmentation from MiniLM's context similarity and separator focus, against embeddings and TextTiling.

    python -m benchmarks.studies.segmentation                              # minutes on one core
    python -m benchmarks.studies.segmentation --documents 6 --training 8   # a part of it

A document is ten pieces of 3 to 11 sentences from State of the Union addresses of different presidents, one after
another (Choi 2000); which sentences begin a piece is to be found. What each contestant is free to choose (layers,
method, weights, thresholds) is chosen on documents from the training years, by Pk, for ours and for the rivals alike;
the table is on documents from other years. A second table has documents of film reviews, for which nothing is chosen.

Contestants: context similarity of MiniLM's heads, sentences read one by one or in windows of 128 tokens; the attention
that separators draw in the last layers; both; the same heads with random weights; embeddings of the sentences by MiniLM
with the same two ways to cut; TextTiling from nltk; equal lengths; chance. The number of pieces is known, or not.

A stopped run goes on when the same command is given again. Writes OUT/results.json, .md and .png.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.assets import AssetError, ensure
from benchmarks.studies.common.options import seeds_of
from hf_attn_ext._util.files import atomic_write, read_json, write_json, write_text
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.readable_layers import capturable_layers, max_tokens
from hf_attn_ext.probe.applications.segmentation import SIMILARITIES, sentence_similarities
from hf_attn_ext.probe.applications.segmentation_scores import segmentation_scores
from hf_attn_ext.probe.applications.sentence_vectors import SENTENCE, sentence_vectors
from hf_attn_ext.training.results import versions

from . import contestants as contest
from . import data, rivals
from . import report as reporting

TRAINING_SEED = 1000
FREE = (
    "out",
    "progress",
    "training",
    "documents",
    "seeds",
    "reviews",
)  # a folder may hold more documents than a run asks for


class Run:
    """Models, and what they read; every document's reading is kept in the folder."""

    def __init__(self, options: argparse.Namespace) -> None:
        from transformers import AutoModel, AutoTokenizer

        self.options, self.out = options, Path(options.out)
        self.tokenizer = AutoTokenizer.from_pretrained(ensure("minilm"))
        self.model = AutoModel.from_pretrained(ensure("minilm")).eval()
        torch.manual_seed(0)
        self.random = AutoModel.from_config(self.model.config).eval()
        self.layers = len(capturable_layers(self.model))
        self.window = min(options.window, max_tokens(self.model))
        marker, settings = self.out / "settings.json", {k: v for k, v in vars(options).items() if k not in FREE}
        if marker.is_file():
            for name, before in read_json(marker).items():
                if before != settings[name]:
                    raise AttnExtError(
                        f"{self.out} holds a run with --{name} {before}, not {settings[name]}; choose another --out"
                    )
        (self.out / "documents").mkdir(parents=True, exist_ok=True)
        write_json(marker, settings)

    def read(self, documents: list[data.Document], usual: float) -> list[contest.Data]:
        found = []
        for number, document in enumerate(documents):
            if self.options.progress and sys.stderr.isatty():
                print(f"\r[segmentation] {document.name}: {number + 1} of {len(documents)} ", end="", file=sys.stderr)
            found.append(contest.Data(document, self.features(document), self.tiling, usual))
        if self.options.progress:
            print(f"\r[segmentation] {len(documents)} documents like {documents[0].name} are read", file=sys.stderr)
        return found

    def features(self, document: data.Document) -> dict[str, np.ndarray]:
        """Similarities (L, n, n) and focus (L, n - 1) by reading, and embeddings (n, width)."""
        path = self.out / "documents" / f"{document.name}.npz"
        if not path.is_file():
            found = {}
            readings = (("sentence", self.model, SENTENCE), ("window", self.model, self.window))
            for name, model, window in (*readings, ("random", self.random, SENTENCE)):
                focus = name != "random"
                read = sentence_vectors(
                    model, self.tokenizer, document.text, layers=range(self.layers), window=window, focus=focus
                )
                if read.spans[:, 0].tolist() != document.starts:
                    raise AttnExtError(f"{document.name} was read in other sentences than it was made of")
                for kind in SIMILARITIES:
                    of_layers = [sentence_similarities(read.of_layers(layer), kind) for layer in read.layers]
                    found[f"{name}-{kind}"] = np.stack(of_layers).astype(np.float32)
                if focus:
                    found[f"{name}-focus"] = read.focus.mean(1)[:, :-1]
            limit = max_tokens(self.model)
            embedded = rivals.embeddings(self.model, self.tokenizer, document.sentences, limit)
            found["embedding"] = embedded.astype(np.float32)
            with atomic_write(path) as beside, open(beside, "wb") as file:
                np.savez_compressed(file, **found)
        with np.load(path) as kept:
            return dict(kept)

    def tiling(self, document: data.Document, width: int, blocks: int) -> dict[str, list]:
        path = self.out / "documents" / f"{document.name}-tiling-{width}-{blocks}.json"
        if not path.is_file():
            write_json(path, rivals.text_tiling(document.sentences, width, blocks))
        return read_json(path)


def evaluate(
    tuned: dict[str, tuple], corpora: dict[str, list[contest.Data]], known: bool
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """By corpus and contestant, the scores of every document and the borders found."""
    found: dict[str, dict[str, list]] = {}
    for corpus, documents in corpora.items():
        found[corpus] = {}
        for name, (way, option, _) in tuned.items():
            rows = []
            for one in documents:
                borders = way(one, option, known)
                scores = segmentation_scores(borders, one.document.borders, one.count)
                rows.append({**scores, "borders": [int(border) for border in borders]})
            found[corpus][name] = rows
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--training", type=int, default=16, help="documents from the training years to choose on")
    parser.add_argument("--documents", type=int, default=10, help="documents from other years, for each seed")
    parser.add_argument("--reviews", type=int, default=12, help="documents of film reviews; 0 leaves them out")
    parser.add_argument("--seeds", default="0,1,2", help="of the concatenation")
    parser.add_argument("--pieces", type=int, default=10, help="of a document")
    parser.add_argument("--window", type=int, default=128, help="tokens of a window; 128 is the source's input")
    parser.add_argument("--out", default="runs/segmentation")
    parser.add_argument("--quiet", dest="progress", action="store_false", help="no progress on stderr")
    options = parser.parse_args(arguments)
    try:
        return run(options)
    except (AttnExtError, AssetError) as error:
        print("error: " + " ".join(str(error).split()), file=sys.stderr)
        return 2


def run(options: argparse.Namespace) -> int:
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    seeds = seeds_of(options.seeds)
    for name, least in (("training", 2), ("documents", 2), ("reviews", 0), ("pieces", 2), ("window", 8)):
        if getattr(options, name) < least:
            raise AttnExtError(f"--{name} must be at least {least}, got {getattr(options, name)}")
    pieces = options.pieces
    training = data.documents("training", data.addresses("train"), options.training, pieces, TRAINING_SEED)
    sources = data.addresses("test")
    held_out = [one for seed in seeds for one in data.documents("held-out", sources, options.documents, pieces, seed)]
    films = data.documents("reviews", data.reviews("test"), options.reviews, pieces, 0) if options.reviews else []
    job = Run(options)
    usual = float(np.mean([len(one.starts) / pieces for one in training]))
    learnt = job.read(training, usual)
    corpora = {"addresses": job.read(held_out, usual)}
    if films:
        corpora["reviews"] = job.read(films, usual)
    report: dict[str, Any] = {
        "options": vars(options),
        "usual": usual,
        "sizes": {
            name: {
                "documents": len(documents),
                "sentences": float(np.mean([one.count for one in documents])),
                "sources": len({author for one in documents for author in one.document.sources}),
            }
            for name, documents in {"training": learnt, **corpora}.items()
        },
        "settings": {},
        "versions": versions(),
    }
    for setting, known in (("known", True), ("unknown", False)):
        tuned = contest.tune(learnt, known, job.layers)
        scores = evaluate(tuned, corpora, known)
        report["settings"][setting] = {
            "tuned": {name: {"options": option, "training_pk": pk} for name, (_, option, pk) in tuned.items()},
            "corpora": {name: reporting.summarised(rows) for name, rows in scores.items()},
            "by_seed": {
                name: np.reshape([row["pk"] for row in rows], (len(seeds), -1)).mean(1).tolist()
                for name, rows in scores["addresses"].items()
            },
            "documents": scores,
        }
    write_json(job.out / "results.json", report)
    text = reporting.markdown(report)
    write_text(job.out / "results.md", text)
    reporting.draw(report, corpora["addresses"][0], job.out / "results.png")
    print(text)
    print(f"written: {job.out}/results.json, .md, .png")
    if options.progress:
        print(f"[segmentation] processor time {time.process_time():.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
