"""The pictures of docs/evidence/linear-attention-over-orders.md: a mask, its order, its chains, their running sums.

    python -m benchmarks.studies.order_pages  # writes docs/evidence/order-*.png and checks them, a few seconds
    python -m benchmarks.studies.order_pages --out runs/orders

Two orders: butterfly attention, and one with classes of several positions. For each, a picture in four steps, for one
query whose reads are marked; and whether linear attention over the order equals the dense form.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import ROOT
from benchmarks.studies.common.folders import picture_folder
from benchmarks.studies.common.options import make_parser, report_errors
from benchmarks.studies.common.results import save_figure
from hf_attn_ext.attention import linear_attention, make_feature_map, naive_attention
from hf_attn_ext.hasse import MaskSpec, Poset, masks
from hf_attn_ext.hasse.decomposition import ChainDecomposition, chain_decomposition
from hf_attn_ext.hasse.drawing.diagram import CHARACTER, Diagram
from hf_attn_ext.hasse.text import class_title

LETTERS = "STUV"  # of running sums
CHAINS = ("#1d7a3f", "#30459c", "#c46a00", "#6b3fa0")
OWN, GREY, INK = "#c8384c", "#9a9a9a", "#222222"
SIZE = 8.5  # of text
CELL, STRIP = 0.52, 0.62  # inches of a position in a chain, and from strip to strip


def two_texts() -> MaskSpec:
    """Two texts: a question read whole and then word by word, a second one next to it, and two readers of both."""
    names = ["q0", "q1", "a0", "a1", "t0", "t1", "x0", "x1", "y"]
    covers = {
        "a0": ("q0", "q1"),
        "a1": ("a0",),
        "t1": ("t0",),
        "x0": ("a0", "t1"),
        "x1": ("a0", "t1"),
        "y": ("a1", "t0"),
    }
    mask = torch.eye(len(names), dtype=torch.bool)
    for upper, lower in covers.items():
        for name in lower:
            mask[names.index(upper), names.index(name)] = True
    for one, other in (("q0", "q1"), ("x0", "x1")):
        mask[names.index(one), names.index(other)] = mask[names.index(other), names.index(one)] = True
    return MaskSpec.from_mask(mask, name="two_texts", names=names).densify()


def picture(spec: MaskSpec, query: str, path: Path) -> None:
    """Draw the four steps for the query of that name."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcdefaults()
    cover, poset = chain_decomposition(spec), Poset.from_mask(spec)
    chosen = spec.names.index(query)
    colours = _colours(spec, cover)
    diagram = Diagram.of(spec, poset)
    side, tall = 0.25 * len(spec), max(0.25 * len(spec), diagram.height)
    strips = STRIP * (len(cover.chains) + 1)
    wide = max(2.7, diagram.width * CHARACTER)
    x = 0.6 + max(side, 2.4) + 0.5
    width, height = x + 2 * wide + 0.3, 0.75 + tall + 0.6 + strips + 0.1
    figure = Figure(figsize=(width, height))

    def axes(x: float, y: float, w: float, h: float) -> Any:
        return figure.add_axes((x / width, 1 - (y + h) / height, w / width, h / height))

    _draw_mask(axes(0.6, 0.75, side, side), spec, cover, chosen, colours)
    _draw_diagram(axes(x, 0.75, wide, diagram.height), spec, poset, diagram, None, colours, chosen)
    _draw_diagram(axes(x + wide + 0.3, 0.75, wide, diagram.height), spec, poset, diagram, cover, colours, chosen)
    _draw_sums(axes(0.3, 0.75 + tall + 0.6, width - 0.3, strips), spec, cover, chosen, colours)
    for at, y, text in (
        (0.3, 0.18, f"1  the mask; {query}'s row"),
        (x, 0.18, "2  its order"),
        (x + wide + 0.3, 0.18, "3  chains cover what is seen"),
        (0.3, 0.75 + tall + 0.4, f"4  running sums along the chains; {query} reads the framed ones"),
    ):
        figure.text(at / width, 1 - y / height, text, fontsize=10, fontweight="bold", va="center", color=INK)
    save_figure(figure, path, dpi=110)


