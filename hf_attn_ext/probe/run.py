"""A probe's run over files of texts: resumable, in one or several processes; it writes tables, figures, a report."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from hf_attn_ext._util.files import atomic_write
from hf_attn_ext._util.processes import check_on_main, check_processes
from hf_attn_ext._util.progress import Progress
from hf_attn_ext._util.versions import versions
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.integration.base_models.fingerprint import fingerprint
from hf_attn_ext.integration.base_models.positions import max_tokens
from hf_attn_ext.integration.base_models.readable_layers import Layer
from hf_attn_ext.probe.corpus.annotate import annotate
from hf_attn_ext.probe.corpus.corpus import Corpus, read_corpus
from hf_attn_ext.probe.corpus.cutting import Cut, by_tokens, by_words, whole_texts
from hf_attn_ext.probe.report.browser import browse, choose_texts
from hf_attn_ext.probe.report.figures import draw, save_figures
from hf_attn_ext.probe.report.report import write_report

from .config import FREE, ProbeConfig
from .options import special_ids
from .probe import ContextSimilarityProbe
from .results import ProbeStatistics
from .run_folder import RunFolder
from .statistics import list_statistics

TWO_ON_CPU = "ACCELERATE_USE_CPU=true torchrun --nproc_per_node 2 -m hf_attn_ext.cli probe ..."
PACKAGES = ("hf-attn-ext", "torch", "transformers", "tokenizers", "sentencex", "numpy")

# Settings that are arguments of ContextSimilarityProbe.
_OF_PROBE = ("layers", "heads", "projections", "num_heads", "percents", "sample", "controls", "separators")


@dataclasses.dataclass(frozen=True)
class ProbeRun:
    """A finished run: its statistics, its texts and its folder."""

    config: ProbeConfig
    corpus: Corpus
    statistics: ProbeStatistics
    folder: Path

    @property
    def report(self) -> Path:
        """The path of the report."""
        return self.folder / "report.html"


def run_probe(model: nn.Module, tokenizer: Any, config: ProbeConfig) -> ProbeRun:
    """Compute the statistics and write all results: :func:`run_statistics`, then :func:`write_run` in one process.

    Args:
        model: any model that :class:`.ContextSimilarityProbe` takes.
        tokenizer: its fast tokenizer.
        config: the settings.

    Raises:
        AttnExtError: see :func:`run_statistics` and :func:`write_run`.

    Example:
        >>> run_probe(model, tokenizer, load_probe_config("probe.yaml")).report  # doctest: +SKIP
        PosixPath('runs/probe/report.html')
    """
    run = run_statistics(model, tokenizer, config)
    state = _processes()
    if state.is_main_process:
        write_run(run, model, tokenizer)
    state.wait_for_everyone()
    return run


def run_statistics(model: nn.Module, tokenizer: Any, config: ProbeConfig) -> ProbeRun:
    """Run the texts of ``config`` through the model; an interrupted run resumes from its last saved state.

    The state is written every ``save_every`` texts. The same settings, texts and weights give the same bits, whether
    the run was interrupted or not. With several processes (accelerate, torchrun) each reads its part of the texts, and
    all have the statistics at the end.

    Args:
        model: in any mode; it is moved to the process's device.
        tokenizer: its fast tokenizer.
        config: the settings.

    Raises:
        AttnExtError: a file without texts, a text that is too long, a folder with another run or something else, a
            model that cannot be captured, another number of processes than ``config.processes``, or a folder that
            cannot be written.
    """
    state = _processes()
    check_processes(config.processes, state.num_processes, os.environ, TWO_ON_CPU)
    if tokenizer is None:
        raise AttnExtError(f"{config.model!r} has no tokenizer; save one into the folder")
    probe = ContextSimilarityProbe(model, tokenizer, **_fields(config, *_OF_PROBE, "bootstrap", "seed"))
    _check_length(model, tokenizer, config)
    corpus = read_corpus(config.texts, config.text_column, _cut(config, tokenizer), config.limit, config.seed)
    if not config.truncation:
        _check_texts(model, tokenizer, config, corpus)
    _check_pairs(model, tokenizer, config, corpus)
    folder = RunFolder(config.out, state.process_index, state.num_processes)
    identity = _identity(model, probe.layers, tokenizer, config, corpus, state.num_processes)
    check_on_main(lambda: folder.claim(identity), state)
    mine, documents = (each[state.process_index :: state.num_processes] for each in (corpus.texts, corpus.documents))
    saved, done = folder.load()
    if saved is not None:
        probe.merge(saved)
    model.to(state.device)
    step = -(-config.save_every // config.batch_size) * config.batch_size
    options = _fields(config, "truncation", "max_length", "language", "boundaries", "shuffle_tokens", "pad_to")
    shown = config.progress and state.is_main_process
    with Progress("probe", len(mine), done, shown) as progress, probe:
        for start in range(done, len(mine), step):
            texts = mine[start : start + step]
            names_of = documents[start : start + step]
            probe.feed(_counted(texts, progress), config.batch_size, documents=names_of, **options)
            folder.save(probe.state_dict(), start + len(texts))
    if state.num_processes > 1:
        probe.gather()
    return ProbeRun(config, corpus, probe.statistics(), folder.root)


def write_run(run: ProbeRun, model: nn.Module, tokenizer: Any) -> list[Path]:
    """Write ``statistics.json``, ``statistics.parquet``, ``figures/`` and ``report.html`` into the run's folder.

    Returns:
        The paths of the files.

    Raises:
        AttnExtError: a file cannot be written.
    """
    config, statistics = run.config, run.statistics
    files = [run.folder / "statistics.json", run.folder / "statistics.parquet"]
    statistics.to_json(files[0])
    write_rows(statistics, files[1])
    drawings = draw(statistics)
    files += save_figures(drawings, run.folder / "figures")
    # the browser would show the texts in their original order
    browsable = [] if config.shuffle_tokens else run.corpus.texts
    texts = choose_texts(browsable, config.browse, config.language, config.boundaries)
    browsed = browse(
        model,
        tokenizer,
        texts,
        percent=statistics.settings["percents"][0],
        seed=statistics.settings["seed"],
        **_fields(config, "layers", "heads", "max_length", "language", "boundaries", "projections", "num_heads"),
    )
    path = write_report(
        statistics,
        run.report,
        browser=browsed,
        provenance=provenance(run, model),
        title=f"Context similarity of {Path(config.model).name if os.path.isdir(config.model) else config.model}",
        drawings=drawings,
    )
    return [*files, path]


def write_rows(statistics: ProbeStatistics, path: Path) -> None:
    """Write :meth:`ProbeStatistics.rows` as parquet: one row per statistic, layer and head."""
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist(statistics.rows())
    with atomic_write(path) as temporary:
        pyarrow.parquet.write_table(table, temporary)


def provenance(run: ProbeRun, model: nn.Module) -> dict[str, Any]:
    """Return the rows of the report's table of provenance: model, files, texts, command, versions."""
    config, corpus = run.config, run.corpus
    drawn = f", drawn from {corpus.drawn_from:,}" if corpus.drawn_from != len(corpus) else ""
    kind = "blank or short" if config.tokens else "blank"
    blank = f", {corpus.blank:,} {kind} ones left out" if corpus.blank else ""
    blank += f", {corpus.left:,} tokens left at documents' ends" if corpus.left else ""
    mixed = "; a control: each one's tokens are shuffled" if config.shuffle_tokens else ""
    ends = " ".join(config.boundaries or ())
    segments = {"sentences": f"segments that end with {ends}, in their place"} if ends else {}
    return {
        "model": f"{config.model} ({type(model).__name__})",
        "files": ", ".join(corpus.files),
        "texts": f"{len(corpus):,}{drawn}{blank}{mixed}",
        "documents": f"{corpus.document_count:,}, which the bootstrap draws",
        **segments,
        "command": config.command(),
        "longest text": f"{config.max_length or max_tokens(model) or 'any'} tokens"
        + (", longer ones cut" if config.truncation else ""),
        "versions": ", ".join(f"{name} {version}" for name, version in versions(*PACKAGES).items()),
    }


