"""Tasks: what is refused, when they are dense, and the laws of making them dense and sparse."""

from decimal import Decimal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_attn_ext.errors import AttnExtError
from hf_attn_ext.hasse import Poset, Task, convergence_depth, information_flow
from hf_attn_ext.hasse.masks import causal, make_mask
from tests.hasse.strategies import masks, powers


def test_what_a_task_holds():
    task = Task(iter([("a", 0), ("b", 1)]), {np.int64(1): "c"}, [[1, 0], [1, 0]])
    assert task.inputs == (("a", 0), ("b", 1)) and task.labels == {1: "c"} and type(next(iter(task.labels))) is int
    assert task.mask.dtype == torch.bool and task.mask.tolist() == [[True, False], [True, False]]
    assert len(task) == 2 and repr(task) == "Task(2 positions, 1 labelled)"
    assert task.poset == Poset.from_mask([[1, 0], [1, 1]], [("a", 0), ("b", 1)])
    assert task.poset.hasse_diagram().nodes[1] == {"positions": (1,), "inputs": (("b", 1),)}
    given_mask = torch.ones(2, 2, dtype=torch.bool)
    task = Task("ab", {}, given_mask)
    given_mask[0, 1] = False
    assert task.mask.all() and len(task.poset) == 1


@pytest.mark.parametrize(
    ("inputs", "labels", "mask", "said"),
    [
        ("aba", {}, np.eye(3), "input 'a' is repeated at positions 0 and 2; inputs within one task must differ"),
        ([1, True], {}, np.eye(2), "input True is repeated at positions 0 and 1"),
        (["a", ["b"]], {}, np.eye(2), "the input at position 1 is unhashable (list)"),
        ([("a", {}), "b"], {}, np.eye(2), "the input at position 0 is unhashable (tuple)"),
        ([torch.tensor(1), torch.tensor(2)], {}, np.eye(2), "the input at position 0 is a tensor"),
        ([float("nan")], {}, np.eye(1), "the input nan at position 0 does not equal itself"),
        ([("a", float("nan"))], {}, np.eye(1), "at position 0 holds nan, which does not equal itself"),
        ([("a", (0, frozenset([float("nan")])))], {}, np.eye(1), "at position 0 holds nan, which does not"),
        ([np.datetime64("NaT")], {}, np.eye(1), "at position 0 does not equal itself"),
        ([Decimal("sNaN")], {}, np.eye(1), "the input at position 0 is unhashable"),
        ([("a", torch.tensor(1))], {}, np.eye(1), "at position 0 holds a tensor; give a number"),
        (5, {}, np.eye(1), "inputs must be a list, got 5"),
        (None, {}, np.eye(1), "inputs must be a list, got None"),
        ("a", {0: float("nan")}, np.eye(1), "the label nan at position 0 does not equal itself"),
        ("a", {0: [1, {"b": float("nan")}]}, np.eye(1), "at position 0 holds nan, which does not equal itself"),
        ("a", {0: np.ones(2)}, np.eye(1), "is a tensor; give a number, such as its .item(), or its .tolist()"),
        ("a", {0: torch.tensor(3)}, np.eye(1), "the label at position 0 is a tensor"),
        ("a", {0: (1, np.ones(2))}, np.eye(1), "at position 0 holds a tensor"),
        ("ab", {}, np.eye(3), "inputs must have one entry per position, got 2 for 3 positions"),
        ("ab", {2: "c"}, np.eye(2), "label 'c' is at position 2; the positions are 0 to 1"),
        ("ab", {-1: "c"}, np.eye(2), "label 'c' is at position -1; the positions are 0 to 1"),
        ("ab", {"0": "c"}, np.eye(2), "label 'c' is at position '0'; the positions are 0 to 1"),
        ("ab", {1.0: "c"}, np.eye(2), "label 'c' is at position 1.0; the positions are 0 to 1"),
        ("ab", {True: "c"}, np.eye(2), "label 'c' is at position True; the positions are 0 to 1"),
        ("ab", ["c"], np.eye(2), "labels must be a dictionary {position: label}, got list"),
        ("ab", {}, np.ones((2, 1)), "mask must be square"),
        ("", {}, np.ones((0, 0)), "mask is empty"),
    ],
)
def test_a_bad_task_gets_one_line(inputs, labels, mask, said):
    with pytest.raises(AttnExtError) as error:
        Task(inputs, labels, mask)
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_repeated_input_is_refused_with_the_reason():
    with pytest.raises(AttnExtError, match="merging inside one task changes the softmax's weights"):
        Task("aa", {}, np.eye(2))


def task_of(mask: np.ndarray) -> Task:
    return Task([("w", position) for position in range(len(mask))], {0: "label"}, mask)


@given(masks())
def test_dense_is_one_layer_and_densify_makes_it(mask):
    task = task_of(mask)
    limit = powers(mask)[-1]
    assert task.is_dense == np.array_equal(mask | np.eye(len(mask), dtype=bool), limit) == (task.depth <= 1)
    dense = task.densify()
    assert dense.is_dense and np.array_equal(dense.mask.numpy(), limit)
    assert dense.poset == task.poset and (dense.inputs, dense.labels) == (task.inputs, task.labels)


