"""The page of ``similarity_study.py``: tables finding by finding and layer by layer, and a picture."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.studies.common.results import new_figure, save_figure
from hf_attn_ext._util.files import atomic_write
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.probe import ProbeStatistics
from hf_attn_ext.probe.report.findings import gaps, percentage

from . import findings as finding
from .data import Source
from .verdicts import MOST

MIB = 2**20
FIGURES = ("distances", "map-within_sentence", "map-repeated_tokens")


@dataclasses.dataclass(frozen=True)
class Study:
    """What was measured.

    Attributes:
        source: the model and its texts.
        tables: the statistics of ``"trained"`` and, where there are controls, ``"untrained"``, ``"shuffled"`` and
            ``"reference"``, the trained model on their texts.
        speed: of ``similarity_study.speed``.
        report_bytes: the report's size.
        command: that makes it.
        counts: the ``document_count`` of the texts, how many texts they were ``drawn_from``, and the tokens
            ``left`` at documents' ends.
        versions: of libraries.
    """

    source: Source
    tables: dict[str, ProbeStatistics]
    speed: dict[str, Any]
    report_bytes: int
    command: str
    counts: dict[str, int]
    versions: dict[str, str]


def markdown(study: Study) -> str:
    """The whole page about one model."""
    parts = [_head(study), _findings(study), _layers(study), _cost(study)]
    return "\n\n".join("\n".join(lines) for lines in parts) + "\n"


def _head(study: Study) -> list[str]:
    trained = study.tables["trained"]
    settings, counts = trained.settings, trained.counts
    drawn, documents, left = (study.counts[name] for name in ("drawn_from", "document_count", "left"))
    lines = [
        f"## {study.source.title}, {len(settings['layers'])} layers of {len(settings['heads'])} heads",
        "",
        f"    {study.command}",
        "",
        f"{counts['texts']:,} texts, drawn by seed {settings['seed']} from {drawn:,}: {study.source.texts}. "
        f"{counts['tokens']:,} tokens without special ones, {counts['pairs']:,} pairs; high pairs are the top "
        f"{settings['percents'][0]:g}% of a text's. Attention maps are read on {counts['sampled']:,} of the texts "
        "(drawn by a hash).",
    ]
    if left:
        lines[-1] += f" {left:,} tokens at the documents' ends, too few for another text, are left out."
    if study.source.sentence != "sentence":
        lines += ["", f"There are no sentences in these texts. What is called one below is a {study.source.sentence}."]
    if "reference" in study.tables:
        lines += [
            "",
            f"Controls, on {study.tables['reference'].counts['texts']:,} of the texts, on all of which attention maps "
            "are read: *untrained* is the model with random weights; *shuffled* is the trained model with each text's "
            "tokens shuffled, sentences where they were; *trained, same texts* is the trained model on the same texts "
            "as they are, which the other two are compared with.",
        ]
    notes = gaps(trained)
    if documents < counts["texts"]:
        notes.append(
            f"The texts come from {documents:,} documents, and texts of one document are alike: the bootstrap of the "
            "intervals draws documents."
        )
    layers, heads = settings["layers"], settings["heads"]
    if not finding.has_named_head(layers, heads):
        notes.append(
            f"Head 8 of layer 11, which the source names, is left out: none of the {len(heads)} heads of "
            f"{len(layers)} layers is that one."
        )
    versions = ", ".join(f"{name} {version}" for name, version in study.versions.items())
    return [*lines, "", *(f"- {note}" for note in notes), f"- Versions: {versions}."]


_COLUMNS = ("the source says", "we see", "by chance", "at the same distances", "95% interval")
_COLUMNS += ("trained, same texts", "untrained", "shuffled", "verdict")


_RULES = (
    "Chance draws as many of the text's pairs at random, or, in the next column, at the same distances as the head's "
    "own. In brackets behind a control: its own level of that kind. What counts as agreement is ours. A claim *agrees* "
    "where the number is above both chance levels, as far as there are such, by the intervals of the differences. Then "
    "controls are compared with the trained model on the same texts, by how much each exceeds its own chance level (at "
    f"the same distances where there is one): *a model that learnt nothing gives as much*, or with shuffled tokens "
    f"{MOST:g} of it is left and *no language is needed*, where that holds by the interval of the difference, of which "
    "both sides draw the same documents; *undecided* where that interval includes both answers. Other rules:",
    "",
)


def _findings(study: Study) -> list[str]:
    rows = finding.rows(study.tables)
    lines = [
        "### Finding by finding",
        "",
        "| " + " | ".join(_COLUMNS) + " |",
        "|---" * len(_COLUMNS) + "|",
    ]
    for row in rows:
        level, show = row.level, row.show
        bounds = "" if np.isnan(level.interval[0]) else f"{show(level.interval[0])} to {show(level.interval[1])}"
        others = [_control(row, other) for other in (row.reference, row.untrained, row.shuffled)]
        cells = [row.source, f"{row.seen}: **{show(level.value)}**", show(level.chance), show(level.matched), bounds]
        lines.append("| " + " | ".join([*cells, *others, row.verdict]) + " |")
    lines += ["", *_RULES, *(f"- {row.source.removeprefix('... ')}: {row.rule}." for row in rows if row.rule)]
    return lines


def _control(row: finding.Row, level: Any) -> str:
    """A control's value, and in brackets the chance level that is the nearer to it."""
    if level is None:
        return ""
    against = level.chance if np.isnan(level.matched) else level.matched
    return row.show(level.value) + ("" if np.isnan(against) else f" ({row.show(against)})")


