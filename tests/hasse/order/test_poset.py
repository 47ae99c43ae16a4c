"""Orders against networkx on random masks, the laws of their parts, files, and what is refused."""

import itertools
import json

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import BitMatrix, Poset
from hf_attn_ext.hasse.order import closure
from tests.hasse.strategies import graph_of, masks, powers, wide_masks


def check_against_networkx(mask):
    """Classes, order, covers, levels, and both proofs of the width."""
    poset, graph = Poset.from_mask(mask), graph_of(mask)
    condensed = networkx.condensation(graph)
    members = {number: tuple(sorted(found)) for number, found in condensed.nodes(data="members")}
    assert sorted(poset.classes) == sorted(members.values())
    reduced = networkx.transitive_reduction(condensed)
    covers = {(members[lower], members[upper]) for lower, upper in reduced.edges}
    assert {(poset.classes[lower], poset.classes[upper]) for lower, upper in poset.covers} == covers
    assert len(poset.covers) == poset.num_covers == len(covers)
    closed = networkx.transitive_closure(graph, reflexive=True)
    for lower, positions in enumerate(poset.classes):
        for upper, others in enumerate(poset.classes):
            assert poset.leq[lower, upper] == closed.has_edge(positions[0], others[0])
    assert all(lower <= upper for lower, upper in poset.leq.nonzero().tolist())  # numbered by a linear extension
    longest = networkx.dag_longest_path_length(condensed) + 1
    assert poset.height() == len(poset.levels()) == longest
    assert [sorted(poset.classes[number] for number in level) for level in poset.levels()] == [
        sorted(members[number] for number in level) for level in networkx.topological_generations(condensed)
    ]
    chains, antichain = poset.chains(), poset.antichain()
    assert sorted(number for chain in chains for number in chain) == list(range(len(poset)))
    assert all(poset.leq[a, b] for chain in chains for a, b in itertools.pairwise(chain))
    assert not any(poset.leq[a, b] for a in antichain for b in antichain if a != b)
    assert len(chains) == len(antichain) == len(set(antichain)) == poset.width()
    return poset, condensed


@given(masks())
def test_everything_of_any_small_mask(mask):
    poset, condensed = check_against_networkx(mask)
    assert poset.width() == max(map(len, networkx.antichains(condensed)))


@settings(max_examples=50, deadline=None)
@given(wide_masks())
def test_everything_of_masks_beyond_a_word(mask):
    check_against_networkx(mask)


@settings(max_examples=60, deadline=None)
@given(wide_masks(20, 120), st.integers(1, 20))
def test_many_covers_are_found_in_blocks(mask, block):
    poset = Poset.from_mask(mask)
    rows = [row ^ (1 << number) for number, row in enumerate(poset.down_rows().integers())]
    few = closure.closure_and_covers(rows, many=10**9)
    in_blocks = closure._in_blocks
    closure._in_blocks = lambda *given: in_blocks(*given, block=block)
    try:
        many = closure.closure_and_covers(rows, many=0)
    finally:
        closure._in_blocks = in_blocks
    assert few[0] == many[0] == poset.down_rows().integers()
    assert np.array_equal(few[1], many[1]) and np.array_equal(few[2], many[2])


def test_an_order_with_very_many_covers_takes_the_blocks_by_itself():
    half = 150
    mask = np.zeros((2 * half, 2 * half), bool)
    mask[half:, :half] = np.random.default_rng(0).random((half, half)) < 0.7
    poset = Poset.from_mask(mask)
    assert poset.num_covers == mask.sum() > closure.closure_and_covers.__defaults__[0] * len(mask)
    assert {(a, b) for a, b in poset.covers} == {(j, i) for i, j in np.argwhere(mask).tolist()}


@given(masks())
def test_neighbours_and_sets_agree_with_the_order(mask):
    poset = Poset.from_mask(mask)
    assert poset.linear_extension() == list(range(len(poset)))
    for number in range(len(poset)):
        assert poset.down_set(number) == set(poset.leq[:, number].nonzero().flatten().tolist())
        assert poset.lower_covers(number) == [lower for lower, upper in poset.covers if upper == number]
        assert poset.upper_covers(number) == sorted(upper for lower, upper in poset.covers if lower == number)
        assert sorted(poset.lower_cover_lists()[number]) == poset.lower_covers(number)
        assert [poset.reaches(number, other) for other in range(len(poset))] == poset.leq[number].tolist()
        assert all(poset.class_of[position] == number for position in poset.classes[number])


