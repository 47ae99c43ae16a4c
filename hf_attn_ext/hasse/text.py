"""Masks and Hasse diagrams as text for a terminal."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from hf_attn_ext.hasse.order.poset import Poset

if TYPE_CHECKING:
    from .spec import MaskSpec

_NAMED = 24  # the most positions with named columns
_LISTED = 8  # lower covers that are listed
_CELLS = 64  # the most rows and columns of text; in larger masks a cell stands for several positions


def mask_text(spec: MaskSpec) -> str:
    """Return the mask as text: one row per position with its role and label; ``#`` attends, ``.`` does not.

    Up to 24 positions every column is named. Beyond 64, a character stands for several positions: ``#`` all attend,
    ``+`` some, ``.`` none.

    Example:
        >>> from hf_attn_ext.hasse import masks
        >>> print(mask_text(masks.causal(3)))
           w0 w1 w2
        w0  #  .  .  token -> 1
        w1  #  #  .  token -> 2
        w2  #  #  #  token
    """
    size = len(spec)
    if size > _CELLS:
        return _coarse(spec)
    width = max(map(len, spec.names))
    pad = width if size <= _NAMED else 1
    lines = [" " * width + "".join(f" {name:>{pad}}" for name in spec.names)] if size <= _NAMED else []
    roles = max(map(len, spec.roles))
    for position, row in enumerate(spec.dense().tolist()):
        cells = "".join(f" {'#' if seen else '.':>{pad}}" for seen in row)
        target = f" -> {spec.labels[position]}" if position in spec.labels else ""
        lines.append(f"{spec.names[position]:<{width}}{cells}  {f'{spec.roles[position]:<{roles}}{target}'.rstrip()}")
    return "\n".join(lines)


def hasse_text(poset: Poset, names: tuple[str, ...]) -> str:
    """Return the Hasse diagram as text, the top level first: one line per class, with its lower covers.

    Args:
        poset: the order.
        names: a name for each position.

    Example:
        >>> from hf_attn_ext.hasse import masks
        >>> spec = masks.prefix_lm(4, 2)
        >>> print(hasse_text(Poset.from_mask(spec), spec.names))
        level 2
          w3            over w2
        level 1
          w2            over w0,w1
        level 0
          w0,w1
    """
    titles = [class_title(members, names) for members in poset.classes]
    width = max(12, *map(len, titles))
    lines = []
    for level, classes in reversed(list(enumerate(poset.levels()))):
        lines.append(f"level {level}")
        for index in classes:
            lower = poset.lower_covers(index)
            under = "  over " + " | ".join(titles[i] for i in lower[:_LISTED]) if lower else ""
            under += f" | ... ({len(lower)})" if len(lower) > _LISTED else ""
            lines.append(f"  {titles[index]:<{width}}{under}".rstrip())
    return "\n".join(lines)


def class_title(members: tuple[int, ...], names: tuple[str, ...]) -> str:
    """Return ``"w0,w1"``, or ``"w0..w7"`` for more than two consecutive positions."""
    words = []
    for _, numbered in itertools.groupby(enumerate(sorted(members)), lambda pair: pair[1] - pair[0]):
        run = [position for _, position in numbered]
        words += [f"{names[run[0]]}..{names[run[-1]]}"] if len(run) > 2 else [names[p] for p in run]
    if len(words) > 4:
        words = [*words[:3], f"... ({len(members)})"]
    return ",".join(words)


def _coarse(spec: MaskSpec) -> str:
    step = -(-len(spec) // _CELLS)
    shares = tile_shares(spec, step)
    lines = [f"(a character stands for {step} x {step} positions)"]
    for row, values in enumerate(shares.tolist()):
        cells = "".join("#" if v >= 1 else "+" if v > 0 else "." for v in values)
        lines.append(f"{spec.names[row * step]:<8}{cells}  {spec.roles[row * step]}")
    return "\n".join(lines)


def tile_shares(spec: MaskSpec, step: int) -> torch.Tensor:
    """Return the share of pairs that attend in each tile of ``step`` x ``step`` positions, without an N x N matrix."""
    size = len(spec)
    tiles = -(-size // step)
    shares = torch.zeros(tiles, tiles)
    widths = torch.full((tiles,), float(step))
    widths[-1] = size - step * (tiles - 1)
    for tile in range(tiles):
        rows = spec.rows(tile * step, min((tile + 1) * step, size)).float().sum(0)
        shares[tile] = torch.nn.functional.pad(rows, (0, tiles * step - size)).view(tiles, step).sum(1)
    return shares / (widths[:, None] * widths[None, :])
