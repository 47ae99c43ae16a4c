"""The formulas against counts: of the running code, and of plain loops."""

import dataclasses
import itertools

import pytest
import torch

from benchmarks.speed.attention.contestants import BOTH, FORWARD, PASSES, Workload, contestants, make_call
from benchmarks.speed.attention.limits import Rates, measure_rates
from benchmarks.speed.attention.operations import MAPS, Counter, Operations, counted, operations
from hf_attn_ext.attention import list_kernels

WORK = Workload(heads=2, head_dim=16, feature_dim=32)
EVERYBODY = {contestant.name: contestant for contestant in contestants(WORK)}


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", sorted(MAPS))
def test_a_kernels_formula_is_what_the_code_does(kernel, causal, which):
    formula = operations(EVERYBODY[kernel], WORK, 512, causal, which).values()
    code = counted(EVERYBODY[kernel], WORK, 512, causal, which).values()
    # backward, a few bounds need gradients or don't; forward all is exact
    tolerance = 0.02 if which == BOTH else 0
    assert formula == pytest.approx(code, rel=tolerance, abs=1e-6), "the formula no longer says what the kernel does"


@pytest.mark.parametrize("which", PASSES)
def test_eagers_formula_is_what_the_code_does(which):
    eager = EVERYBODY["eager"]
    call = make_call(eager.build(WORK, False), WORK.tensors(24), which)
    with Counter() as counter:
        call()
    assert operations(eager, WORK, 24, False, which) == counter.total


def test_the_forms_against_plain_loops():
    """Scalar loops over one head, every multiplication with its addition counted as two."""
    d, n, length = 3, 2, 5
    width, values = 2 * n, d + 1
    products = exponentials = 0
    for _token, _side in itertools.product(range(length), ("query", "key")):
        products += sum(2 for _ in itertools.product(range(n), range(d)))  # W x
        exponentials += width  # softmax over [W x, -W x]
        # keys: phi v^T into the sum; queries: phi times the sum
        products += sum(2 for _ in itertools.product(range(width), range(values)))
    small = Workload(heads=1, head_dim=d, feature_dim=width)
    hedgehog = next(c for c in contestants(small, ["hedgehog"]) if c.name == "hedgehog")
    assert hedgehog.num_features == n
    assert operations(hedgehog, small, length, False, FORWARD) == Operations(products, exponentials, 0.0)

    pairs = {causal: sum(1 for i in range(length) for j in range(length) if not causal or j <= i) for causal in (0, 1)}
    for causal, count in pairs.items():  # a score and a weighted value take 2 d operations each
        expected = Operations(2 * 2 * d * count, count)
        assert operations(EVERYBODY["sdpa"], small, length, bool(causal), FORWARD) == expected


def test_a_kernel_without_a_formula_is_counted_while_it_runs():
    without = [name for name in list_kernels() if name not in MAPS]
    assert "uniform" in without
    for name in without:
        needed = operations(EVERYBODY[name], WORK, 1000, True, FORWARD)
        assert needed.products > 0
        twice = operations(EVERYBODY[name], WORK, 2000, True, FORWARD)
        assert twice.values() == pytest.approx((needed * 2).values())


def test_counts_grow_with_batch_and_heads():
    bigger = dataclasses.replace(WORK, batch=3, heads=4)
    for name in ("hedgehog", "sdpa", "uniform"):
        once, more = (operations(EVERYBODY[name], work, 128, False, BOTH) for work in (WORK, bigger))
        assert more.values() == pytest.approx((once * 6).values())


def test_rates_turn_operations_into_seconds():
    rates = Rates(products=10.0, exponentials=4.0, cosines=2.0)
    assert rates.seconds(Operations(20.0, 4.0, 1.0)) == 2 + 1 + 0.5
    assert rates.best(Rates(1.0, 8.0, 2.0)) == Rates(10.0, 8.0, 2.0)
    measured = measure_rates("cpu", "float32", quick=True)
    assert min(dataclasses.astuple(measured)) > 0


def test_the_counter_counts_single_numbers():
    x = torch.rand(3, 5)
    with Counter() as counter:
        x.exp(), x.softmax(-1), x.cos_(), x.sin(), x**2, x**x, x @ x.mT, torch.addmm(torch.zeros(3, 3), x, x.mT)
    assert counter.total == Operations(products=2 * 2 * 9 * 5, exponentials=15 + 15 + 30, cosines=30)
