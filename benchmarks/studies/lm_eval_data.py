"""Two small tasks for lm-evaluation-harness, from State of the Union addresses that no example of ours trains on.

    python -m benchmarks.studies.lm_eval_data
    hf-attn-ext lm-eval --model hf --model_args pretrained=FOLDER --tasks sotu \
        --include_path benchmarks/studies/lm_eval_tasks

The tasks are in ``benchmarks/studies/lm_eval_tasks/`` and read what this command writes to ``runs/lm_eval/``, so both
commands run in the same folder:

addresses.jsonl      the beginning of every address of the test years (``sotu_perplexity``).
continuations.jsonl  a passage of 60 words, and four continuations of 10: the true one, and three that follow other
                     passages of the same address (``sotu_continuation``). ``acc_mutual_info`` is the one to look at:
                     what the passage adds to a continuation's log-likelihood. ``acc`` mostly finds the commonest words.

The seed alone determines the questions.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks.studies.common.options import make_parser, report_errors
from benchmarks.studies.common.texts import read_addresses
from hf_attn_ext._util.files import write_text

OUT = Path("runs/lm_eval")
CHOICES = 4


def beginning(text: str, words: int) -> str:
    """The text up to its ``words``-th word, white space as it was."""
    ends = [match.end() for match in itertools.islice(re.finditer(r"\S+", text), words)]
    return text[: ends[-1]] if ends else ""


def questions(addresses: list[dict[str, Any]], count: int, passage: int, words: int, seed: int) -> list[dict[str, Any]]:
    """At most ``count`` questions, spread evenly over the addresses; ``passage`` and ``words`` are lengths in words.

    An address is cut into pieces of a passage and its continuation, wherever that falls; no piece is used twice.
    """
    generator, made = random.Random(seed), []
    for number, address in enumerate(addresses):
        text, length = address["text"].split(), passage + words
        starts = [length * i for i in range(len(text) // length)]
        generator.shuffle(starts)
        wanted = count * (number + 1) // len(addresses) - count * number // len(addresses)
        for _ in range(min(wanted, len(starts) // CHOICES)):
            pieces = [starts.pop() for _ in range(CHOICES)]
            answer = generator.randrange(CHOICES)
            true = pieces[answer]
            made.append(
                {
                    "passage": " ".join(text[true : true + passage]),
                    "choices": [" ".join(text[start + passage : start + length]) for start in pieces],
                    "answer": answer,
                    "address": address["address"],
                }
            )
    return made


def write(path: Path, records: list[dict[str, Any]]) -> None:
    """Write records as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    write_text(path, "".join(lines))
    print(f"{path}: {len(records)}")


@report_errors
def main(arguments: list[str] | None = None) -> None:
    """Parse the options and run the study."""
    parser = make_parser(__doc__)
    parser.add_argument("--words", type=int, default=1000, help="of an address, for the perplexity")
    parser.add_argument("--questions", type=int, default=400, help="at most")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    addresses = read_addresses("test")
    write(OUT / "addresses.jsonl", [{**row, "text": beginning(row["text"], options.words)} for row in addresses])
    write(OUT / "continuations.jsonl", questions(addresses, options.questions, passage=60, words=10, seed=options.seed))


if __name__ == "__main__":
    sys.exit(main())
