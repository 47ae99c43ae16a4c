"""Figures of a probe's statistics: maps over layers and heads, curves, distances. They are reproducible bit for bit."""

from __future__ import annotations

import dataclasses
import functools
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hf_attn_ext._util.files import atomic_write
from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.probe.results import ProbeStatistics, Statistic
from hf_attn_ext.probe.statistics import list_statistics, statistic_named

_DOT, _COUNT, _MATCHED = "#0b6e4f", "#777777", "#d1853b"
_CONTROL = {"dot": _DOT, "cosine": "#30459c", "attention": "#8e44ad"}
# With more heads than this, marks are drawn as pixels: as paths they would take megabytes.
_MANY = 400
OPTIONS: dict[Any, Any] = {
    "svg.hashsalt": "hf-attn-ext",
    "svg.fonttype": "none",
    "font.size": 9,
    "font.family": "DejaVu Sans",
}


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A figure: its name, kind (``"map"``, ``"curve"`` or ``"other"``), caption, and a matplotlib figure."""

    name: str
    kind: str
    caption: str
    figure: Any

    @functools.cached_property
    def svg(self) -> bytes:
        """The figure as SVG."""
        buffer = io.BytesIO()
        self.save(buffer, "svg")
        return buffer.getvalue()

    def save(self, file: Any, format: str) -> None:
        """Write to an open file or a path, without a date."""
        import matplotlib

        with matplotlib.rc_context(OPTIONS):
            metadata = {"Date": None} if format == "svg" else {"Software": None}
            self.figure.savefig(file, format=format, dpi=130, metadata=metadata)
            self.figure.set_layout_engine("none")  # the layout is the slowest part, and stays


def draw(statistics: ProbeStatistics) -> list[Drawing]:
    """Return all figures of the first percentage, for the statistics that have numbers."""
    import matplotlib

    with matplotlib.rc_context(OPTIONS):
        return list(_all(statistics))


def save_figures(drawings: list[Drawing], folder: Path) -> list[Path]:
    """Write each figure as PNG and SVG, atomically."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AttnExtError(f"cannot write {str(folder)!r}: {error.strerror or error}") from error
    files = []
    for drawing in drawings:
        with atomic_write(folder / f"{drawing.name}.png") as temporary:
            drawing.save(temporary, "png")
        with atomic_write(folder / f"{drawing.name}.svg") as temporary:
            temporary.write_bytes(drawing.svg)
        files += [folder / f"{drawing.name}.png", folder / f"{drawing.name}.svg"]
    return files


def _all(statistics: ProbeStatistics) -> Iterator[Drawing]:
    percent = statistics.settings["percents"][0]
    kinds = [statistic_named(name) for name in list_statistics()]
    results = [one for one in statistics.statistics if np.isfinite(one.values).any()]
    main = {one.name: one for one in results if one.measure == "dot" and one.percent in (None, percent)}
    drawn = [kind for kind in kinds if kind.name in main]
    for kind in drawn:
        if kind.per_head and "map" in kind.figures:
            yield Drawing(f"map-{kind.name}", "map", kind.title, _map(main[kind.name]))
    for kind in drawn:
        if "curve" in kind.figures:
            others = [e for e in statistics.statistics if e.name == kind.name and e.measure == "dot"]
            others = [e for e in others if e.percent not in (None, percent)]
            yield Drawing(f"curve-{kind.name}", "curve", kind.title, _curve(main[kind.name], others))
    for kind in kinds:
        controls = [e for e in statistics.statistics if e.name == kind.name and e.percent == percent]
        if kind.controls_figure and len(controls) > 1:
            caption = f"{kind.title}: dot products and the controls"
            yield Drawing(f"controls-{kind.name}", "curve", caption, _controls(controls))
    yield Drawing("distances", "other", "high pairs by distance, against all pairs", _distances(statistics))


def _scale(one: Statistic) -> float:
    """The factor of the values: shares are shown in percent."""
    return 100.0 if statistic_named(one.name).unit == "share" else 1.0


def _unit(one: Statistic) -> str:
    unit = statistic_named(one.name).unit
    return "%" if unit == "share" else unit


