"""A mask in a few numbers: pairs, classes, covers, height, width, depth."""

from __future__ import annotations

import dataclasses

from hf_attn_ext.hasse.order.flow import convergence_depth
from hf_attn_ext.hasse.order.poset import Poset

from .spec import MaskSpec, check_spec


@dataclasses.dataclass(frozen=True)
class Summary:
    """Counts of a mask and its order, as :func:`summarise` returns them.

    Attributes:
        positions: N.
        pairs: the number of the N * N pairs that may attend.
        classes: sets of positions that see each other, at any depth.
        covers: edges of the Hasse diagram.
        height: classes in the longest chain.
        width: classes in the largest antichain, which is also the number of chains of a chain decomposition.
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
        pairs = f" of {self.positions**2} ({share:.1f}%)"
        notes = {"pairs": pairs, "depth": " layer" if self.depth == 1 else " layers"}
        counts = dataclasses.asdict(self).items()
        return "\n".join(f"{name:<9}  {count}{notes.get(name, '')}" for name, count in counts)


def summarise(spec: MaskSpec, poset: Poset | None = None) -> Summary:
    """Return the counts of a mask and its order, which is computed unless ``poset`` gives it.

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
