"""Joint tasks: known derivations, minimality by brute force, labels, and a proof that notices what is wrong."""

import itertools
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import JointTask, Poset, Task, minimal_joint_task
from hf_attn_ext.hasse.order.bits import BitMatrix
from hf_attn_ext.hasse.tasks.exhaustive import candidates, smallest_supergraph
from tests.hasse.strategies import pool
from tests.hasse.tasks.families import autoregressive_family, butterfly_family


@pytest.mark.parametrize("tokens", [1, 2, 3, 24])
def test_causal_attention_is_the_joint_task_of_the_autoregressive_family(tokens):
    joint = minimal_joint_task(autoregressive_family(tokens))
    assert torch.equal(joint.mask, torch.ones(tokens, tokens, dtype=torch.bool).tril())
    assert joint.inputs == tuple((f"w{i}", i) for i in range(1, tokens + 1))
    assert joint.labels == {i: f"w{i + 2}" for i in range(tokens)}
    assert joint.sources == [[(task, i) for task in range(i, tokens)] for i in range(tokens)]
    assert joint.is_dense and joint.verify() and joint.poset.hasse_diagram().nodes[0]["inputs"] == (("w1", 1),)


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 9])
def test_butterfly_is_the_joint_task_of_predicting_each_token_from_both_sides(tokens):
    joint = minimal_joint_task(butterfly_family(tokens))
    assert len(joint) == 3 * tokens - 2 and joint.verify() and joint.is_dense
    assert sorted(joint.labels.values()) == sorted(f"w{k}" for k in range(1, tokens + 1))
    place = {source: position for position, pairs in enumerate(joint.sources) for source in pairs}
    forward = [place[tokens - 1, i] for i in range(tokens - 1)]  # of w1 .. w(n-1), all in the last task
    backward = [place[0, i] for i in range(tokens - 1)]  # of w2 .. wn, all in the first
    predictions = [place[task, tokens - 1] for task in range(tokens)]
    order = [*forward, *backward, *predictions]
    moved = joint.permuted(order)
    chain = tokens - 1
    expected = np.zeros((len(joint), len(joint)), bool)
    expected[:chain, :chain] = np.tri(chain)
    expected[chain : 2 * chain, chain : 2 * chain] = np.tri(chain).T
    for k in range(tokens):
        expected[2 * chain + k, [*range(k), *range(chain + k, 2 * chain), 2 * chain + k]] = True
    assert np.array_equal(moved.mask.numpy(), expected) and moved.verify()
    assert [moved.labels[2 * chain + k] for k in range(tokens)] == [f"w{k + 1}" for k in range(tokens)]


POOL = pool("abcd", (1, 2, 3, 4), each=12, seed=3)


def test_the_pool_is_worth_it():
    sizes = [len(task.poset) for task in POOL]
    assert len(POOL) == 40 and max(map(len, POOL)) == 4 and not all(task.is_dense for task in POOL)
    assert any(size < len(task) for size, task in zip(sizes, POOL, strict=True))  # classes of several positions
    united = [minimal_joint_task(pair) for pair in itertools.combinations(POOL, 2)]
    saved = [sum(len(task.poset) for task in joint.tasks) - len(joint.poset) for joint in united]
    assert {0, 1, 2} <= set(saved)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_family_of_the_pool_has_a_smaller_supergraph(size):
    for family in itertools.combinations(POOL, size):
        joint = minimal_joint_task(family)
        proof = joint.verify()
        assert proof, proof.problems
        assert len(joint.poset) == proof.nodes == proof.exhaustive == proof.types


def _all_orders(count):
    """Every partial order on ``count`` points, as a tuple of down-sets (frozensets)."""
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    for chosen in itertools.product((False, True), repeat=len(pairs)):
        below = {pair for pair, kept in zip(pairs, chosen, strict=True) if kept}
        if any((b, a) in below for a, b in below):
            continue
        if all((a, d) in below for a, b in below for c, d in below if b == c):
            yield tuple(frozenset([b, *(a for a, x in below if x == b)]) for b in range(count))


def _held(task):
    return [frozenset(task.inputs[position] for position in members) for members in task.poset.classes]