def _map(one: Statistic) -> Any:
    """Layer x head: the value less its chance level, and marks where the interval excludes it."""
    from matplotlib.colors import Normalize, TwoSlopeNorm

    unit = _scale(one)
    against = np.isfinite(one.chance).any()
    shown = unit * (one.values - one.chance if against else one.values)
    if against:
        reach = float(np.nanmax(np.abs(shown))) or 1.0
        norm: Normalize = TwoSlopeNorm(0.0, -reach, reach)
        colours = "RdBu_r"
    else:
        norm, colours = Normalize(0.0, float(np.nanmax(shown)) or 1.0), "Greens"
    what = "points" if against and _unit(one) == "%" else _unit(one)
    label = f"{what} above chance" if against else what
    figure, axis = map_figure(shown, one.layers, one.heads or [], norm, colours, label)
    for kind, (marker, filled) in {"beyond": ("o", True), "count": ("o", False), "below": ("_", True)}.items():
        y, x = np.nonzero(_marked(one, kind))
        face = "black" if filled else "none"
        size = max(3.0, min(22.0, 2600 / shown.size))
        inks = {"facecolor": face, "edgecolor": "black"} if marker == "o" else {"color": "black"}
        axis.scatter(x, y, s=size, marker=marker, linewidth=0.8, rasterized=one.values.size > _MANY, **inks)
    axis.set_title(_map_title(one, unit), fontsize=9)
    return figure


def map_figure(
    values: np.ndarray, layers: list[int], heads: list[int], norm: Any, colours: str, label: str
) -> tuple[Any, Any]:
    """Draw a map of values (L, H) over layers and heads; return the figure, and its axis for marks."""
    from matplotlib.ticker import MaxNLocator

    wide, high = min(7.5, 2.0 + 0.24 * len(heads)), min(9.0, 1.5 + 0.24 * len(layers))
    figure, axis = _figure(max(wide, 4.2), max(high, 2.7))
    image = axis.imshow(values, cmap=colours, norm=norm, aspect="auto", interpolation="nearest")
    bar = figure.colorbar(image, ax=axis, fraction=0.05, pad=0.02)
    bar.set_label(label)
    bar.ax.yaxis.set_major_locator(MaxNLocator(5))
    axis.set_xlabel("head")
    axis.set_ylabel("layer")
    _number(axis.set_xticks, heads)
    _number(axis.set_yticks, layers)
    return figure, axis


def _map_title(one: Statistic, unit: float) -> str:
    title = statistic_named(one.name).title
    title = title if one.percent is None else f"{title}, top {one.percent:g}%"
    if not np.isfinite(one.chance).any():
        return title
    low, high = unit * np.nanmin(one.chance), unit * np.nanmax(one.chance)
    sign = "%" if _unit(one) == "%" else ""
    level = f"{low:.3g}{sign}" if high - low < 0.005 * max(abs(high), 1e-9) else f"{low:.3g} to {high:.3g}{sign}"
    return f"{title}\nby chance {level}"


def _marked(one: Statistic, kind: str) -> np.ndarray:
    """Where the interval excludes chance: ``"beyond"`` above both levels, ``"count"`` by count alone, ``"below"``."""
    above, below = one.excess_interval[..., 0] > 0, one.excess_interval[..., 1] < 0
    if kind == "below":
        return below
    known = np.isfinite(one.excess_matched_interval[..., 0])
    beyond = above & (~known | (one.excess_matched_interval[..., 0] > 0))
    return beyond if kind == "beyond" else above & ~beyond


def _curve(one: Statistic, others: list[Statistic]) -> Any:
    """Means over heads with their interval; values inside a band do not differ from that chance level."""
    figure, axis = _figure(4.6, 3.5)
    unit = _scale(one)
    layer_axis = np.arange(len(one.layers))
    for level, excess, colour, label in (
        (one.chance, one.excess_interval, _COUNT, "by chance"),
        (one.chance_matched, one.excess_matched_interval, _MATCHED, "at the same distances"),
    ):
        if np.isfinite(level).any():
            # of the width of the interval of value - chance: a value is outside where that interval excludes zero
            half = _mean(excess[..., 1] - excess[..., 0]) / 2
            centre = _mean(level)
            axis.fill_between(
                layer_axis, unit * (centre - half), unit * (centre + half), color=colour, alpha=0.2, linewidth=0
            )
            axis.plot(layer_axis, unit * centre, color=colour, linestyle="--", linewidth=1.2, label=label)
    if one.values.ndim == 2:
        jitter = np.linspace(-0.18, 0.18, one.values.shape[1])
        x = layer_axis[:, None] + jitter
        options = {"color": _DOT, "alpha": 0.4, "linewidth": 0, "rasterized": one.values.size > _MANY}
        axis.scatter(x, unit * one.values, s=8, label="heads", **options)
    for fade, other in enumerate(others, 1):
        style = {"color": _DOT, "linewidth": 1.0, "alpha": 0.75 / fade, "linestyle": ":"}
        axis.plot(layer_axis, unit * _mean(other.values), label=f"top {other.percent:g}%", **style)
    label = "measured" if one.percent is None else f"top {one.percent:g}%"
    _means_with_interval(axis, one, _DOT, label, linewidth=1.6)
    axis.set_title(statistic_named(one.name).title, fontsize=9)
    _finish(axis, one.layers, _unit(one), label)
    return figure


