"""Masks and tasks to draw, and what they must come to, computed the slow way."""

from __future__ import annotations

import networkx
import numpy as np
from hypothesis import strategies as st

from hf_attn_ext.hasse import Task


def _square(bits: int, count: int) -> np.ndarray:
    return np.array([bits >> place & 1 for place in range(count * count)], bool).reshape(count, count)


@st.composite
def masks(draw, most: int = 9) -> np.ndarray:
    """numpy bool (N, N): any mask at all, or one whose edges were thinned so that orders of some height come up."""
    count = draw(st.integers(1, most))
    mask = _square(draw(st.integers(0, 2 ** (count * count) - 1)), count)
    for _ in range(draw(st.integers(0, 2))):
        mask &= _square(draw(st.integers(0, 2 ** (count * count) - 1)), count)
    if draw(st.booleans()):
        mask = np.tril(mask)
        order = draw(st.permutations(range(count)))
        mask = mask[np.ix_(order, order)]
    return mask


@st.composite
def wide_masks(draw, least: int = 50, most: int = 150) -> np.ndarray:
    """Masks beyond a word of 64 positions, from a seed: thin to thick, with cycles or an order's under another name."""
    count = draw(st.integers(least, most))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    share = draw(st.sampled_from([0.3 / count, 1 / count, 2 / count, 5 / count, 0.2, 0.5]))
    mask = random.random((count, count)) < share
    if draw(st.booleans()):
        order = random.permutation(count)
        mask = np.tril(mask)[np.ix_(order, order)]
    return mask


def graph_of(mask: np.ndarray) -> networkx.DiGraph:
    """Edges from what is seen to what sees it: the way that information takes."""
    return networkx.from_numpy_array(np.asarray(mask).T, create_using=networkx.DiGraph)


def powers(mask: np.ndarray) -> list[np.ndarray]:
    """The Boolean powers of the mask with its diagonal, from 0 to N."""
    step = (np.asarray(mask) | np.eye(len(mask), dtype=bool)).astype(np.int64)
    seen = [np.eye(len(mask), dtype=bool)]
    for _ in range(len(mask)):
        seen.append(step @ seen[-1] > 0)
    return seen


def pool(tokens: str, sizes: tuple[int, ...], each: int, seed: int) -> list[Task]:
    """Different tasks with inputs out of ``tokens``, at most ``each`` a size: dense and not, also with cycles."""
    random = np.random.default_rng(seed)
    tasks = {}
    for count in sizes:
        known = len(tasks)
        for _ in range(20 * each):
            inputs = tuple(map(str, random.permutation(list(tokens))[:count]))
            mask = random.random((count, count)) < random.choice([0.15, 0.3, 0.5])
            if random.random() < 0.7:
                mask = np.tril(mask)
            key = frozenset(inputs), frozenset((inputs[i], inputs[j]) for i, j in np.argwhere(powers(mask)[-1]))
            if len(tasks) < known + each:
                tasks.setdefault(key, Task(inputs, {}, mask))
    return list(tasks.values())
