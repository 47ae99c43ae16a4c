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

To continue a stopped run, repeat the command. Writes OUT/results.json, .md and .png.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

from benchmarks.assets import ensure
from benchmarks.studies.common.folders import claim, make_folder, settings_of, whole_file
from benchmarks.studies.common.options import check_least, make_parser, report_errors, seeds_of
from benchmarks.studies.common.results import write_results
from hf_attn_ext._util.files import read_json, write_json
from hf_attn_ext.cli.models import quiet
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.positions import max_tokens
from hf_attn_ext.integration.base_models.readable_layers import capturable_layers
from hf_attn_ext.probe.applications.segmentation import SIMILARITIES, sentence_similarities
from hf_attn_ext.probe.applications.segmentation_scores import segmentation_scores
from hf_attn_ext.probe.applications.sentence_vectors import SENTENCE, sentence_vectors

from . import contestants as contest
from . import data, rivals
from . import report as reporting

TRAINING_SEED = 1000
# A folder may hold more documents than a run asks for.
FREE = ("progress", "training", "documents", "reviews")


class Run:
    """Models, and what they read; every document's reading is kept in the folder."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.out = options, Path(options.out)
        self.tokenizer = AutoTokenizer.from_pretrained(ensure("minilm"))
        self.model = AutoModel.from_pretrained(ensure("minilm")).eval()
        torch.manual_seed(0)
        self.random = AutoModel.from_config(self.model.config).eval()
        self.layers = len(capturable_layers(self.model))
        self.window = min(options.window, max_tokens(self.model) or options.window)
        claim(self.out, settings_of(options, FREE))
        make_folder(self.out / "documents")

    def read(self, documents: list[data.Document], usual: float) -> list[contest.Data]:
        """Return what the contestants need to know about each document."""
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
            with whole_file(path) as file:
                np.savez_compressed(file, **found)
        with np.load(path) as kept:
            return dict(kept)

    def tiling(self, document: data.Document, width: int, blocks: int) -> dict[str, list]:
        """Return what TextTiling finds in a document."""
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


@report_errors
def main(arguments: list[str] | None = None) -> int:
    """Parse the options and run the study."""
    parser = make_parser(__doc__)
    parser.add_argument("--training", type=int, default=16, help="documents from the training years to choose on")
    parser.add_argument("--documents", type=int, default=10, help="documents from other years, for each seed")
    parser.add_argument("--reviews", type=int, default=12, help="documents of film reviews; 0 leaves them out")
    parser.add_argument("--seeds", default="0,1,2", help="of the concatenation")
    parser.add_argument("--pieces", type=int, default=10, help="of a document")
    parser.add_argument("--window", type=int, default=128, help="tokens of a window; 128 is the source's input")
    parser.add_argument("--out", default="runs/segmentation")
    parser.add_argument("--quiet", dest="progress", action="store_false", help="no progress on stderr")
    options = parser.parse_args(arguments)
    return run(options)


def run(options: argparse.Namespace) -> int:
    """Run the study with parsed options."""
    quiet()
    seeds = seeds_of(options.seeds)
    check_least(options, training=2, documents=2, reviews=0, pieces=2, window=8)
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
    write_results(job.out, report, reporting.tables(report), reporting.draw(report, corpora["addresses"][0]))
    if options.progress:
        print(f"[segmentation] processor time {time.process_time():.0f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
