"""Orders to draw, and the dense masks that they stand for."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

from hf_attn_ext.hasse import MaskSpec, Poset, masks


def dense(order: Poset | MaskSpec) -> torch.Tensor:
    """Bool (N, N), True = may attend."""
    if isinstance(order, MaskSpec):
        return order.dense()
    return order.leq.mT[order.class_of][:, order.class_of].contiguous()


@st.composite
def orders(draw, most: int = 150) -> Poset:
    """Parallel chains with relations drawn between them, or any digraph; classes of several positions,
    isolated ones, all under other names.
    """
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["chains", "tree", "digraph", "antichain", "chains", "tree", "chains"]))
    width = draw(st.integers(1, 8))
    classes = draw(st.integers(width, most // 2))
    mask = np.eye(classes, dtype=bool)
    if kind == "chains":
        owner = random.integers(width, size=classes)
        for number in range(width):
            mine = np.flatnonzero(owner == number)
            mask[mine[1:], mine[:-1]] = True
        mask |= np.tril(random.random((classes, classes)) < draw(st.sampled_from([0, 0.3, 2])) / classes)
    elif kind == "digraph":
        mask |= random.random((classes, classes)) < draw(st.sampled_from([0.3, 0.8, 1.5])) / classes
    elif kind == "tree":
        for number in range(1, classes):
            mask[number, random.integers(max(0, number - width), number)] = True
    sizes = random.choice([1, 1, 1, 2, 5], classes) if draw(st.booleans()) else np.ones(classes, int)
    if draw(st.booleans()):
        sizes[random.integers(classes)] = 70  # a class that fills more than a tile
    owner = np.repeat(np.arange(classes), sizes)
    isolated = draw(st.integers(0, 3))
    positions = len(owner) + isolated
    whole = np.eye(positions, dtype=bool)
    whole[: len(owner), : len(owner)] = mask[owner][:, owner] | (owner[:, None] == owner)
    order = random.permutation(positions) if draw(st.booleans()) else np.arange(positions)
    return Poset.from_mask(whole[np.ix_(order, order)])


SPECS = [
    masks.causal(1),
    masks.causal(150),
    masks.bidirectional(150),
    masks.prefix_lm(150, 70),
    masks.document([20, 100, 4, 7]),
    masks.document([20, 100, 4], causal=False),
    masks.xlnet_two_stream(np.random.default_rng(0).permutation(70).tolist()),
    masks.masked_autoencoder(150, list(range(0, 150, 3))),
    masks.block_diffusion(90, 8),
    masks.block_two_stream(90, 8),
    masks.block_two_stream(140, 64),
    masks.block_two_stream(100, 70, context="block"),
    masks.block_two_stream(40, 4, starts="every"),
    masks.butterfly(1),
    masks.butterfly(2),
    masks.butterfly(90),
]