def _fields(config: ProbeConfig, *names: str) -> dict[str, Any]:
    return {name: getattr(config, name) for name in names}


def _cut(config: ProbeConfig, tokenizer: Any) -> Cut:
    if config.tokens is not None:
        return by_tokens(config.tokens, tokenizer)
    return whole_texts if config.words is None else by_words(config.words)


def _processes() -> Any:
    """Accelerate's state of this run. PartialState does not read ACCELERATE_USE_CPU itself."""
    from accelerate import PartialState
    from accelerate.utils import parse_flag_from_env

    return PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU"))


def _identity(
    model: nn.Module, layers: Sequence[Layer], tokenizer: Any, config: ProbeConfig, corpus: Corpus, processes: int
) -> dict[str, Any]:
    """Everything that the statistics depend on; a resumed run must have the same."""
    settings = {name: value for name, value in config.to_dict().items() if name not in FREE}
    first = tokenizer(corpus.texts[:16], verbose=False)["input_ids"]
    return {
        "version of what is kept": 3,
        **settings,
        "statistics": list_statistics(),
        "number of processes": processes,
        "bootstrap draws": "documents",
        "content of the texts": corpus.digest(),
        **{f"{part} of the model": digest for part, digest in fingerprint(model, layers).items()},
        "token ids": hashlib.blake2b(json.dumps(first).encode(), digest_size=16).hexdigest(),
    }


def _check_length(model: nn.Module, tokenizer: Any, config: ProbeConfig) -> None:
    limit = max_tokens(model)
    if config.max_length is not None and limit is not None and config.max_length > limit:
        raise AttnExtError(f"max_length is {config.max_length}, the model takes {limit} tokens at most")
    if config.max_length is None and limit is None and config.truncation:
        raise AttnExtError(f"{config.model!r} does not say how many tokens it takes; give max_length")


def _check_texts(model: nn.Module, tokenizer: Any, config: ProbeConfig, corpus: Corpus) -> None:
    """Raise AttnExtError for the first text that is too long, before any text is run."""
    limit = config.max_length or max_tokens(model)
    if limit is None:
        return
    for start in range(0, len(corpus), 256):
        texts = corpus.texts[start : start + 256]
        for number, ids in enumerate(tokenizer(texts, verbose=False)["input_ids"], start):
            if len(ids) > limit:
                raise AttnExtError(
                    f"{corpus.sources[number]}: a text of {len(ids)} tokens, at most {limit} are taken; cut texts with "
                    "--truncation, or documents into several with --words or --tokens"
                )


def _check_pairs(model: nn.Module, tokenizer: Any, config: ProbeConfig, corpus: Corpus) -> None:
    """Raise AttnExtError if no text has two tokens, before the folder is taken."""
    known = special_ids(tokenizer)
    limit = config.max_length or max_tokens(model)
    for text in corpus.texts:
        one = annotate([text], tokenizer, truncation=True, max_length=limit, language=config.language)
        if len(one.positions(0, known)) > 1:
            return
    raise AttnExtError(
        f"{len(corpus):,} texts, each of one token or none that is not special: there are no pairs; give longer texts"
    )


def _counted(texts: Sequence[str], progress: Progress) -> Iterator[str]:
    for text in texts:
        yield text
        progress.advance()