@given(masks())
def test_the_diagram_carries_positions_and_inputs(mask):
    inputs = [f"w{position}" for position in range(len(mask))]
    diagram = Poset.from_mask(mask, inputs).hasse_diagram()
    plain = Poset.from_mask(mask).hasse_diagram()
    assert networkx.utils.edges_equal(diagram.edges, plain.edges, directed=True)
    assert networkx.is_directed_acyclic_graph(diagram)
    for number, facts in diagram.nodes(data=True):
        assert facts["inputs"] == tuple(inputs[position] for position in facts["positions"])
        assert plain.nodes[number] == {"positions": facts["positions"]}


@given(masks())
def test_the_order_is_the_same_for_every_mask_with_the_same_limit(mask):
    poset = Poset.from_mask(mask)
    same = [powers(mask)[-1], mask | np.eye(len(mask), dtype=bool), BitMatrix.from_dense(mask), torch.from_numpy(mask)]
    for other in map(Poset.from_mask, same):
        assert poset == other and hash(poset) == hash(other)


@given(masks(5), masks(5))
def test_equal_means_the_same_limit(one, other):
    same = one.shape == other.shape and np.array_equal(powers(one)[-1], powers(other)[-1])
    assert (Poset.from_mask(one) == Poset.from_mask(other)) == same


def test_inputs_count_in_equality():
    mask = np.eye(2)
    assert Poset.from_mask(mask, "ab") == Poset.from_mask(mask, "ab") != Poset.from_mask(mask, "ba")
    assert Poset.from_mask(mask, "ab") != Poset.from_mask(mask) != "poset"


@given(masks())
def test_the_dual_turns_everything_round(mask):
    poset = Poset.from_mask(mask)
    dual = poset.dual()
    assert dual == Poset.from_mask(mask.T) and dual.dual() == poset
    assert torch.equal(dual.leq, poset.leq.flip(0, 1).T)
    assert (dual.height(), dual.width()) == (poset.height(), poset.width())


@given(masks(6), masks(6))
def test_isomorphism_is_that_of_the_diagrams(one, other):
    posets = Poset.from_mask(one), Poset.from_mask(other)
    expected = networkx.is_isomorphic(*(poset.hasse_diagram() for poset in posets))
    assert posets[0].is_isomorphic(posets[1]) == posets[1].is_isomorphic(posets[0]) == expected


@settings(max_examples=50, deadline=None)
@given(st.one_of(masks(), wide_masks()), st.randoms(use_true_random=False))
def test_renamed_positions_leave_an_isomorphic_order(mask, random):
    order = list(range(len(mask)))
    random.shuffle(order)
    assert Poset.from_mask(mask).is_isomorphic(Poset.from_mask(mask[np.ix_(order, order)]))


def _zigzags(*lengths: int) -> np.ndarray:
    """Circles of as many upper and lower positions, each upper one above two lower ones."""
    mask = np.zeros((2 * sum(lengths),) * 2, bool)
    start = 0
    for length in lengths:
        for k in range(length):
            mask[start + length + k, [start + k, start + (k + 1) % length]] = True
        start += 2 * length
    return mask


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [((3, 5), (5, 3), True), ((3, 5), (4, 4), False), ((3, 3, 5, 5), (4, 4, 4, 4), False), ((6,), (3, 3), False)],
)
def test_orders_whose_colours_do_not_decide(one, other, same):
    """Every position looks alike to its neighbours here; only the search tells the circles apart."""
    assert Poset.from_mask(_zigzags(*one)).is_isomorphic(Poset.from_mask(_zigzags(*other))) == same


def test_large_symmetric_orders_are_matched_in_time():
    cube = np.array([[a & b == b for b in range(128)] for a in range(128)])
    order = np.random.default_rng(0).permutation(128)
    assert Poset.from_mask(cube).is_isomorphic(Poset.from_mask(cube[np.ix_(order, order)]))
    none = np.eye(2000)
    assert Poset.from_mask(none).is_isomorphic(Poset.from_mask(none))
    assert not Poset.from_mask(cube).is_isomorphic(Poset.from_mask(np.tri(128)))