def _colours(spec: MaskSpec, cover: ChainDecomposition) -> list[str]:
    """A colour a position: its chain's, or that of classes in no chain."""
    found = [OWN] * len(spec)
    for chain, colour in zip(cover.chains, CHAINS, strict=False):
        for position in chain.tolist():
            found[position] = colour
    return found


def _draw_mask(axes: Any, spec: MaskSpec, cover: ChainDecomposition, chosen: int, colours: list[str]) -> None:
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    size, dense = len(spec), spec.dense().numpy()
    ink = np.array([to_rgb(colour) for colour in colours])[None]
    strength = np.where(np.arange(size)[:, None] == chosen, 1.0, 0.4)[..., None] * dense[..., None]
    axes.imshow(1 - strength * (1 - ink), extent=(-0.5, size - 0.5, size - 0.5, -0.5), interpolation="nearest")
    axes.hlines(np.arange(-0.5, size), -0.5, size - 0.5, color="#d5d5d5", linewidth=0.5)
    axes.vlines(np.arange(-0.5, size), -0.5, size - 0.5, color="#d5d5d5", linewidth=0.5)
    axes.add_patch(Rectangle((-0.5, chosen - 0.5), size, 1, fill=False, edgecolor=INK, linewidth=1.4))
    axes.set_xticks(range(size), spec.names, rotation=90)
    axes.set_yticks(range(size), spec.names)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=SIZE, pad=2)
    for ticks in (axes.get_xticklabels(), axes.get_yticklabels()):
        for text, colour in zip(ticks, colours, strict=True):
            text.set_color(colour)


def _draw_diagram(
    axes: Any,
    spec: MaskSpec,
    poset: Poset,
    diagram: Diagram,
    cover: ChainDecomposition | None,
    colours: list[str],
    chosen: int,
) -> None:
    """The Hasse diagram; with a cover, chains in their colours, and the query's down-set filled."""
    from matplotlib.patches import FancyBboxPatch

    axes.set_axis_off()
    axes.set_xlim(-0.5, max(diagram.width, axes.figure.get_figwidth() * axes.get_position().width / CHARACTER) - 0.5)
    axes.set_ylim(-0.5, diagram.rows - 0.5)
    for way, _ in diagram.lines:
        axes.plot(*zip(*way, strict=True), color="#c4c4c4" if cover else "#888888", linewidth=0.9, zorder=1)
    nodes = {node.title: node for node in diagram.nodes}
    places = [nodes[class_title(positions, spec.names)] for positions in poset.classes]
    if cover is not None:
        for chain, colour in zip(cover.chains, CHAINS, strict=False):
            numbers = list(dict.fromkeys(poset.class_of[chain].tolist()))
            points = [(places[number].x, places[number].y) for number in numbers]
            axes.plot(*zip(*points, strict=True), color=colour, linewidth=3.2, alpha=0.45, zorder=1.5)
    seen = poset.down_set(int(poset.class_of[chosen]))
    for number, (node, positions) in enumerate(zip(places, poset.classes, strict=True)):
        colour = colours[positions[0]] if cover is not None else "#555555"
        filled = cover is not None and number in seen
        box = {"boxstyle": "round,pad=0,rounding_size=0.4", "mutation_aspect": diagram.half / 1.4}
        corner, width = (node.x - (len(node.title) + 0.9) / 2, node.y - diagram.half), len(node.title) + 0.9
        face = colour if filled else "white"
        style = {"facecolor": face, "edgecolor": colour, "linewidth": 1.3, "zorder": 2}
        axes.add_patch(FancyBboxPatch(corner, width, 2 * diagram.half, **box, **style))
        ink = "white" if filled else colour
        axes.text(node.x, node.y, node.title, fontsize=SIZE, ha="center", va="center_baseline", color=ink, zorder=3)


