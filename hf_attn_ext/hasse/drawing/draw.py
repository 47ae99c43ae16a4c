"""Pictures of masks and of Hasse diagrams, as PNG or SVG; the same bytes on every run.

Colours stand for roles, in both pictures. In the heat map of a mask a full colour means "attends", a paler one "its
information arrives through further layers" (the paler, the later), white "never".
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_attn_ext._util.files import as_path, atomic_write
from hf_attn_ext.errors import AttnExtError, short, suggest
from hf_attn_ext.hasse.order.flow import information_flow
from hf_attn_ext.hasse.order.poset import Poset
from hf_attn_ext.hasse.roles import role_of
from hf_attn_ext.hasse.spec import MaskSpec, check_spec
from hf_attn_ext.hasse.text import tile_shares

from .diagram import CHARACTER, Diagram

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PARTS = ("both", "mask", "hasse")
SUFFIXES = (".png", ".svg")
_PALETTE = ("#6b3fa0", "#8a6d00", "#00647a", "#7a2e5d", "#4d4d4d")
_NAMED = 40  # the most positions with named rows and columns
_GRADED = 256  # the most positions for which the heat map shows later layers
_PIXELS = 512  # the most cells of a heat map, per side
_LEVELS = 9.0  # room for the levels' names, in characters
_SMALL = 8.0


def draw(spec: MaskSpec, path: str | Path, what: str = "both") -> None:
    """Draw a mask, its Hasse diagram, or both side by side.

    Args:
        spec: the mask; ``MaskSpec.from_mask(...)`` makes one of a mask of your own.
        path: a file ending in ``.png`` or ``.svg``.
        what: ``"both"``, ``"mask"`` or ``"hasse"``.

    Raises:
        AttnExtError: another ending or word, or a folder that does not exist.

    Example:
        >>> from hf_attn_ext.hasse import masks
        >>> draw(masks.butterfly(6), "butterfly.png")  # doctest: +SKIP
    """
    path = as_path(path)
    check_spec(spec)
    if path.suffix.lower() not in SUFFIXES:
        raise AttnExtError(f"a picture is a file ending in .png or .svg, got {path.name!r}")
    if not path.parent.is_dir():
        raise AttnExtError(f"the folder {str(path.parent)!r} does not exist; make it first")
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's style must not change the bytes
        matplotlib.rcParams["svg.hashsalt"] = "hf_attn_ext"
        picture = figure(spec, what)
        kind = path.suffix.lower()[1:]
        metadata = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
        with atomic_write(path) as temporary_path:
            picture.savefig(temporary_path, format=kind, dpi=110, metadata=metadata)


def figure(spec: MaskSpec, what: str = "both") -> Figure:
    """Return the picture of :func:`draw` as a matplotlib figure, for a notebook."""
    check_spec(spec)
    import matplotlib

    with matplotlib.rc_context({"text.parse_math": False}):  # a dollar sign in a token does not begin a formula
        return _figure(spec, what)


def _figure(spec: MaskSpec, what: str) -> Figure:
    if not isinstance(what, str) or what not in PARTS:
        raise AttnExtError(f"what must be one of {', '.join(PARTS)}, got {short(what)}.{suggest(what, PARTS)}")
    from matplotlib.figure import Figure

    poset = Poset.from_mask(spec) if what != "mask" else None
    diagram = Diagram.of(spec, poset) if poset is not None else None
    panels = []
    if what != "hasse":
        panels.append(_mask_size(spec))
    if diagram is not None:
        wide = max(diagram.width + _LEVELS, 0.92 * len(diagram.caption))
        panels.append((wide * CHARACTER, diagram.height))
    top, bottom, margin = (0.55 if what == "hasse" else 0.75), (0.55 if what == "mask" else 0.7), 0.25
    left = 0.2 + max(map(len, spec.names)) * 0.07 if what != "hasse" else 0.0
    right = 0.45 if what != "hasse" and len(spec) <= _NAMED and spec.labels else 0.0
    height = top + bottom + max(size[1] for size in panels)
    width = left + right + sum(size[0] for size in panels) + margin * (len(panels) + 1)
    strength = _strength(spec, -(-len(spec) // _PIXELS)) if what != "hasse" else np.zeros((0, 0))
    graded = strength[(strength > 0) & (strength < 1)]
    legend = _legend_entries(spec, diagram, later=len(spec) <= _GRADED and graded.size > 0)
    width = max(width, 0.2 + sum(0.45 + 0.068 * len(text) for text, *_ in legend), 0.3 + 0.105 * len(spec.title))
    picture = Figure(figsize=(width, height))
    x = margin
    if what != "hasse":
        w, h = panels[0]
        axes = picture.add_axes(((x + left) / width, (height - top - h) / height, w / width, h / height))
        _draw_mask(axes, spec, strength)
        x += left + right + w + margin
    if diagram is not None:
        w, h = panels[-1]
        axes = picture.add_axes((x / width, (height - top - h) / height, w / width, h / height))
        _draw_hasse(axes, diagram, spec, w / CHARACTER)
    picture.text(margin / width, 1 - 0.24 / height, spec.title, fontsize=11, fontweight="bold", va="center")
    _draw_legend(picture, legend, width, height)
    return picture


def colour_of(role: str, roles: Sequence[str]) -> str:
    """Return the colour that a mask declares for a role; for other roles one of a palette, by their order."""
    declared = role_of(role).colour
    if declared is not None:
        return declared
    others = sorted({other for other in roles if role_of(other).colour is None})
    return _PALETTE[others.index(role) % len(_PALETTE)]


def _mask_size(spec: MaskSpec) -> tuple[float, float]:
    size = len(spec)
    side = max(1.4, size * (0.3 if size <= 12 else 0.23)) if size <= _NAMED else 6.5
    return side, side


def _draw_mask(axes: Axes, spec: MaskSpec, strength: np.ndarray) -> None:
    from matplotlib.colors import to_rgb

    size = len(spec)
    step = -(-size // len(strength))
    rows = [spec.roles[min(i * step, size - 1)] for i in range(len(strength))]
    colours = np.array([to_rgb(colour_of(role, spec.roles)) for role in rows])
    image = 1 - strength[:, :, None] * (1 - colours[:, None, :])
    axes.imshow(image, interpolation="nearest", extent=(-0.5, size - 0.5, size - 0.5, -0.5), aspect="equal")
    axes.tick_params(length=0, labelsize=_SMALL, pad=2)
    axes.xaxis.tick_top()
    if size <= _NAMED:
        edges = np.arange(-0.5, size)
        axes.vlines(edges, -0.5, size - 0.5, color="#d5d5d5", linewidth=0.5)
        axes.hlines(edges, -0.5, size - 0.5, color="#d5d5d5", linewidth=0.5)
        upright = size > 12 or max(map(len, spec.names)) > 3
        axes.set_xticks(range(size), spec.names, rotation=90 if upright else 0)
        axes.set_yticks(range(size), spec.names)
        for ticks in (axes.get_xticklabels(), axes.get_yticklabels()):
            for text, role in zip(ticks, spec.roles, strict=True):
                text.set_color(colour_of(role, spec.roles))
        for position, token in spec.labels.items():
            axes.text(size - 0.2, position, f"→ {token}", fontsize=_SMALL, va="center", color="#333333")
    else:
        runs = _role_runs(spec.roles)
        middles = [(start + stop - 1) / 2 for start, stop, _ in runs]
        texts = [f"{role}\n{stop - start}" for start, stop, role in runs]
        if len(runs) <= 12:
            axes.set_yticks(middles, texts, rotation=90, va="center", ha="center")
            axes.set_xticks(middles, texts)
            axes.tick_params(axis="y", pad=10)
        for start, _, _ in runs[1:]:
            axes.axhline(start - 0.5, color="#888888", linewidth=0.6)
            axes.axvline(start - 0.5, color="#888888", linewidth=0.6)
    note = " (→ token to predict)" if size <= _NAMED and spec.labels else ""
    note = f" (a cell: {step} x {step} positions; pale: some of them)" if step > 1 else note
    axes.set_xlabel("row attends to column" + note)
    axes.xaxis.label.set_fontsize(_SMALL)
    axes.xaxis.set_label_position("bottom")


def _strength(spec: MaskSpec, step: int) -> np.ndarray:
    """Return the strength of a cell's colour: 1 attends, less if later, 0 never; for tiles, the share of pairs."""
    if step > 1:
        shares = tile_shares(spec, step).numpy()
        return np.where(shares > 0, 0.25 + 0.75 * shares, 0)  # a single pair must be visible
    mask = spec.dense()
    strength = mask.double().numpy()
    if len(spec) <= _GRADED:
        reached, layers, arrivals = mask, 1, []
        while True:
            layers += 1
            following = information_flow(spec, layers)
            new = following & ~reached & ~mask
            new.fill_diagonal_(False)  # the residual, not a path
            if not new.any():
                break
            arrivals.append(new)
            reached = following | reached
        for index, arrived in enumerate(arrivals):
            strength[arrived.numpy()] = 0.42 - 0.28 * index / max(1, len(arrivals) - 1)
    return strength


