"""What the probe costs: time and memory over the plain forward pass, against TransformerLens where it is installed.

The rival keeps what the probe needs, and no more (the heads' outputs, ``hook_z``), and makes the same matrices from it;
it counts nothing. Random weights and texts: costs do not depend on them.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch
from rich.table import Table
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from benchmarks import checkout_environment
from benchmarks.speed.attention.report import make_table, show_mebibytes, show_time
from benchmarks.speed.measuring.machine import describe_machine, set_threads
from benchmarks.speed.measuring.peak_server import peak_of
from benchmarks.speed.measuring.timing import measure
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.probe import ContextSimilarityProbe, similarity_matrices

MIB = 2**20
WORDS = 1000
# The bars of the source's shape: BERT-base, 8 texts of 128 tokens, two cores.
BARS = {"overhead": 0.25, "kept_bytes": 8 * MIB, "rival": 2.0}


@dataclasses.dataclass(frozen=True)
class ProbeBench:
    """What ``bench_probe`` measures; the defaults are BERT-base's shape."""

    layers: int = 12
    heads: int = 12
    head_dim: int = 64
    batch: int = 8
    length: int = 128
    threads: int | None = None
    repeats: int = 15
    budget: float = 20.0

    def __post_init__(self) -> None:
        if self.length < 8:
            raise AttnExtError(f"--length must be at least 8, got {self.length}")


def bench_probe(settings: ProbeBench, progress: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Run the benchmark and return its report.

    Returns:
        A dictionary fit for JSON: ``machine``, ``settings``, ``rows`` (a contestant each: ``seconds`` a batch,
        ``overhead`` over the plain pass, ``peak_bytes`` of one batch, ``beyond_bytes`` more than the plain
        pass's, ``kept_bytes`` of all statistics), ``rival`` (TransformerLens's version or why it is not there) and
        ``bars``.
    """
    threads = set_threads(settings.threads)
    calls, version, kept = _contestants(settings)
    progress(f"{len(calls)} contestants, {settings.batch} x {settings.length} tokens")
    timings, _ = measure(calls, settings.repeats, settings.budget)
    base = timings["plain"].median
    rows = []
    for name in calls:
        progress(f"memory of {name}")
        seconds, peak = timings[name].as_dict(), _peak(settings, name)
        row = {"name": name, "seconds": seconds, "overhead": seconds["median"] / base - 1, "peak_bytes": peak}
        row["beyond_bytes"] = peak - rows[0]["peak_bytes"] if rows else 0
        rows.append(row | {"kept_bytes": kept if "probe" in name else None})
    machine = describe_machine("cpu")
    return {
        "benchmark": "probe",
        "machine": machine,
        "settings": dataclasses.asdict(settings) | {"threads": threads},
        "rows": rows,
        "rival": version,
        "bars": _bars(rows),
    }


def probe_heading(report: dict[str, Any]) -> str:
    """One paragraph: machine, versions, the model's shape."""
    machine, settings = report["machine"], report["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    return (
        f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} threads; {versions}; BERT of "
        f"{settings['layers']} layers x {settings['heads']} heads x {settings['head_dim']}, {settings['batch']} texts "
        f"of {settings['length']} tokens; median of up to {settings['repeats']} calls, in turns"
    )


def probe_tables(report: dict[str, Any]) -> list[Table]:
    """One table of all contestants."""
    table = make_table("one batch", ["milliseconds", "over plain", "peak MiB", "beyond plain", "kept MiB"])
    for row in report["rows"]:
        kept = "" if row["kept_bytes"] is None else show_mebibytes(row["kept_bytes"])
        first = row["name"] == "plain"
        overhead = "" if first else f"{row['overhead']:+.1%}"
        beyond = "" if first else show_mebibytes(row["beyond_bytes"])
        table.add_row(row["name"], show_time(row), overhead, show_mebibytes(row["peak_bytes"]), beyond, kept)
    return [table]


def probe_notes(report: dict[str, Any]) -> list[str]:
    """The bars, and what is to be known of the rival."""
    notes = [f"{bar['name']}: {bar['value']:.3g}, {'met' if bar['met'] else 'NOT met'}" for bar in report["bars"]]
    return [*notes, f"TransformerLens: {report['rival']}"]


