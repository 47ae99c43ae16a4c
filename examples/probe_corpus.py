"""What do the heads of a model compare? Probe it on a corpus and write a report to open in a browser.

    python examples/probe_corpus.py                                               # MiniLM, 30 seconds on two cores
    python examples/probe_corpus.py --model bert-base-uncased --texts texts.csv --count 2000

``make assets`` fetches the default model and texts. Context similarity is the cosine of what a head writes for two
tokens; the probe reads it during ordinary forward passes, in memory that does not grow with the corpus.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from transformers import AutoModel, AutoTokenizer

import hf_attn_ext  # noqa: F401  (opens converted folders too)
from hf_attn_ext.probe import ContextSimilarityProbe


def main(arguments: list[str] | None = None) -> None:
    """Parse the options and run the example."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=".assets/minilm-roberta", help="a folder or a hub id")
    parser.add_argument("--texts", type=Path, default=Path(".assets/reviews/test.csv"), help="a CSV file, column text")
    parser.add_argument("--count", type=int, default=96, help="texts to read, several sentences each")
    parser.add_argument("--out", type=Path, default=Path("runs/probe_corpus"))
    options = parser.parse_args(arguments)

    with options.texts.open(encoding="utf-8", newline="") as stream:
        sentences = [row["text"] for row in csv.DictReader(stream)]
    texts = [" ".join(sentences[start : start + 4]) for start in range(0, len(sentences), 4)][: options.count]
    model = AutoModel.from_pretrained(options.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    with ContextSimilarityProbe(model, tokenizer) as probe:
        probe.feed(texts, batch_size=16, truncation=True, max_length=128)
    statistics = probe.statistics()
    options.out.mkdir(parents=True, exist_ok=True)
    statistics.to_json(options.out / "statistics.json")
    for statistic in statistics.statistics:
        values = statistic.values
        if statistic.measure == "dot" and statistic.percent in (None, 5) and values.ndim == 2:
            layer, head = np.unravel_index(np.nanargmax(values), values.shape)
            print(f"{statistic.name}: highest in layer {layer}, head {head}: {values[layer, head]:.3f}")
    print(f"report: {probe.report(options.out / 'report.html')}")


if __name__ == "__main__":
    main()