def _controls(measures: list[Statistic]) -> Any:
    figure, axis = _figure(4.6, 3.5)
    unit = _scale(measures[0])
    layer_axis = np.arange(len(measures[0].layers))
    for one in measures:
        colour = _CONTROL[one.measure]
        label = {"dot": "dot products", "cosine": "cosine", "attention": "A Aᵀ"}[one.measure]
        _means_with_interval(axis, one, colour, label)
        axis.plot(layer_axis, unit * _mean(one.chance_matched), color=colour, linestyle="--", linewidth=1)
    axis.plot(layer_axis, unit * _mean(measures[0].chance), color=_COUNT, linestyle=":", label="by chance")
    axis.plot([], [], color="black", linestyle="--", linewidth=1, label="at the same distances")
    axis.set_title(f"{statistic_named(measures[0].name).title}, and controls (on the sample)", fontsize=9)
    _finish(axis, measures[0].layers, _unit(measures[0]), "dot products")
    return figure


def _distances(statistics: ProbeStatistics) -> Any:
    """Layer x distance, mean over heads: the share of high pairs over the share of all pairs, in powers of two."""
    from matplotlib.colors import TwoSlopeNorm

    bins = statistics.distances["bins"]
    chance = np.array(statistics.distances["chance"])[0]
    shares = np.array(statistics.distances["values"])[0].mean(1)
    used = np.flatnonzero(np.nan_to_num(chance) > 0)
    layers = statistics.settings["layers"]
    figure, axis = _figure(max(4.6, 1.8 + 0.34 * len(used)), max(2.7, min(9.0, 1.5 + 0.24 * len(layers))))
    with np.errstate(divide="ignore"):
        times = np.log2(shares[:, used] / chance[used])
    times = np.clip(times, -5, 5)
    image = axis.imshow(times, cmap="RdBu_r", norm=TwoSlopeNorm(0.0, -5, 5), aspect="auto", interpolation="nearest")
    bar = figure.colorbar(image, ax=axis, fraction=0.05, pad=0.02, ticks=[-4, -2, 0, 2, 4])
    bar.ax.set_yticklabels(["1/16", "1/4", "1", "4", "16"])
    bar.set_label("times as many as all pairs")
    ends = [*bins[1:], None]
    names = [
        f"{bins[at]}" if ends[at] == bins[at] + 1 else f"{bins[at]}-{ends[at] - 1 if ends[at] else ''}" for at in used
    ]
    axis.set_xticks(range(len(used)), names, rotation=60, ha="right", rotation_mode="anchor")
    _number(axis.set_yticks, layers)
    axis.set_xlabel("distance in tokens")
    axis.set_ylabel("layer, mean of its heads")
    percent = statistics.settings["percents"][0]
    axis.set_title(f"the top {percent:g}% of pairs by distance", fontsize=9)
    return figure


def _mean(values: np.ndarray) -> np.ndarray:
    return values.mean(1) if values.ndim == 2 else values


def _means_with_interval(axis: Any, one: Statistic, colour: str, label: str, **style: Any) -> None:
    x, unit, half = np.arange(len(one.layers)), _scale(one), _mean(one.interval[..., 1] - one.interval[..., 0]) / 2
    style |= {"color": colour, "marker": "o", "markersize": 4, "capsize": 2.5, "label": label}
    axis.errorbar(x, unit * _mean(one.values), unit * half, **style)


def _number(set_ticks: Any, numbers: list[int]) -> None:
    """Label the ticks of an axis with the numbers of layers or heads, at most about 12 of them."""
    step = max(1, len(numbers) // 12)
    set_ticks(range(0, len(numbers), step), [str(number) for number in numbers[::step]])


def _figure(wide: float, high: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(wide, high), layout="constrained")
    return figure, figure.subplots()


def _finish(axis: Any, layers: list[int], label: str, first: str) -> None:
    _number(axis.set_xticks, layers)
    axis.set_xlabel("layer")
    axis.set_ylabel(label)
    axis.grid(True, color="#e6e6e6", linewidth=0.6)
    axis.set_axisbelow(True)
    bottom, _ = axis.get_ylim()
    axis.set_ylim(bottom=max(0.0, bottom))
    handles, labels = axis.get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda at: labels[at] != first)
    legend = {"loc": "outside lower center", "ncols": 3, "fontsize": 8, "frameon": False, "columnspacing": 1.2}
    axis.figure.legend([handles[at] for at in order], [labels[at] for at in order], **legend)