def _bars(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    of = {row["name"]: row for row in rows}
    mine = of["probe, model(**inputs)"]
    bars = [
        ("overhead over the plain pass: at most 0.25", mine["overhead"], mine["overhead"] <= BARS["overhead"]),
        ("MiB of statistics: at most 8", mine["kept_bytes"] / MIB, mine["kept_bytes"] <= BARS["kept_bytes"]),
    ]
    for name, row in of.items():
        if name.startswith("TransformerLens"):
            slower = row["seconds"]["median"] / mine["seconds"]["median"]
            larger = row["beyond_bytes"] / (max(0, mine["beyond_bytes"]) + mine["kept_bytes"])
            text = f"TransformerLens, times slower ({slower:.2f}) or more memory beyond the plain pass: at least 2"
            bars.append((text, max(slower, larger), max(slower, larger) >= BARS["rival"]))
    return [{"name": name, "value": value, "met": bool(met)} for name, value, met in bars]


def _contestants(settings: ProbeBench) -> tuple[dict[str, Callable[[], None]], str, int]:
    """The calls by name, the rival's version or why it is not there, and the bytes of all statistics."""
    model, tokenizer, texts = _model(settings), _tokenizer(), _texts(settings)
    inputs = dict(tokenizer(texts, return_tensors="pt"))
    probe = ContextSimilarityProbe(model, tokenizer)

    def plain() -> None:
        with torch.no_grad():
            model.base_model(**inputs)

    def probed() -> None:
        with probe, torch.no_grad():
            model.base_model(**inputs)

    def fed() -> None:
        with probe:
            probe.feed(texts, settings.batch)

    calls = {"plain": plain, "probe, model(**inputs)": probed, "probe.feed(texts)": fed}
    rival, version = _rival(model, tokenizer, inputs)
    if rival is not None:
        calls["TransformerLens, hook_z and matrices"] = rival
    with ContextSimilarityProbe(model, tokenizer, sample=1) as whole:  # those of the sample too
        whole.feed(texts[:1])
    return calls, version, whole.nbytes


def _peak(settings: ProbeBench, name: str) -> int:
    """The peak of one call, in a process of its own.

    Its allocator gives freed tensors back at once: what it would hold back counts as memory of whoever comes later.
    """
    command = [sys.executable, "-m", "benchmarks.speed.probe", json.dumps(dataclasses.asdict(settings)), name]
    environment = checkout_environment(MALLOC_MMAP_THRESHOLD_="65536", MALLOC_TRIM_THRESHOLD_="65536")
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise AttnExtError(f"the peak of {name} was not measured: {done.stderr.strip().splitlines()[-1]}")
    return int(done.stdout.split()[-1])


def _main(settings: str, name: str) -> None:
    chosen = ProbeBench(**json.loads(settings))
    set_threads(chosen.threads)
    call = _contestants(chosen)[0][name]
    call()
    print(peak_of(call))


def _model(settings: ProbeBench) -> BertForMaskedLM:
    torch.manual_seed(0)
    width = settings.heads * settings.head_dim
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=width,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        intermediate_size=4 * width,
        max_position_embeddings=settings.length,
    )
    return BertForMaskedLM(config).eval()


def _tokenizer() -> PreTrainedTokenizerFast:
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", ","]
    names += [f"word{number}" for number in range(WORDS - len(names))]
    core = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    roles = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return PreTrainedTokenizerFast(tokenizer_object=core, mask_token="[MASK]", **roles)


def _texts(settings: ProbeBench) -> list[str]:
    draw = random.Random(0)
    texts = []
    for _ in range(settings.batch):
        words = [f"word{min(int(draw.paretovariate(0.7)), WORDS - 8)}" for _ in range(settings.length - 2)]
        words[15::16] = ["."] * len(words[15::16])
        texts.append(" ".join(words))
    return texts


def _rival(model: BertForMaskedLM, tokenizer: Any, inputs: dict[str, Any]) -> tuple[Callable | None, str]:
    try:
        import transformer_lens
    except ImportError as error:
        return None, f"not measured ({error}); pip install transformer-lens"
    with tempfile.TemporaryDirectory() as folder:
        model.config.save_pretrained(folder)
        own = copy.deepcopy(model)  # it rebuilds the model that it is given
        bridge = transformer_lens.TransformerBridge.boot_transformers(folder, hf_model=own, tokenizer=tokenizer)

    def run() -> None:
        with torch.no_grad():
            _, cache = bridge.run_with_cache(inputs["input_ids"], names_filter=lambda name: name.endswith("hook_z"))
            kept = [similarity_matrices(z.transpose(1, 2)) for z in cache.values()]
        assert len(kept) == model.config.num_hidden_layers

    return run, metadata.version("transformer-lens")


if __name__ == "__main__":
    _main(*sys.argv[1:])