@given(masks(), st.integers(1, 4), st.sampled_from(["cycle", "full"]))
def test_sparse_tasks_keep_the_diagram_and_say_their_depth(mask, window, within):
    task = task_of(mask)
    sparse = task.sparsify(window, within)
    assert sparse.poset == task.poset and (sparse.inputs, sparse.labels) == (task.inputs, task.labels)
    limit = information_flow(mask)
    assert not (sparse.mask & ~limit).any() and sparse.mask.diagonal().all()
    assert sparse.depth == convergence_depth(sparse.mask)
    wider = task.sparsify(window + 1, within)
    assert not (sparse.mask & ~wider.mask).any() and wider.depth <= sparse.depth
    if within == "full":
        assert torch.equal(task.sparsify(len(mask), within).mask, limit)
        steps = np.linalg.matrix_power(np.eye(len(task.poset), dtype=int) + _cover_matrix(task.poset), window)
        expected = steps[np.ix_(task.poset.class_of, task.poset.class_of)] > 0
        assert np.array_equal(sparse.mask.numpy(), expected)


def _cover_matrix(poset: Poset) -> np.ndarray:
    matrix = np.zeros((len(poset), len(poset)), int)
    for lower, upper in poset.covers:
        matrix[upper, lower] = 1
    return matrix


@given(masks(7))
def test_the_sparsest_mask_has_no_edge_to_spare(mask):
    task = task_of(mask)
    sparse = task.sparsify().mask
    rings = sum(len(members) for members in task.poset.classes if len(members) > 1)
    assert sparse.sum() == len(mask) + rings + len(task.poset.covers)
    limit = information_flow(mask)
    for i, j in sparse.nonzero().tolist():
        if i != j:
            fewer = sparse.clone()
            fewer[i, j] = False
            assert not torch.equal(information_flow(fewer), limit)


@pytest.mark.parametrize("count", [1, 2, 5, 12])
@pytest.mark.parametrize("window", [1, 2, 3, 20])
def test_on_a_chain_it_is_the_sliding_window_and_the_depth_is_the_quotient(count, window):
    sparse = task_of(np.tri(count)).sparsify(window)
    gap = np.arange(count)[:, None] - np.arange(count)
    assert np.array_equal(sparse.mask.numpy(), (gap >= 0) & (gap <= window))
    assert sparse.depth == -(-(count - 1) // window)


def test_bad_options_get_one_line():
    task = task_of(np.tri(3))
    for window in (0, -1, 1.5, True, None):
        with pytest.raises(AttnExtError, match="window must be a whole number of at least 1, got"):
            task.sparsify(window)
    with pytest.raises(AttnExtError, match=r"unknown within 'cycles'. Did you mean 'cycle'"):
        task.sparsify(within="cycles")
    for order in ([0, 1], [0, 1, 1], [0, 1, 3], [0, 1, None]):
        with pytest.raises(AttnExtError, match="must hold every position from 0 to 2 once"):
            task.permuted(order)
    for order in (5, None, torch.tensor(0)):
        with pytest.raises(AttnExtError, match=r"the new order must be a list, got|must hold every position"):
            task.permuted(order)


def test_whole_numbers_of_any_library_will_do():
    task = task_of(np.tri(5))
    assert torch.equal(task.sparsify(np.int64(2)).mask, task.sparsify(2).mask)
    for order in (np.array([4, 3, 2, 1, 0]), torch.tensor([4, 3, 2, 1, 0]), range(4, -1, -1)):
        moved = task.permuted(order)
        assert moved.inputs == tuple(reversed(task.inputs)) and torch.equal(moved.mask, task.mask.flip(0, 1))
    labelled = Task("ab", {np.int64(1): "c"}, np.tri(2))
    assert labelled.labels == {1: "c"} and type(next(iter(labelled.labels))) is int
    assert torch.equal(information_flow(np.tri(5, k=1), np.int32(2)), information_flow(np.tri(5, k=1), 2))
    window = make_mask("butterfly", n=np.uint8(5), window=np.int16(2)), make_mask("butterfly", n=5, window=2)
    assert torch.equal(window[0].dense(), window[1].dense()) and window[0].labels == window[1].labels
    for near_miss in (True, np.True_, 2.0, np.float64(2), "2"):
        for refused in (lambda n: task.sparsify(n), lambda n: information_flow(np.tri(5), n), causal):
            with pytest.raises(AttnExtError, match="must be a whole number of at least"):
                refused(near_miss)


@given(masks(6), st.randoms(use_true_random=False))
def test_positions_in_another_order_take_everything_along(mask, random):
    task = Task([("w", position) for position in range(len(mask))], {p: f"l{p}" for p in range(0, len(mask), 2)}, mask)
    order = list(range(len(mask)))
    random.shuffle(order)
    moved = task.permuted(order)
    assert moved.inputs == tuple(task.inputs[old] for old in order)
    assert moved.labels == {new: task.labels[old] for new, old in enumerate(order) if old in task.labels}
    assert np.array_equal(moved.mask.numpy(), mask[np.ix_(order, order)])


def test_labels_that_hold_themselves_are_walked_once():
    label = [1]
    label.append(label)
    assert Task("a", {0: label}, [[1]]).labels[0] is label
