"""A Hasse diagram as boxes and lines: nodes with titles, places and ways; grouped where there are too many."""

from __future__ import annotations

import dataclasses

import networkx as nx

from .layout import lay_out
from .poset import Poset
from .spec import MaskSpec
from .text import class_title

MOST_NODES = 200  # beyond, classes are drawn in groups
_GROUPS = 60
_PADDING = 2.4  # room beside a title, in characters
_GUTTER = 3.0  # between columns
_HALF = 0.24  # half a box's height, in rows


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
    """What is to be drawn.

    Attributes:
        nodes: the boxes.
        ways: points of each line, from below, and whether it goes from one column to the next.
        marks: ``(y, text)`` of the levels' names at the left.
        width: in characters.
        rows: how many rows are above each other.
    """

    nodes: list[Node]
    ways: list[tuple[list[tuple[float, float]], bool]]
    marks: list[tuple[float, str]]
    width: float
    rows: int

    @classmethod
    def of(cls, spec: MaskSpec, poset: Poset, column_rows: int = 70) -> Diagram:
        """Lay the diagram of ``poset`` out, with names and roles from ``spec``.

        Args:
            column_rows: rows above each other at most; a taller diagram goes on in a further column, at the right.
        """
        groups, edges, levels = _groups(spec, poset)
        nodes = [_node(spec, classes) for classes in groups]
        layout = lay_out(levels, edges, [len(node.title) + _PADDING for node in nodes], [node.role for node in nodes])
        columns = -(-len(layout.level_of_row) // column_rows)
        rows = -(-len(layout.level_of_row) // columns)
        pitch = layout.width + _GUTTER

        def place(x: float, row: int) -> tuple[float, float]:
            return x + row // rows * pitch, float(row % rows)

        for node, x, row in zip(nodes, layout.x, layout.row, strict=True):
            node.x, node.y = place(x, row)
        ways = []
        for way in layout.ways:
            (x, row), *rest = way
            start = place(x, row)
            leave = (start[0], start[1] + _HALF)
            for bend, (x, row) in enumerate(rest, 1):
                here, last = place(x, row), bend == len(rest)
                jump = row // rows != way[bend - 1][1] // rows
                arrive = (here[0], here[1] - _HALF)
                ways.append(([leave, arrive], jump))
                leave = (here[0], here[1] + _HALF)
                if not last:  # straight past the nodes of the row, so that no line cuts a box
                    ways.append(([arrive, leave], False))
        marks = []
        marks = []
        if columns == 1:
            for row, level in enumerate(layout.level_of_row):
                if row == 0 or layout.level_of_row[row - 1] != level:
                    marks.append((float(row), f"level {level}"))
        return cls(nodes, ways, marks, columns * pitch - _GUTTER, rows)


def _node(spec: MaskSpec, classes: list[tuple[int, ...]]) -> Node:
    positions = tuple(sorted(p for members in classes for p in members))
    title = class_title(positions, spec.names)
    if len(classes) > 1 and "," in title:
        title = f"{len(classes)} classes"
    return Node(title, spec.roles[positions[0]], any(p in spec.labels for p in positions))


def _groups(
    spec: MaskSpec, poset: Poset
) -> tuple[list[list[tuple[int, ...]]], list[tuple[int, int]], list[int]]:
    """Classes in groups of one, or of one role and neighbouring levels; the covers between groups; levels."""
    levels = [0] * len(poset.classes)
    for level, classes in enumerate(poset.levels()):
        for index in classes:
            levels[index] = level
    if len(poset.classes) <= MOST_NODES:
        return [[members] for members in poset.classes], [tuple(pair) for pair in poset.covers], levels
    role_of = [spec.roles[members[0]] for members in poset.classes]
    step = -(-(max(levels) + 1) * len(set(role_of)) // _GROUPS)
    graph = nx.DiGraph()
    keys = [(level // step, role) for level, role in zip(levels, role_of, strict=True)]
    graph.add_nodes_from(keys)
    graph.add_edges_from((keys[lower], keys[upper]) for lower, upper in poset.covers if keys[lower] != keys[upper])
    whole = nx.transitive_reduction(nx.condensation(graph))  # roles that see each other make one group
    number = {key: i for i, data in nx.condensation(graph).nodes(data=True) for key in data["members"]}
    groups: list[list[tuple[int, ...]]] = [[] for _ in whole]
    for members, key in zip(poset.classes, keys, strict=True):
        groups[number[key]].append(members)
    height = [0] * len(groups)
    for node in nx.topological_sort(whole):
        for upper in whole.successors(node):
            height[upper] = max(height[upper], height[node] + 1)
    return groups, sorted(whole.edges), height