def _layers(study: Study) -> list[str]:
    columns = _by_layer(study.tables["trained"])
    lines = [
        "### Layer by layer",
        "",
        "Means over heads; in brackets what pairs at the same distances have, or chance where there is no such level.",
        "",
        "| layer | " + " | ".join(columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    layers = study.tables["trained"].settings["layers"]
    return lines + [
        f"| {layer} | " + " | ".join(cells[place] for cells in columns.values()) + " |"
        for place, layer in enumerate(layers)
    ]


def _by_layer(table: ProbeStatistics) -> dict[str, list[str]]:
    """Columns of the table layer by layer."""
    columns = {}
    for name, title in {
        "distance_overlap": "overlap with all distances",
        "distance": "mean distance",
        "within_sentence": "one sentence",
        "repeated_tokens": "one token id",
        "separator_focus": "attention on separators",
        "special_focus": "attention on special tokens",
        "region": "in regions of high attention",
        "unique_tokens": "distinct tokens",
        "noise": "noise",
    }.items():
        one = finding.statistic(table, name)
        if one is None:
            continue
        show = finding.tokens if name == "distance" else percentage
        cells = []
        for layer in range(len(one.layers)):
            level = finding.level_of(one, layer)
            against = level.chance if np.isnan(level.matched) else level.matched
            cells.append(show(level.value) + ("" if np.isnan(against) else f" ({show(against)})"))
        columns[title] = cells
    for measure, title in (("cosine", "one sentence, by cosine"), ("attention", "one sentence, by A Aᵀ")):
        one = finding.statistic(table, "within_sentence", measure)
        if one is not None:
            levels = [finding.level_of(one, layer) for layer in range(len(one.layers))]
            columns[title] = [f"{percentage(level.value)} ({percentage(level.matched)})" for level in levels]
    return columns


def _cost(study: Study) -> list[str]:
    speed = study.speed
    rate = {(name, clock): speed["tokens"] / speed[name][clock] for name in ("plain", "probe") for clock in _CLOCKS}
    threads = f"{speed['threads']} thread" + "s" * (speed["threads"] != 1)
    lines = [
        "### Cost",
        "",
        f"{speed['batches']} batches of {speed['texts a batch']} of the texts, {threads}, plain pass and probe in turn "
        f"on the same; {speed['texts in the sample']} of the texts in the sample of controls and attention maps:",
        "",
        "| | tokens a second of processor time | tokens a second by the clock |",
        "|---|---|---|",
        *(
            f"| {what} | {rate[name, 'processor']:,.0f} | {rate[name, 'wall']:,.0f} |"
            for name, what in (("plain", "the plain forward pass"), ("probe", "the probe, sentences and all"))
        ),
        f"| the probe's share | {100 * speed['ratio']['processor']:.0f}% | {100 * speed['ratio']['wall']:.0f}% |",
        "",
    ]
    whole = speed["run"]
    if whole:
        lines += [
            f"The run itself, or its last part where it was stopped: {whole['texts']:,} texts and the report in "
            f"{whole['wall'] / 60:.1f} minutes ({whole['processor'] / 60:.1f} of processor time).",
        ]
    return [*lines, f"report.html has {study.report_bytes / MIB:.2f} MiB."]


_CLOCKS = ("processor", "wall")


def draw(study: Study, path: Path) -> None:
    """Four statistics by layer: trained, by chance, at the same distances, untrained, shuffled."""
    figure = new_figure(9.2, 6.4)
    panels = {
        "distance": "distance of high pairs in tokens",
        "within_sentence": f"high pairs inside one {study.source.sentence.split(':')[0]}, %",
        "repeated_tokens": "high pairs of one token id, %",
        "separator_focus": "attention on separators, %",
    }
    for axis, (name, title) in zip(figure.subplots(2, 2).flat, panels.items(), strict=True):
        axis.set_title(title, fontsize=10)
        unit = 1 if name == "distance" else 100
        for which, (colour, label) in _LINES.items():
            one = finding.statistic(study.tables.get(which), name)
            if one is None:
                continue
            layers = np.array(one.layers)
            if which == "trained":
                jitter = layers[:, None] + np.linspace(-0.2, 0.2, one.values.shape[1])
                axis.scatter(jitter, unit * one.values, s=7, color=colour, alpha=0.35, linewidth=0, label="its heads")
                axis.plot(layers, unit * one.chance.mean(1), color="#777777", linestyle=":", label="by chance")
                if np.isfinite(one.chance_matched).any():
                    matched = unit * one.chance_matched.mean(1)
                    axis.plot(layers, matched, color="#d1853b", linestyle="--", label="at the same distances")
            axis.plot(layers, unit * one.values.mean(1), color=colour, marker="o", markersize=3.5, label=label)
        axis.set_xlabel("layer")
        axis.set_xticks(layers)
        axis.set_ylim(bottom=0)
        axis.grid(True, color="#e6e6e6", linewidth=0.6)
        axis.set_axisbelow(True)
    handles = {
        label: handle for axis in figure.axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=3, fontsize=9, frameon=False)
    save_figure(figure, path, dpi=100)


_LINES = {
    "trained": ("#0b6e4f", "trained"),
    "untrained": ("#b23b3b", "untrained (random weights)"),
    "shuffled": ("#30459c", "trained, tokens shuffled"),
}


def refresh(page: Path, study: Study, out: Path) -> None:
    """Write the part of ``page`` about this model anew, between its marks, and its figures next to it.

    Raises:
        AttnExtError: the page has not each mark once, the first before the second.
    """
    name = study.source.name
    begin, end = f"<!-- study {name}: generated -->", f"<!-- study {name}: end -->"
    old = page.read_bytes().decode("utf-8")  # with the line ends that it has
    if (old.count(begin), old.count(end)) != (1, 1) or old.index(begin) > old.index(end):
        raise AttnExtError(
            f"{page} must have the marks {begin!r} and {end!r}, once each, in this order; put them there"
        )
    pictures = {"study": out / "study.png"}
    pictures |= {figure: out / "trained" / "figures" / f"{figure}.png" for figure in FIGURES}
    shown = []
    for figure, path in pictures.items():
        target = page.with_name(f"{page.stem}-{name}-{figure}.png")
        with atomic_write(target) as temporary_path:
            shutil.copyfile(path, temporary_path)
        shown.append(f"![{_CAPTIONS[figure]}]({target.name})")
    text = "\n\n".join([begin, markdown(study).strip(), *shown, ""])
    if "\r\n" in old:
        text = text.replace("\n", "\r\n")
    with atomic_write(page) as temporary_path:
        temporary_path.write_bytes((old[: old.index(begin)] + text + old[old.index(end) :]).encode("utf-8"))


_CAPTIONS = {
    "study": "distances, sentences, repetitions and separators by layer, with chance and the controls",
    "distances": "high pairs by distance, against all pairs",
    "map-within_sentence": "high pairs inside one sentence, above chance, by layer and head",
    "map-repeated_tokens": "high pairs of one token, above chance, by layer and head",
}
