"""A Hasse diagram as boxes and lines; classes are drawn in groups where there are too many."""

from __future__ import annotations

import dataclasses
import itertools

import networkx as nx

from hf_attn_ext.hasse.order.poset import Poset
from hf_attn_ext.hasse.spec import MaskSpec
from hf_attn_ext.hasse.text import class_title

from .layout import Layout, lay_out

MOST_NODES = 200  # more classes than these are drawn in groups
CHARACTER = 0.078  # width of a character, in inches
_BOX = 0.21  # height of a box, in inches
_ROW, _CLOSE_ROW, _WIDE_ROW = 0.44, 0.36, 1.1  # inches from row to row: usually, in a tall diagram, in a wide one
_GROUPS = 60
_PADDING = 2.4  # room around a title, in characters
_GUTTER = 5.0  # between columns
_COLUMN = 30  # rows of a column, if few lines cross from one column to the next
_TALLEST = 70  # rows of a column in any case
_FEW_CUTS = 3


@dataclasses.dataclass
class Node:
    """A box: a class of positions, or a group of classes. ``y`` counts rows, ``x`` characters."""

    title: str
    role: str
    predicts: bool
    x: float = 0.0
    y: float = 0.0


@dataclasses.dataclass
class Diagram:
    """Boxes, lines and texts of a diagram.

    Attributes:
        nodes: the boxes.
        half: half a box's height, in rows.
        lines: the points of each line, from below, and whether it goes from one column to the next.
        marks: ``(y, text)`` of the names of levels at the left.
        width: in characters.
        rows: the number of rows in a column.
        height: in inches.
        caption: the text below the diagram.
    """

    nodes: list[Node]
    half: float
    lines: list[tuple[list[tuple[float, float]], bool]]
    marks: list[tuple[float, str]]
    width: float
    rows: int
    height: float
    caption: str

    @classmethod
    def of(cls, spec: MaskSpec, poset: Poset) -> Diagram:
        """Return the layout of the diagram of ``poset``, with names and roles from ``spec``."""
        groups, edges, levels = _groups(spec, poset)
        nodes = [_node(spec, classes) for classes in groups]
        layout = lay_out(levels, edges, [len(node.title) + _PADDING for node in nodes], [node.role for node in nodes])
        rows = _rows(layout)
        columns = -(-len(layout.level_of_row) // rows)
        pitch = layout.width + _GUTTER
        width = columns * pitch - _GUTTER
        row = _ROW if rows <= 24 else _CLOSE_ROW
        if rows > 4:
            row = max(row, min(_WIDE_ROW, 0.35 * width * CHARACTER / rows))  # flat lines are hard to follow
        half = _BOX / 2 / row
        for node, x, at in zip(nodes, layout.x, layout.row, strict=True):
            node.x, node.y = x + at // rows * pitch, at % rows
        lines = [piece for path in layout.paths for piece in _pieces(path, rows, pitch, half)]
        grouped = len(groups) < len(poset.classes)
        count = f"{len(poset.classes):,} class" + ("es" if len(poset.classes) > 1 else "")
        caption = f"Hasse diagram: {count}" + (f" in {len(groups)} groups" if grouped else "")
        marks = [] if columns > 1 or grouped else _marks(layout)
        return cls(nodes, half, lines, marks, width, rows, rows * row + 0.1, caption)


def _node(spec: MaskSpec, classes: list[tuple[int, ...]]) -> Node:
    positions = tuple(sorted(p for members in classes for p in members))
    title = class_title(positions, spec.names)
    if len(classes) > 1 and "," in title:
        title = f"{len(classes)} classes"
    return Node(title, spec.roles[positions[0]], any(p in spec.labels for p in positions))


def _rows(layout: Layout) -> int:
    """Return the rows in a column: all, unless the diagram is tall and few lines cross the cuts, or very tall."""
    count = len(layout.level_of_row)
    columns = -(-count // _COLUMN)
    rows = -(-count // columns)
    cuts = [sum(path[0][1] < cut <= path[-1][1] for path in layout.paths) for cut in range(rows, count, rows)]
    if max(cuts, default=0) <= _FEW_CUTS:
        return rows
    return -(-count // -(-count // _TALLEST))


def _pieces(
    path: list[tuple[float, int]], rows: int, pitch: float, half: float
) -> list[tuple[list[tuple[float, float]], bool]]:
    """Return a line in pieces: vertical within the rows, where it passes boxes; along the gutter between columns."""
    pieces = []
    for bend, ((x, row), (to_x, to_row)) in enumerate(itertools.pairwise(path), 1):
        column, to_column = row // rows, to_row // rows
        start = (x + column * pitch, row % rows + half)
        end = (to_x + to_column * pitch, to_row % rows - half)
        if column == to_column:
            pieces.append(([start, end], False))
        else:
            gutter = to_column * pitch - _GUTTER / 2
            corners = [(start[0], rows - 0.55), (gutter, rows - 0.55), (gutter, -0.45), (end[0], -0.45)]
            pieces.append(([start, *corners, end], True))
        if bend < len(path) - 1:
            pieces.append(([end, (end[0], end[1] + 2 * half)], False))
    return pieces


def _marks(layout: Layout) -> list[tuple[float, str]]:
    levels = layout.level_of_row
    return [(row, f"level {level}") for row, level in enumerate(levels) if row == 0 or levels[row - 1] != level]


def _groups(spec: MaskSpec, poset: Poset) -> tuple[list[list[tuple[int, ...]]], list[tuple[int, int]], list[int]]:
    """Return groups of one class, or of one role and neighbouring levels; the covers between them; their levels."""
    levels: list[int] = poset.level_of.tolist()
    if len(poset.classes) <= MOST_NODES:
        return [[members] for members in poset.classes], list(poset.covers), levels
    roles = [spec.roles[members[0]] for members in poset.classes]
    step = -(-(max(levels) + 1) * len(set(roles)) // _GROUPS)
    keys = [(level // step, role) for level, role in zip(levels, roles, strict=True)]
    graph = nx.DiGraph()
    graph.add_nodes_from(keys)
    graph.add_edges_from((keys[lower], keys[upper]) for lower, upper in poset.covers if keys[lower] != keys[upper])
    whole = nx.condensation(graph)  # roles that see each other's groups make one group
    number = whole.graph["mapping"]
    groups: list[list[tuple[int, ...]]] = [[] for _ in whole]
    for members, key in zip(poset.classes, keys, strict=True):
        groups[number[key]].append(members)
    heights = [0] * len(groups)
    for node in nx.topological_sort(whole):
        for upper in whole.successors(node):
            heights[upper] = max(heights[upper], heights[node] + 1)
    return groups, sorted(nx.transitive_reduction(whole).edges), heights
