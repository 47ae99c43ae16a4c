"""Orders with twins, classes that can be exchanged: how many there are must count, and where they hang."""

import itertools

import networkx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_attn_ext.hasse import Poset
from tests.hasse.strategies import graph_of


def hanging(*tops) -> np.ndarray:
    """A mask of parts that do not touch: a number hangs twins under a top, a pair a chain above it too."""
    graph = networkx.DiGraph()
    for top in tops:
        twins, chain = top if isinstance(top, tuple) else (top, 0)
        part = networkx.DiGraph([(("low", twin), 0) for twin in range(twins)])
        networkx.add_path(part, range(chain + 1))
        graph = networkx.disjoint_union(graph, part)
    return networkx.to_numpy_array(graph).T > 0


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether networkx matches the diagrams."""
    diagrams = (networkx.transitive_reduction(networkx.condensation(graph_of(mask))) for mask in (one, other))
    return networkx.is_isomorphic(*diagrams)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 3], [2, 2]),
        ([1, 1, 4], [2, 2, 2]),
        ([1, 2, 3], [2, 2, 2]),
        ([(1, 1), 3], [1, (3, 1)]),
        ([(1, 1), 3], [(2, 1), 2]),
        ([(1, 2), (3, 1), 2], [(1, 1), (3, 2), 2]),
        ([(0, 3), (2, 1)], [(1, 2), (1, 2)]),
    ],
)
def test_as_many_twins_in_other_places_are_another_order(one, other):
    masks = hanging(*one), hanging(*other)
    posets = [Poset.from_mask(mask) for mask in masks]
    assert len(posets[0]) == len(posets[1]) and posets[0].num_covers == posets[1].num_covers
    for pair in (posets, [poset.dual() for poset in posets]):  # hanging below, and standing above
        assert not pair[0].is_isomorphic(pair[1]) and not pair[1].is_isomorphic(pair[0])
    assert not same(*masks)
    for mask, tops in zip(masks, (one, other), strict=True):
        assert Poset.from_mask(mask).is_isomorphic(Poset.from_mask(hanging(*tops[::-1])))


@st.composite
def families_of_twins(draw) -> np.ndarray:
    """A small order whose classes come several times each, in random places."""
    count = draw(st.integers(1, 5))
    bits = draw(st.integers(0, 2 ** (count * count) - 1))
    order = np.tril(np.array([bits >> place & 1 for place in range(count * count)], bool).reshape(count, count), -1)
    times = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
    mask = np.repeat(np.repeat(order, times, 0), times, 1)
    places = draw(st.permutations(range(len(mask))))
    return mask[np.ix_(places, places)]


@given(families_of_twins(), families_of_twins(), st.randoms(use_true_random=False))
def test_orders_with_twins_are_matched_as_networkx_matches_them(one, other, random):
    posets = Poset.from_mask(one), Poset.from_mask(other)
    assert posets[0].is_isomorphic(posets[1]) == posets[1].is_isomorphic(posets[0]) == same(one, other)
    lower, upper = random.randrange(len(one)), random.randrange(len(one))
    near = one.copy()
    near[upper, lower] ^= True  # alike but for one pair
    assert posets[0].is_isomorphic(Poset.from_mask(near)) == same(one, near)


def test_all_orders_of_two_levels_and_seven_classes():
    """Every way to hang up to four below up to three: all pairs with as many covers, against networkx."""
    found = {}
    for tops in itertools.combinations_with_replacement(range(16), 3):
        mask = np.zeros((7, 7), bool)
        for top, below in enumerate(tops):
            mask[4 + top, :4] = [below >> place & 1 for place in range(4)]
        found.setdefault(mask.sum(), []).append(mask)
    pairs = [pair for masks in found.values() for pair in itertools.combinations(masks, 2)]
    chosen = np.random.default_rng(0).choice(len(pairs), 400, replace=False)
    expected = [same(*pairs[which]) for which in chosen]
    assert 40 < sum(expected) < 200
    for which, alike in zip(chosen, expected, strict=True):
        one, other = map(Poset.from_mask, pairs[which])
        assert one.is_isomorphic(other) == alike