@given(masks())
def test_json_gives_the_same_order_back(mask):
    inputs = [("w", position, (None, 1.5)) for position in range(len(mask))]
    for poset in (Poset.from_mask(mask), Poset.from_mask(mask, inputs)):
        again = Poset.from_json(poset.to_json())
        assert again == poset and again.inputs == poset.inputs and again.width() == poset.width()


def test_covers_in_any_numbering_make_the_order():
    poset = Poset.from_covers([[3], [0, 2], [1]], [(1, 0), (2, 1)])
    assert poset.classes == [(1,), (0, 2), (3,)] and poset.covers == [(0, 1), (1, 2)]


@pytest.mark.parametrize(
    ("classes", "covers", "said"),
    [
        ([[0], [0]], [], "must hold every position from 0 on once"),
        ([[0], [2]], [], "must hold every position from 0 on once"),
        ([[0], []], [], "must hold every position from 0 on once"),
        ([], [], "must hold every position from 0 on once"),
        ([[0], [1]], [(0, 2)], "must be a pair of different class numbers from 0 to 1, got (0, 2)"),
        ([[0], [1]], [(1, 1)], "must be a pair of different class numbers from 0 to 1, got (1, 1)"),
        ([[0], [1], [2]], [(0, 1), (1, 0)], "in a circle through classes [0, 1]"),
        ([[0], [1], [2]], [(0, 1), (1, 2), (0, 2)], "(0, 2) is not a cover"),
        ([[2], [1], [0]], [(0, 1), (1, 2), (0, 2)], "(0, 2) is not a cover"),
        (5, [], "classes must be a list, got 5"),
        ([0], [], "a class must be a list, got 0"),
        (["a"], [], "must hold every position from 0 on once"),
        ([[0.5]], [], "must hold every position from 0 on once"),
        ([[None]], [], "must hold every position from 0 on once"),
        ([[False]], [], "must hold every position from 0 on once"),
        ([[0], [1]], 5, "covers must be a list, got 5"),
        ([[0], [1]], [0], "a cover must be a list, got 0"),
        ([[0], [1]], [(0, 1, 1)], "must be a pair of different class numbers from 0 to 1, got (0, 1, 1)"),
        ([[0], [1]], [(0, 1.0)], "must be a pair of different class numbers from 0 to 1, got (0, 1.0)"),
        ([[0], [1]], ["ab"], "must be a pair of different class numbers from 0 to 1, got ('a', 'b')"),
    ],
)
def test_covers_that_make_no_diagram_are_refused(classes, covers, said):
    with pytest.raises(AttnExtError) as error:
        Poset.from_covers(classes, covers)
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "this is not JSON"),
        (None, "this is not JSON"),
        ("[]", "an object with 'classes', 'covers'"),
        ('{"classes": [[0]]}', "an object with 'classes', 'covers'"),
        ('{"classes": [[0]], "covers": [], "more": 1}', "an object with 'classes', 'covers'"),
        ('{"classes": [["a"]], "covers": []}', "must hold lists of positions"),
        ('{"classes": [[0], [1]], "covers": [[0]]}', "must hold lists of positions"),
        ('{"classes": [[true]], "covers": []}', "must hold lists of positions"),
        ('{"classes": [[0]], "covers": [], "inputs": "a"}', "'inputs' must be a list, got str"),
        ('{"classes": [[0]], "covers": [], "inputs": ["a", "b"]}', "one entry per position, got 2 for 1 positions"),
        ('{"classes": [[0]], "covers": [], "inputs": [{}]}', "the input at position 0 is unhashable (dict)"),
        ('{"classes": [[0]], "covers": [], "inputs": [[1, [{}]]]}', "the input at position 0 is unhashable (tuple)"),
        ('{"classes": [[0]], "covers": [], "inputs": [NaN]}', "the input nan at position 0 does not equal itself"),
        ('{"classes": [[0]], "covers": [], "inputs": [["a", NaN]]}', "at position 0 holds nan, which does not"),
        ('{"classes": [[0]], "covers": [], "covers": []}', "has the name 'covers' twice"),
        ('{"classes": [[' + "9" * 5000 + ']], "covers": []}', "this is not JSON"),
        ('{"classes": [[0]], "covers": [], "inputs": [' + "[" * 60 + "]" * 60 + "]}", "nested more than 50 deep"),
        ("[" * 200_000, "nested more than 50 deep"),
        (b"\xff", "this is not JSON"),
        (5, "this is not JSON"),
        ([], "this is not JSON"),
    ],
)
def test_json_that_is_no_poset_is_refused(text, said):
    with pytest.raises(AttnExtError) as error:
        Poset.from_json(text)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_inputs_that_json_cannot_hold_are_refused():
    deep = ()
    for _ in range(60):
        deep = (deep,)
    for value in (object(), ("a", frozenset()), b"a", float("inf"), ("a", -float("inf")), 10**5000, deep, np.int64(1)):
        with pytest.raises(AttnExtError, match="at position 1 cannot be written as JSON"):
            Poset.from_mask(np.eye(2), ["a", value]).to_json()
    assert json.loads(Poset.from_mask(np.eye(1), ["a"]).to_json())["inputs"] == ["a"]
    for _ in range(13):
        deep = deep[0]
    for value in (10**3000, deep, "\ud800", True, -0.0, 1e308, ((),)):
        poset = Poset.from_mask(np.eye(1), [value])
        assert repr(Poset.from_json(poset.to_json()).inputs) == repr((value,))
    numbers = Poset.from_covers(np.array([[1], [0]]), np.array([[0, 1]]))
    assert Poset.from_json(numbers.to_json()) == numbers == Poset.from_mask([[1, 1], [0, 1]])