def _draw_sums(axes: Any, spec: MaskSpec, cover: ChainDecomposition, chosen: int, colours: list[str]) -> None:
    """A strip a chain: its positions, the sum after each, and how far the query reads. Units are inches."""
    width, height = (
        edge * side for edge, side in zip(axes.figure.get_size_inches(), axes.get_position().size, strict=True)
    )
    axes.set_axis_off()
    axes.set_xlim(0, width)
    axes.set_ylim(-height, 0)
    left = 0.85
    terms = []

    def cells(y: float, title: str, positions: list[int], filled: int, colour: str) -> None:
        from matplotlib.patches import Rectangle

        middle = {"ha": "center", "va": "center", "fontsize": SIZE}
        axes.text(left - 0.12, y, title, fontsize=SIZE, ha="right", va="center", color=colour)
        for place, position in enumerate(positions):
            read = place < filled
            box = {"facecolor": colour if read else "white", "edgecolor": colour, "linewidth": 1.0}
            axes.add_patch(Rectangle((left + place * CELL, y - 0.13), CELL - 0.04, 0.26, **box))
            ink = "white" if read else colour
            axes.text(left + place * CELL + CELL / 2 - 0.02, y, spec.names[position], color=ink, **middle)

    for number, (chain, prefix) in enumerate(zip(cover.chains, cover.prefix, strict=True)):
        y, letter, reach = -STRIP * number - 0.22, LETTERS[number], int(prefix[chosen])
        cells(y, f"chain {letter}", chain.tolist(), reach, CHAINS[number])
        for place in range(1, len(chain) + 1):
            frame = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": INK, "linewidth": 1.3}
            text = {"fontsize": SIZE - 0.5, "ha": "center", "va": "center", "color": INK}
            bbox = frame if place == reach else None
            axes.text(left + place * CELL - 0.02, y - 0.25, f"{letter}{place}", bbox=bbox, **text)
        terms += [f"{letter}{reach}"] if reach else []
    own = np.flatnonzero((cover.group == cover.group[chosen]) & (cover.group >= 0)).tolist()
    if own:
        cells(-STRIP * len(cover.chains) - 0.22, "own class", own, len(own), OWN)
        terms.append("own class")
    x = left + CELL * max(len(own), *map(len, cover.chains)) + 0.4
    name = spec.names[chosen]
    axes.text(x, -0.22, f"{name}:  " + " + ".join(terms), fontsize=11, va="center", color=INK, fontweight="bold")
    notes = (
        f"S2 is the sum of phi(k) [v, 1] over the first two positions\n"
        f"of chain S. phi(q) times {name}'s sums is the numerator of\nits output and, by the 1, the denominator."
    )
    axes.text(x, -0.5, notes, fontsize=SIZE, va="top", color="#555555", linespacing=1.4)


def agreement(spec: MaskSpec) -> float:
    """The largest difference between linear attention over the order and the dense form, in float64."""
    generator = torch.Generator().manual_seed(0)
    feature_map = make_feature_map("flexformer_p", 2, 8, 16).double()
    q, k, v = torch.randn(3, 1, 2, len(spec), 8, generator=generator, dtype=torch.float64).unbind()
    with torch.no_grad():
        ours = linear_attention(q, k, v, feature_map, order=spec)
        return float((ours - naive_attention(q, k, v, feature_map, mask=spec.dense())).abs().max())


@report_errors
def main(arguments: list[str] | None = None) -> int:
    """Parse the options and run the study."""
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence", help="the pictures' folder")
    options = parser.parse_args(arguments)
    picture_folder(options.out)
    for name, spec, query in (("butterfly", masks.butterfly(5), "P2"), ("classes", two_texts(), "x0")):
        picture(spec, query, options.out / f"order-{name}.png")
        cover, largest = chain_decomposition(spec), agreement(spec)
        equal = "equal to the dense form" if largest < 1e-12 else f"NOT equal to the dense form: {largest:.1e}"
        print(f"{name}: {len(spec)} positions, {len(cover.chains)} chains, {equal}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
