"""Where the nodes of a Hasse diagram go: rows by level, few crossings, straight chains.

The layered method of Sugiyama, Tagawa and Toda (1981): an edge over several rows gets a bend in each row between; rows
are reordered by the mean place of their neighbours; then each row's places are the least-squares fit to its neighbours
that keeps nodes apart. Parts that are not connected are laid out alone and moved together. Deterministic.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Mapping, Sequence

WIDEST = 24  # nodes in a row; a wider level is broken into several rows
_SWEEPS = 12
_STARTS = 5  # orders to begin with; the one that ends with the fewest crossings is kept
_STRAIGHT = 8.0  # how much more an edge within a chain pulls
_BEND = 1.4  # room of a bend, in that of a character
_BESIDE = 1.0  # room between parts
_MOST_BENDS = 4000  # with more of them edges go straight


@dataclasses.dataclass
class Layout:
    """Places of nodes, and the edges' ways.

    Attributes:
        x: a number a node, from 0 on, in the unit of the widths given; the node's middle.
        row: a whole number a node, from below.
        ways: for each edge, ``(x, row)`` from the lower node over its bends to the upper one.
        width: of the whole.
        level_of_row: the level that each row belongs to.
    """

    x: list[float]
    row: list[int]
    ways: list[list[tuple[float, int]]]
    width: float
    level_of_row: list[int]


@dataclasses.dataclass
class _Graph:
    """Nodes and bends in rows, with the edges below and above each and how strongly they pull."""

    lines: list[list[int]]
    down: list[dict[int, float]]
    up: list[dict[int, float]]
    widths: list[float]


def lay_out(
    levels: Sequence[int], edges: Sequence[tuple[int, int]], widths: Sequence[float], kinds: Sequence[str]
) -> Layout:
    """Place nodes.

    Args:
        levels: the level of each node, from 0.
        edges: (lower, upper) pairs of nodes; the upper one's level is the higher.
        widths: the room that each node takes.
        kinds: a word a node; chains of one kind are drawn straight before others are.
    """
    row, level_of_row = _rows(levels)
    chains = _with_bends(row, edges)
    count = max([len(levels), *(1 + node for chain in chains for node in chain)])
    row_of = [*row, *[0] * (count - len(levels))]
    kind_of = [*kinds, *[""] * (count - len(levels))]  # bends pull each other straight, too
    down: list[dict[int, float]] = [{} for _ in range(count)]
    up: list[dict[int, float]] = [{} for _ in range(count)]
    for chain in chains:
        for lower, upper in itertools.pairwise(chain):
            down[upper][lower] = up[lower][upper] = _STRAIGHT if kind_of[lower] == kind_of[upper] else 1.0
            if upper >= len(levels):
                row_of[upper] = row_of[lower] + 1
    room = [*widths, *[_BEND] * (count - len(levels))]
    x = [0.0] * count
    borders = [0.0] * len(level_of_row)  # how far each row is taken
    for part in _parts(down, up, len(levels)):
        lines: list[list[int]] = [[] for _ in level_of_row]
        for node in part:
            lines[row_of[node]].append(node)
        graph = _Graph(lines, down, up, room)
        _reorder(graph)
        _place(graph, x)
        _move_beside(lines, x, room, borders)
    ways = [[(x[node], row_of[node]) for node in chain] for chain in chains]
    return Layout(x[: len(levels)], row, ways, max(borders) - _BESIDE, level_of_row)


def _rows(levels: Sequence[int]) -> tuple[list[int], list[int]]:
    """A row for every node: its level's, or one of several where the level is wide."""
    members: list[list[int]] = [[] for _ in range(max(levels) + 1)]
    for node, level in enumerate(levels):
        members[level].append(node)
    row, level_of_row = [0] * len(levels), []
    for level, nodes in enumerate(members):
        parts = -(-len(nodes) // WIDEST)
        for place, node in enumerate(nodes):
            row[node] = len(level_of_row) + place % parts  # neighbours spread over the rows: shorter ways
        level_of_row += [level] * parts
    return row, level_of_row


def _with_bends(row: Sequence[int], edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    if sum(row[upper] - row[lower] - 1 for lower, upper in edges) > _MOST_BENDS:
        return [list(edge) for edge in edges]
    chains, new = [], len(row)
    for lower, upper in edges:
        bends = row[upper] - row[lower] - 1
        chains.append([lower, *range(new, new + bends), upper])
        new += bends
    return chains


def _parts(down: list[dict[int, float]], up: list[dict[int, float]], real: int) -> list[list[int]]:
    """Connected parts, those with most nodes (below number ``real``) first."""
    seen = [False] * len(down)
    parts = []
    for root in range(len(down)):
        if seen[root]:
            continue
        seen[root] = True
        part = [root]
        for node in part:  # grows while it is walked
            for near in (*down[node], *up[node]):
                if not seen[near]:
                    seen[near] = True
                    part.append(near)
        parts.append(sorted(part))
    return sorted(parts, key=lambda part: sum(node < real for node in part), reverse=True)


def _reorder(graph: _Graph) -> None:
    """Sweep up and down from several orders; keep the one with the fewest crossings."""
    chance = random.Random(0)
    best, fewest = [list(line) for line in graph.lines], _crossings(graph.lines, graph.down)
    for start in range(_STARTS):
        if fewest == 0:
            break
        for line in graph.lines:
            line.sort()
            if start:
                chance.shuffle(line)
        place: dict[int, float] = {}
        for line in graph.lines:
            _number(line, place)
        for sweep in range(_SWEEPS):
            near = graph.down if sweep % 2 == 0 else graph.up
            for line in graph.lines if sweep % 2 == 0 else reversed(graph.lines):
                keys = {n: _mean(place, near[n], place[n]) for n in line}
                line.sort(key=keys.__getitem__)
                _number(line, place)
            crossings = _crossings(graph.lines, graph.down)
            if crossings < fewest:
                best, fewest = [list(line) for line in graph.lines], crossings
    graph.lines[:] = best


def _number(line: list[int], place: dict[int, float]) -> None:
    """Places from 0 to 1 in a row; a lone node stands in the middle."""
    for i, node in enumerate(line):
        place[node] = (i + 0.5) / len(line)


def _crossings(lines: list[list[int]], down: list[dict[int, float]]) -> int:
    """Crossings between neighbouring rows."""
    total = 0
    for below, line in itertools.pairwise(lines):
        place = {node: i for i, node in enumerate(below)}
        total += _inversions([end for node in line for end in sorted(place[n] for n in down[node] if n in place)])
    return total


def _inversions(values: list[int]) -> int:
    if len(values) < 2:
        return 0
    half = len(values) // 2
    left, right = values[:half], values[half:]
    count = _inversions(left) + _inversions(right)
    left, right = sorted(left), sorted(right)
    i = 0
    for value in right:
        while i < len(left) and left[i] <= value:
            i += 1
        count += len(left) - i
    return count


def _place(graph: _Graph, x: list[float]) -> None:
    for line in graph.lines:
        _fit(line, [0.0] * len(line), [1.0] * len(line), x, graph.widths)
    for sweep in range(2 * _SWEEPS):
        for line in graph.lines if sweep % 2 == 0 else reversed(graph.lines):
            pulls = [{**graph.down[node], **graph.up[node]} for node in line]
            wanted = [_mean(x, near, x[node]) for node, near in zip(line, pulls, strict=True)]
            _fit(line, wanted, [sum(near.values()) or 1.0 for near in pulls], x, graph.widths)


def _mean(place: Mapping[int, float] | Sequence[float], pulls: Mapping[int, float], alone: float) -> float:
    total = sum(pulls.values())
    return sum(pull * place[node] for node, pull in pulls.items()) / total if total else alone


def _fit(line: list[int], wanted: list[float], weights: list[float], x: list[float], widths: Sequence[float]) -> None:
    """Set ``x`` of a row's nodes: nearest to ``wanted`` in weighted squares, in this order, and apart.

    Pool adjacent violators, after the distances that nodes must keep are taken off.
    """
    offsets, total = [], 0.0
    for left, right in zip([None, *line], line, strict=False):
        if left is not None:
            total += (widths[left] + widths[right]) / 2
        offsets.append(total)
    blocks: list[tuple[float, float, int]] = []  # mean, weight, nodes
    for value, offset, weight in zip(wanted, offsets, weights, strict=True):
        mean, size = value - offset, 1
        while blocks and blocks[-1][0] > mean:
            other, heavy, many = blocks.pop()
            mean, weight, size = (mean * weight + other * heavy) / (weight + heavy), weight + heavy, size + many
        blocks.append((mean, weight, size))
    place = 0
    for mean, _, size in blocks:
        for _ in range(size):
            x[line[place]] = mean + offsets[place]
            place += 1


def _move_beside(lines: list[list[int]], x: list[float], widths: Sequence[float], borders: list[float]) -> None:
    """Move a part to the right of what is there, as near as its rows allow; note how far its rows reach."""
    rows = [row for row, line in enumerate(lines) if line]
    # A part is a block from its lowest to its highest row: another part never stands between its rows' nodes.
    spanned = range(rows[0], rows[-1] + 1)
    shift = max(borders[row] for row in spanned) - min(x[n] - widths[n] / 2 for row in rows for n in lines[row])
    right = 0.0
    for row in rows:
        for node in lines[row]:
            x[node] += shift
            right = max(right, x[node] + widths[node] / 2)
    for row in spanned:
        borders[row] = right + _BESIDE