def _draw_hasse(axes: Axes, diagram: Diagram, spec: MaskSpec, characters: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    axes.set_axis_off()
    axes.set_xlim(-_LEVELS, characters - _LEVELS)
    axes.set_ylim(-0.5, diagram.rows - 0.5)
    axes.text(-_LEVELS, -0.5, "\n" + diagram.caption, fontsize=_SMALL, va="top")
    many = len(diagram.lines) > 600
    for line, column_jump in diagram.lines:
        style: dict[str, Any] = {"color": "#777777"}
        if column_jump:
            style = {"color": "#9a9a9a", "linestyle": (0, (3, 2))}
        x, y = zip(*line, strict=True)
        axes.plot(x, y, linewidth=0.7 if many else 0.9, alpha=0.7 if many else 1.0, zorder=1, **style)
    for node in diagram.nodes:
        colour = colour_of(node.role, spec.roles)
        width = len(node.title) + 0.9
        axes.add_patch(
            FancyBboxPatch(
                (node.x - width / 2, node.y - diagram.half),
                width,
                2 * diagram.half,
                boxstyle="round,pad=0,rounding_size=0.4",
                mutation_aspect=diagram.half / 1.4,
                facecolor=colour if node.predicts else "white",
                edgecolor=colour,
                linewidth=1.2,
                zorder=2,
            )
        )
        ink = "white" if node.predicts else colour
        axes.text(node.x, node.y, node.title, fontsize=_SMALL, ha="center", va="center_baseline", color=ink, zorder=3)
    for row, text in diagram.marks:
        axes.text(-_LEVELS, row, text, fontsize=7, color="#8a8a8a", va="center")


def _legend_entries(spec: MaskSpec, diagram: Diagram | None, later: bool) -> list[tuple[str, str, bool]]:
    """Return the text and the colour of each mark, and whether it is filled."""
    roles = list(dict.fromkeys(spec.roles))[:8]
    entries = [(role, colour_of(role, spec.roles), True) for role in roles]
    if later:
        entries.append(("paler: arrives through further layers", "#bbbbbb", True))
    if diagram is not None and any(node.predicts for node in diagram.nodes):
        entries += [("filled: predicts a token", "#555555", True), ("hollow: only read", "#555555", False)]
    return entries


def _draw_legend(picture: Any, entries: list[tuple[str, str, bool]], width: float, height: float) -> None:
    from matplotlib.lines import Line2D

    style: dict[str, Any] = {"linestyle": "", "marker": "s", "markersize": 7}
    handles = [
        Line2D([], [], color=colour, markerfacecolor=colour if filled else "white", **style)
        for _, colour, filled in entries
    ]
    picture.legend(
        handles,
        [text for text, *_ in entries],
        loc="lower left",
        bbox_to_anchor=(0.1 / width, 0.02 / height),
        ncols=len(entries),
        frameon=False,
        fontsize=_SMALL,
        handletextpad=0.2,
        columnspacing=1.2,
    )


def _role_runs(roles: Sequence[str]) -> list[tuple[int, int, str]]:
    starts = [position for position, role in enumerate(roles) if position == 0 or roles[position - 1] != role]
    return [(start, stop, roles[start]) for start, stop in itertools.pairwise([*starts, len(roles)])]