@pytest.mark.parametrize("ask", [Poset.down_set, Poset.lower_covers, Poset.upper_covers])
def test_a_class_that_is_not_there_is_refused(ask):
    poset = Poset.from_mask(np.tri(3))
    for number in (3, -1, "x", None, 1.0, True, 10**100):
        with pytest.raises(AttnExtError, match=r"there is no class .*; the classes are 0 to 2"):
            ask(poset, number)
    assert ask(poset, np.int64(1)) == ask(poset, 1)
    with pytest.raises(AttnExtError, match="no class 7"):
        poset.reaches(0, 7)


def test_inputs_of_another_length_are_refused():
    with pytest.raises(AttnExtError, match="one entry per position, got 1 for 2 positions"):
        Poset.from_mask(np.eye(2), ["a"])


def test_what_is_no_poset_gets_one_line():
    poset = Poset.from_mask(np.tri(2))
    for other in (5, None, np.tri(2)):
        with pytest.raises(AttnExtError, match="a poset is compared with another poset"):
            poset.is_isomorphic(other)
        with pytest.raises(AttnExtError, match=r"expected an Order, got .*; use Poset.from_mask"):
            Poset(other)
    for inputs, said in ((5, "must be a list"), (["a", []], "unhashable"), (["a", float("nan")], "does not equal")):
        with pytest.raises(AttnExtError, match=said):
            Poset.from_mask(np.tri(2), inputs)
        with pytest.raises(AttnExtError, match=said):
            Poset.from_covers([[0], [1]], [], inputs)


def test_the_block_diffusion_order_has_four_classes():
    """8 tokens in blocks of 4; positions 0-7 are clean, 8-15 noisy."""
    block = np.arange(16) % 8 // 4
    noisy = np.arange(16) >= 8
    sees, seen = (block[:, None], noisy[:, None]), (block[None], noisy[None])
    mask = (~sees[1] & ~seen[1] & (seen[0] <= sees[0])) | (sees[1] & seen[1] & (seen[0] == sees[0]))
    mask |= sees[1] & ~seen[1] & (seen[0] < sees[0])
    poset = Poset.from_mask(mask)
    first, second = (0, 1, 2, 3), (4, 5, 6, 7)
    first_noisy, second_noisy = (8, 9, 10, 11), (12, 13, 14, 15)
    assert sorted(poset.classes) == [first, second, first_noisy, second_noisy]
    covers = {(poset.classes[lower], poset.classes[upper]) for lower, upper in poset.covers}
    assert covers == {(first, second), (first, second_noisy)}
    assert poset.width() == 3 and poset.height() == 2
    alone = poset.classes.index(first_noisy)
    assert poset.down_set(alone) == {alone} and poset.upper_covers(alone) == []


def test_eight_thousand_positions_are_no_trouble():
    """A reversed causal mask, which needs the walk, with a circle through the last two and their width, in seconds."""
    count = 8192
    mask = torch.ones(count, count, dtype=torch.bool).triu_()
    mask[count - 1, count - 2] = True
    poset = Poset.from_mask(mask)
    assert len(poset) == count - 1 and poset.classes[0] == (count - 2, count - 1) and poset.num_covers == count - 2
    assert poset.height() == count - 1 and poset.width() == 1