def _embeds(task, labels, down):
    held, count = _held(task), len(task.poset)
    return any(
        all(held[node] == labels[image[node]] for node in range(count))
        and all(down[image[node]] == {image[other] for other in task.poset.down_set(node)} for node in range(count))
        for image in itertools.permutations(range(len(labels)), count)
    )


def test_no_order_at_all_of_fewer_nodes_holds_the_family():
    """The exhaustive search itself, against every labelled order there is, on families that need up to four nodes."""
    orders = {count: list(_all_orders(count)) for count in (1, 2, 3)}
    assert [len(found) for found in orders.values()] == [1, 3, 19]
    small = pool("ab", (1, 2), each=6, seed=1) + pool("abc", (3,), each=4, seed=2)
    tried = 0
    for family in itertools.chain(itertools.combinations(small, 2), itertools.combinations(small, 3)):
        least = smallest_supergraph(family)
        if least > 4:
            continue
        tried += 1
        names = sorted({held for task in family for held in _held(task)}, key=sorted)
        for count in range(1, min(least, 3) + 1):
            found = any(
                all(_embeds(task, labels, down) for task in family)
                for down in orders[count]
                for labels in itertools.product(names, repeat=count)
            )
            assert found == (count == least)
    assert tried > 60


@settings(max_examples=80, deadline=None)
@given(st.lists(st.sampled_from(POOL), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_neither_the_order_of_the_family_nor_density_nor_repetition_matters(family, random):
    joint = minimal_joint_task(family)
    other = [*list(family), random.choice(family)]
    random.shuffle(other)
    other = minimal_joint_task([task.densify() if random.random() < 0.5 else task for task in other])
    assert len(other) == len(joint) and len(other.poset) == len(joint.poset) and other.verify()
    assert _canonical(joint) == _canonical(other)
    assert joint.poset.is_isomorphic(other.poset)


def _canonical(joint):
    """Every node written out with all that is upstream."""

    def written(node):
        held = tuple(sorted(map(str, (joint.inputs[position] for position in joint.poset.classes[node]))))
        return held, tuple(sorted(map(written, joint.poset.lower_covers(node))))

    return sorted(written(node) for node in range(len(joint.poset)))


def test_the_same_input_with_another_context_is_another_node():
    chain, alone = Task("ab", {}, [[1, 0], [1, 1]]), Task("b", {}, [[1]])
    joint = minimal_joint_task([chain, alone])
    assert joint.inputs == ("a", "b", "b") and joint.sources == [[(0, 0)], [(0, 1)], [(1, 0)]]
    assert joint.mask.int().tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]


def test_the_whole_structure_upstream_counts_and_not_the_inputs_alone():
    chain = Task("abc", {}, [[1, 0, 0], [1, 1, 0], [1, 1, 1]])
    fork = Task("abc", {}, [[1, 0, 0], [0, 1, 0], [1, 1, 1]])
    joint = minimal_joint_task([chain, fork])
    assert len(joint) == 5 and joint.sources[0] == [(0, 0), (1, 0)]
    below = {position for position in range(5) if joint.inputs[position] == "c"}
    assert len(below) == 2


def test_positions_of_a_class_are_matched_by_their_inputs():
    one = Task("abc", {0: "A"}, [[1, 1, 0], [1, 1, 0], [1, 1, 1]])
    other = Task("cba", {2: "A", 1: "B"}, [[1, 1, 1], [0, 1, 1], [0, 1, 1]])
    joint = minimal_joint_task([one, other])
    assert joint.inputs == ("a", "b", "c") and joint.labels == {0: "A", 1: "B"}
    assert joint.sources == [[(0, 0), (1, 2)], [(0, 1), (1, 1)], [(0, 2), (1, 0)]]
    assert joint.verify() and joint.mask.int().tolist() == [[1, 1, 0], [1, 1, 0], [1, 1, 1]]


def test_a_class_with_more_inputs_is_another_node():
    joint = minimal_joint_task([Task("ab", {}, np.ones((2, 2))), Task("a", {}, [[1]]), Task("ba", {}, np.eye(2))])
    assert joint.inputs == ("a", "b", "a", "b") and len(joint.poset) == 3
    assert joint.sources[2] == [(1, 0), (2, 1)]


def test_conflicting_labels_are_reported_or_kept():
    family = [Task("ab", {0: "x", 1: "y"}, np.tri(2)), Task("a", {0: "x"}, [[1]]), Task("a", {0: "z"}, [[1]])]
    with pytest.raises(AttnExtError) as error:
        minimal_joint_task(family)
    said = "position 0 of the joint task (input 'a') has two labels: 'x' by task 0 at 0, 'z' by task 2 at 0"
    assert said in str(error.value)
    joint = minimal_joint_task(family, conflicts="keep")
    assert joint.labels == {0: ("x", "z"), 1: ("y",)} and joint.verify()
    assert minimal_joint_task(family[:2]).labels == {0: "x", 1: "y"}
    assert minimal_joint_task([Task("a", {}, [[1]]), Task("a", {0: None}, [[1]])]).labels == {0: None}


def test_labels_may_be_anything_that_can_be_compared():
    lists = [Task("a", {0: [1, 2]}, [[1]]), Task("a", {0: [1, 2]}, [[1]])]
    assert minimal_joint_task(lists).labels == {0: [1, 2]}


class Stubborn:
    def __eq__(self, other):
        if self is other:
            return True
        raise TypeError

    __hash__ = object.__hash__


def test_labels_that_cannot_be_compared_get_one_line():
    with pytest.raises(AttnExtError, match="values of type Stubborn cannot be compared"):
        minimal_joint_task([Task("a", {0: Stubborn()}, [[1]]), Task("a", {0: Stubborn()}, [[1]])])


PAIRS = [(1, True), (0.0, False), (("a", 1), ("a", True)), (((0,), 1), ((False,), 1))]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_numbers_and_truth_values_are_not_the_same(one, other):
    for first, second in ((one, other), (other, one)):
        with pytest.raises(AttnExtError, match=r"of task 0 and .* of task 1 are equal in Python but differ in meaning"):
            minimal_joint_task([Task([first], {}, [[1]]), Task([second], {}, [[1]])])
        family = [Task("a", {0: first}, [[1]]), Task("a", {0: second}, [[1]])]
        with pytest.raises(AttnExtError, match="has two labels"):
            minimal_joint_task(family)
        kept = minimal_joint_task(family, conflicts="keep")
        assert list(map(repr, kept.labels[0])) == [repr(first), repr(second)] and kept.verify()
    same = minimal_joint_task([Task([1, ("a", True)], {}, np.eye(2)), Task([1.0, ("a", True)], {}, np.eye(2))])
    assert len(same) == 2  # numbers are compared as numbers


@pytest.mark.parametrize(
    ("tasks", "options", "said"),
    [
        ([], {}, "tasks must hold at least one task, got an empty list"),
        (Task("a", {}, [[1]]), {}, "must be a list of tasks, got one task"),
        ([Task("a", {}, [[1]]), "b"], {}, "tasks[1] must be a Task, got str"),
        (None, {}, "tasks must be a list, got None"),
        (5, {}, "tasks must be a list, got 5"),
        ([None], {}, "tasks[0] must be a Task, got NoneType"),
        ([Task("a", {}, [[1]])], {"conflicts": []}, "unknown conflicts []"),
        ([Task("a", {}, [[1]])], {"conflicts": "keeps"}, "unknown conflicts 'keeps'. Did you mean 'keep'?"),
    ],
)
def test_a_bad_family_gets_one_line(tasks, options, said):
    with pytest.raises(AttnExtError) as error:
        minimal_joint_task(tasks, **options)
    assert said in str(error.value)


def test_joint_tasks_are_tasks_again_where_their_inputs_differ():
    joint = minimal_joint_task(autoregressive_family(3))
    assert torch.equal(minimal_joint_task([joint]).mask, joint.mask)
    with pytest.raises(
        AttnExtError, match=r"tasks\[0\] is a joint task, give the tasks it was made from instead: input"
    ):
        minimal_joint_task([minimal_joint_task([Task("ab", {}, np.tri(2)), Task("b", {}, [[1]])])])


def test_sparse_dense_and_moved_joint_tasks_stay_proven():
    joint = minimal_joint_task(butterfly_family(5))
    for window in (1, 2):
        sparse = joint.sparsify(window, "full")
        assert isinstance(sparse, JointTask) and sparse.verify() and not sparse.is_dense
        assert sparse.depth == -(-4 // window) and sparse.densify().depth == 1
        assert sparse.sources == joint.sources and torch.equal(sparse.densify().mask, joint.mask)
    moved = joint.permuted(range(len(joint) - 1, -1, -1))
    assert moved.verify() and moved.inputs == joint.inputs[::-1] and moved.sources == joint.sources[::-1]


def changed(joint: JointTask, **changes) -> JointTask:
    facts = {"inputs": joint.inputs, "labels": joint.labels, "mask": joint.mask, "tasks": joint.tasks}
    facts |= {"sources": joint.sources, "conflicts": joint.conflicts} | changes
    return JointTask(**facts | {"mask": BitMatrix.from_dense(facts["mask"].numpy())})


def test_the_proof_notices_what_is_wrong():
    family = [Task("ab", {1: "y"}, np.tri(2)), Task("abc", {2: "z"}, np.tri(3)), Task("d", {}, [[1]])]
    joint = minimal_joint_task(family)
    assert joint.verify() and joint.inputs == ("a", "b", "c", "d") and len(joint.verify().problems) == 0

    def said(**changes):
        return " | ".join(changed(joint, **changes).verify().problems)

    cut, more, circle = joint.mask.clone(), joint.mask.clone(), joint.mask.clone()
    cut[1, 0] = False
    assert "task 0: its order is not kept" in said(mask=cut)
    more[0, 3] = True
    assert "task 0: it is not a down-closed part" in said(mask=more)
    circle[0, 1] = True
    assert "task 1: its order is not kept" in said(mask=circle)
    assert "task 1: the input of position 2 is not kept" in said(inputs="abed")
    assert "task 0: the label of position 1 is not kept" in said(labels={2: "z"})
    assert "task 1: the label of position 2 is not kept" in said(labels={1: "y", 2: "y"})
    assert "task 2: position 0 has 0 positions" in said(sources=[*joint.sources[:3], []])
    assert "position 3 stands for no position" in said(sources=[*joint.sources[:3], []])
    united = [[(0, 0), (0, 1), (1, 0)], [(1, 1)], *joint.sources[2:]]
    assert "task 0: two of its positions have the same position" in said(sources=united)
    twice = [*joint.sources[:3], [(1, 2), (2, 0)]]
    assert "task 1: position 2 has 2 positions" in said(sources=twice)


def test_the_proof_notices_a_supergraph_that_is_too_large():
    family = [Task("a", {}, [[1]]), Task("ab", {}, np.tri(2))]
    joint = minimal_joint_task(family)
    apart = np.zeros((3, 3), bool)
    apart[0, 0] = True
    apart[1:, 1:] = np.tri(2)
    facts = {"inputs": ("a", "a", "b"), "mask": torch.from_numpy(apart), "sources": [[(0, 0)], [(1, 0)], [(1, 1)]]}
    proof = changed(joint, **facts).verify()
    assert not proof and (proof.nodes, proof.types, proof.exhaustive) == (3, 2, 2)
    assert proof.problems == (
        "3 nodes, but the family has 2 different ones",
        "3 nodes, but the smallest supergraph has 2",
    )


def test_large_families_are_proven_without_the_search():
    family = butterfly_family(12)
    assert candidates(family) > 10**9
    proof = minimal_joint_task(family).verify()
    assert proof and proof.exhaustive is None and proof.types == 34


@pytest.mark.parametrize(
    ("family", "tokens", "nodes"), [(autoregressive_family, 256, 256), (butterfly_family, 64, 190)]
)
def test_whole_families_are_joined_within_seconds(family, tokens, nodes):
    tasks = family(tokens)
    start = time.process_time()
    joint = minimal_joint_task(tasks)
    assert time.process_time() - start < 10
    assert len(joint) == nodes and joint.verify() and isinstance(joint.poset, Poset)
