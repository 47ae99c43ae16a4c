"""Context similarity, the source's study again (arXiv 2512.21956): 20,000 texts of 128 tokens, finding by finding.

    python -m benchmarks.studies.similarity_study                              # MiniLM, 6 layers deep
    python -m benchmarks.studies.similarity_study --model rxnfp                # 12 layers deep, on chemical reactions
    python -m benchmarks.studies.similarity_study --model bert-base-uncased    # the model of the source; needs a hub
    python -m benchmarks.studies.similarity_study --texts 1500                 # a part of it
    python -m benchmarks.studies.similarity_study --page docs/evidence/context-similarity.md    # also write the page

The texts are State of the Union addresses, and film reviews, joined film by film; each is cut to exactly 128 tokens of
the model, and as many as asked for are drawn. Reactions are taken whole. ``--data FILE`` takes other files instead.

Four runs of the probe: the model; and, on fewer texts, two controls and the model again, to compare them with: the same
model with random weights, which has learnt nothing, and the model on texts whose tokens are shuffled while sentences
stay where they were, where no language is left. To continue a stopped run, repeat the command.

Then the plain forward pass is timed against the probe on the same texts. Writes OUT/study.md, OUT/study.png,
OUT/speed.json, and OUT/trained with report.html, statistics and figures; OUT/reference, OUT/untrained and OUT/shuffled
have statistics.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.studies.common.options import check_least, make_parser, report_errors, say
from hf_attn_ext._util.files import read_json, write_json, write_text
from hf_attn_ext._util.versions import versions
from hf_attn_ext.cli.models import load_any, load_tokenizer, quiet
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.probe import ContextSimilarityProbe, ProbeConfig, ProbeRun
from hf_attn_ext.probe.corpus.annotate import annotate
from hf_attn_ext.probe.report.report import LIMIT
from hf_attn_ext.probe.run import PACKAGES, run_statistics, write_run
from hf_attn_ext.probe.run_folder import RunFolder

from . import data
from . import page as paging

FEWER = ("reference", "untrained", "shuffled")  # the first is the trained model on the controls' texts


def untrained(model: Any, seed: int) -> Any:
    """The same architecture with the random weights that training would begin with."""
    torch.manual_seed(seed)
    return type(model)(model.config).to(model.dtype).eval()


def run_one(name: str, model: Any, tokenizer: Any, config: ProbeConfig, out: Path) -> ProbeRun:
    """One run of the probe; what it took is noted in ``OUT/NAME-time.json`` where it read any text."""
    saved = RunFolder(config.out, 0, 1)
    done = saved.load()[1]
    say("study", f"{name}: {config.limit:,} texts" + (f", {done:,} of them done" if done else ""))
    spent = {"wall": 0.0, "processor": 0.0}
    with clock(spent):
        found = run_statistics(model, tokenizer, config)
        if name == "trained":
            write_run(found, model, tokenizer)
    found.statistics.to_json(found.folder / "statistics.json")
    if len(found.corpus) > done:
        write_json(out / f"{name}-time.json", {"texts": len(found.corpus) - done, **spent})
    return found


@contextlib.contextmanager
def clock(spent: dict[str, float], counts: bool = True) -> Iterator[None]:
    """Add the seconds that the block takes."""
    wall, processor = time.perf_counter(), time.process_time()
    yield
    if counts:
        spent["wall"] += time.perf_counter() - wall
        spent["processor"] += time.process_time() - processor


def speed(model: Any, tokenizer: Any, found: ProbeRun, batches: int) -> dict[str, Any]:
    """Time the plain forward pass and the probe, in turn, on the same batches, drawn evenly from the run's texts.

    The plain pass is given token ids; the probe reads the text itself, finds sentences, runs the model, and counts.
    """
    config, texts, documents = found.config, found.corpus.texts, found.corpus.documents
    options = {name: getattr(config, name) for name in ("truncation", "max_length", "language", "boundaries")}
    names = ("layers", "heads", "percents", "sample", "controls", "separators", "bootstrap", "seed")
    settings = {name: getattr(config, name) for name in names}
    first, probe = (ContextSimilarityProbe(model, tokenizer, **settings) for _ in range(2))
    size = config.batch_size
    batches = max(1, min(batches, len(texts) // size))
    starts = [number * len(texts) // batches for number in range(batches)]
    spent = {name: {"wall": 0.0, "processor": 0.0} for name in ("plain", "probe")}
    reader, device, tokens = model.base_model, next(model.parameters()).device, 0
    for number in (-1, *range(batches)):  # the first is not counted
        its = slice(starts[max(number, 0)], starts[max(number, 0)] + size)
        chosen = texts[its]
        known = annotate(chosen, tokenizer, **options)
        given = {name: getattr(known, name).to(device) for name in ("input_ids", "attention_mask")}
        with torch.no_grad(), clock(spent["plain"], number >= 0):
            reader(**given)
        used = first if number < 0 else probe
        with used, clock(spent["probe"], number >= 0):
            used.feed(chosen, size, documents=documents[its], **options)
        tokens += int(known.attention_mask.sum()) * (number >= 0)
    return {
        "batches": batches,
        "texts a batch": size,
        "tokens": tokens,
        "threads": torch.get_num_threads(),
        "texts in the sample": probe.statistics().counts["sampled"],
        **spent,
        "ratio": {clock: spent["plain"][clock] / spent["probe"][clock] for clock in ("wall", "processor")},
    }


@report_errors
def main(arguments: list[str] | None = None) -> int:
    """Parse the options and run the study."""
    parser = make_parser(__doc__)
    parser.add_argument("--model", default="minilm", help="minilm, rxnfp, a model's folder, or a hub id")
    parser.add_argument("--texts", type=int, default=20_000, help="how many to draw")
    parser.add_argument("--control-texts", type=int, default=2_000, help="of them, for either control; 0: no controls")
    parser.add_argument("--tokens", type=int, default=128, help="of a text, special ones included")
    parser.add_argument(
        "--data", action="append", metavar="FILE", help="documents instead (txt, jsonl, csv); repeatable"
    )
    parser.add_argument("--browse", type=int, default=3, help="texts in the report's browser, which makes it large")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--timed", type=int, default=64, help="batches that are timed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="default: runs/study-MODEL")
    parser.add_argument("--page", type=Path, help="a Markdown file whose part about this model is written anew")
    parser.add_argument("--quiet", dest="progress", action="store_false", help="no progress bar")
    options = parser.parse_args(arguments)
    return run(options)


def run(options: argparse.Namespace) -> int:
    """Run the study with parsed options."""
    quiet()
    check_least(options, texts=2, control_texts=0, tokens=8, browse=0, batch_size=1, timed=1)
    source = data.source_of(options.model, options.data, options.tokens)
    out = Path(options.out or f"runs/study-{source.name}")
    if options.page is not None and not options.page.is_file():
        raise AttnExtError(f"--page {str(options.page)!r} does not exist; it is a Markdown file with marks in it")
    model, tokenizer = load_any(source.model, head=False), load_tokenizer(source.model)
    if tokenizer is None:
        raise AttnExtError(f"{source.model!r} has no tokenizer; save one into the folder")
    files = source.files
    if files is None:
        files = [str(out / "texts.jsonl")]
        if not Path(files[0]).is_file():
            out.mkdir(parents=True, exist_ok=True)
            write_text(files[0], data.english())
    config = ProbeConfig(
        source.model,
        files,
        str(out / "trained"),
        limit=options.texts,
        batch_size=options.batch_size,
        seed=options.seed,
        browse=options.browse,
        progress=options.progress,
        **source.settings,
    )
    runs = {"trained": run_one("trained", model, tokenizer, config, out)}
    size = runs["trained"].report.stat().st_size
    if size > LIMIT:
        fewer = f"; give --browse {options.browse - 1} or less" if options.browse else ""
        raise AttnExtError(f"{runs['trained'].report} has {size:,} bytes, more than 5 MiB{fewer}")
    fewer = min(options.control_texts, options.texts)
    for name in FEWER if fewer else ():
        other = {"limit": fewer, "out": str(out / name), "shuffle_tokens": name == "shuffled"}
        its = untrained(model, options.seed) if name == "untrained" else model
        # all of a control's texts are in the sample: there would be few of them
        changed = dataclasses.replace(config, sample=1.0, browse=0, **other)
        runs[name] = run_one(name, its, tokenizer, changed, out)
    say("study", f"timing {options.timed} batches")
    timed = speed(model, tokenizer, runs["trained"], options.timed)
    times = out / "trained-time.json"
    timed["run"] = read_json(times) if times.is_file() else None
    write_json(out / "speed.json", timed)

    study = paging.Study(
        source,
        {name: found.statistics for name, found in runs.items()},
        timed,
        size,
        command(options),
        {name: getattr(runs["trained"].corpus, name) for name in ("document_count", "drawn_from", "left")},
        versions(*PACKAGES),
    )
    text = paging.markdown(study)
    write_text(out / "study.md", text)
    paging.draw(study, out / "study.png")
    if options.page is not None:
        paging.refresh(options.page, study, out)
    print(text)
    print(f"written: {out}/study.md, study.png, and {runs['trained'].report}")
    return 0


def command(options: argparse.Namespace) -> str:
    """Return the command line that makes the page, with every option that its numbers depend on."""
    given = {"model": options.model, "texts": options.texts, "control_texts": options.control_texts}
    given["timed"] = options.timed
    defaults = {"tokens": 128, "batch_size": 8, "seed": 0, "browse": 3, "page": None}
    given |= {name: getattr(options, name) for name, value in defaults.items() if getattr(options, name) != value}
    pairs = [*given.items(), *(("data", file) for file in options.data or ())]
    words = [word for name, value in pairs for word in (f"--{name.replace('_', '-')}", str(value))]
    return shlex.join(["python", "-m", "benchmarks.studies.similarity_study", *words])


if __name__ == "__main__":
    sys.exit(main())
