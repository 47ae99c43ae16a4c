"""The masks and families that ``bench hasse`` measures: each defined a block of rows at a time, dense or packed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import torch

from hf_attn_ext.errors import AttnExtError, suggest
from hf_attn_ext.hasse import BitMatrix, MaskSpec, Poset, Task, masks

Rows = Callable[[np.ndarray], np.ndarray]  # row numbers (rows,) to numpy bool (rows, positions)
BLOCK = 512


@dataclasses.dataclass(frozen=True)
class MaskKind:
    """A kind of mask.

    Attributes:
        name: on the command line and in reports.
        note: what it is.
        bars: whether the bars of speed count it; the others show where the algorithms are at their worst.
        make: from the positions wanted to those there are, and the rows; a butterfly's number is one of its own, at
            most two below the wanted.
        longest: positions at most, where more would take minutes.
    """

    name: str
    note: str
    bars: bool
    make: Callable[[int], tuple[int, Rows]]
    longest: int = 2**20

    def dense(self, wanted: int) -> torch.Tensor:
        """The mask as torch.bool (positions, positions)."""
        positions, rows = self.make(wanted)
        mask = np.empty((positions, positions), bool)
        for block in _blocks(positions):
            mask[block] = rows(np.arange(positions)[block])
        return torch.from_numpy(mask)

    def packed(self, wanted: int) -> BitMatrix:
        """The mask as bit rows, without its dense form."""
        positions, rows = self.make(wanted)
        words = np.empty((positions, -(-positions // 64)), np.uint64)
        for block in _blocks(positions):
            words[block] = BitMatrix.from_dense(rows(np.arange(positions)[block])).words
        return BitMatrix(words, positions)


def _blocks(positions: int) -> Iterator[slice]:
    for start in range(0, positions, BLOCK):
        yield slice(start, start + BLOCK)


def _closed(spec: MaskSpec) -> tuple[int, Rows]:
    return len(spec), lambda rows: spec.rows(rows[0], rows[-1] + 1).numpy()


def _causal(positions: int) -> tuple[int, Rows]:
    return _closed(masks.causal(positions))


def _butterfly(wanted: int) -> tuple[int, Rows]:
    return _closed(masks.butterfly((wanted + 2) // 3))


def _random(share: Callable[[int], float], back: int = 0, cyclic: bool = False) -> Callable[[int], tuple[int, Rows]]:
    """Edges drawn one by one: down a hidden order, and in short steps up it; or, where cyclic, any."""

    def make(positions: int) -> tuple[int, Rows]:
        place = np.random.default_rng(positions).permutation(positions)  # in the hidden order
        steps = np.random.default_rng(positions + 1).integers(1, 9, positions)
        if back:
            steps[np.arange(positions) % back > 0] = 0  # a position sees itself anyway

        def rows(numbers: np.ndarray) -> np.ndarray:
            draw = np.random.default_rng([positions, int(numbers[0])])
            block = draw.random((len(numbers), positions), dtype=np.float32) < share(positions)
            if cyclic:
                return block
            own = place[numbers][:, None]
            block &= place <= own
            if back:
                block |= place == own + steps[numbers][:, None]
            return block

        return positions, rows

    return make


def _layers(positions: int) -> tuple[int, Rows]:
    layer = np.array([0, 1, 1, 2])[np.random.default_rng(positions).permutation(positions) % 4]

    def rows(numbers: np.ndarray) -> np.ndarray:
        draw = np.random.default_rng([positions, int(numbers[0])])
        return (draw.random((len(numbers), positions), dtype=np.float32) < 0.5) & (layer == layer[numbers][:, None] - 1)

    return positions, rows


KINDS = (
    MaskKind("causal", "every position sees those before it", True, _causal),
    MaskKind("butterfly", "two chains against each other, and 3n-2 positions for n tokens", True, _butterfly),
    MaskKind("order", "half of the pairs of a hidden order", True, _random(lambda n: 0.5)),
    MaskKind(
        "digraph",
        "half of the pairs of a hidden order; every eighth position sees another up to 8 steps up",
        True,
        _random(lambda n: 0.5, back=8),
    ),
    MaskKind("thin-order", "a tenth of the pairs of a hidden order", False, _random(lambda n: 0.1)),
    MaskKind("sparse-order", "ln n pairs a position, of a hidden order", False, _random(lambda n: 2 * np.log(n) / n)),
    MaskKind("sparse-digraph", "two positions seen by each, any two", False, _random(lambda n: 2 / n, cyclic=True)),
    MaskKind("layers", "three layers, half of the pairs of neighbours: n^2 / 8 covers", False, _layers, longest=8192),
)


NAMES = tuple(kind.name for kind in KINDS)


def find_kind(name: str) -> MaskKind:
    """Return a kind by its name.

    Raises:
        AttnExtError: an unknown name.
    """
    for kind in KINDS:
        if kind.name == name:
            return kind
    raise AttnExtError(f"unknown mask {name!r}.{suggest(name, NAMES)} Masks: {', '.join(NAMES)}")


def find_order(mask: torch.Tensor | BitMatrix) -> Poset:
    """What is measured: classes, down-sets and covers of a mask."""
    return Poset.from_mask(mask)


def autoregressive_family(tokens: int) -> list[Task]:
    """The causal mask's: the last of t tokens predicts the next."""
    return masks.causal(tokens).task_family().tasks


def butterfly_family(tokens: int) -> list[Task]:
    """The butterfly's: every token is predicted from a chain before it and one after it."""
    return masks.butterfly(tokens).task_family().tasks
