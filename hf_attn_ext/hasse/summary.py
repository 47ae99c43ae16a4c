"""A mask in a few numbers: pairs, classes, covers, height, width, depth."""

from __future__ import annotations

import dataclasses

from hf_attn_ext.hasse.order.flow import convergence_depth
from hf_attn_ext.hasse.order.poset import Poset

from .spec import MaskSpec, check_spec


@dataclasses.dataclass(frozen=True)
class Summary:
    """What :func:`summarise` counts.

    Attributes:
        positions: N.
        pairs: how many of the N * N pairs may attend.
        classes: sets of positions that see each other, at whatever depth.
        covers: edges of the Hasse diagram.
        height: classes in the longest chain.
        width: classes in the largest set of which none reaches another; so many chains cover the order.
        depth: layers after which no further information arrives.
    """

    positions: int
    pairs: int
    classes: int
    covers: int
    height: int
    width: int
    depth: int

    def __str__(self) -> str:
        share = 100 * self.pairs / self.positions**2
        return "\n".join(
            (
                f"positions  {self.positions}",
                f"pairs      {self.pairs} of {self.positions**2} ({share:.1f}%)",
                f"classes    {self.classes}",
                f"covers     {self.covers}",
                f"height     {self.height}",
                f"width      {self.width}",
                f"depth      {self.depth} layer" + ("" if self.depth == 1 else "s"),
            )
        )


def summarise(spec: MaskSpec, poset: Poset | None = None) -> Summary:
    """Count.

    Args:
        spec: a mask.
        poset: its order, where it is at hand already.

    Example:
        >>> from hf_attn_ext.hasse import masks
        >>> summarise(masks.block_diffusion(8, 4))
        Summary(positions=16, pairs=96, classes=4, covers=2, height=2, width=3, depth=1)
    """
    check_spec(spec)
    poset = Poset.from_mask(spec) if poset is None else poset
    return Summary(
        positions=len(spec),
        pairs=sum(int(rows.sum()) for rows in spec.chunks()),
        classes=len(poset.classes),
        covers=len(poset.covers),
        height=poset.height(),
        width=poset.width(),
        depth=convergence_depth(spec),
    )
