"""Turns, budgets and quartiles, with a clock of our own."""

import gc

import pytest
import torch

from benchmarks.speed.measuring.timing import Timing, measure


class Clock:
    """A clock that only moves when a contestant works; it notes who worked."""

    def __init__(self):
        self.now, self.order = 0.0, []

    def __call__(self):
        return self.now

    def work(self, name, seconds):
        def call():
            self.now += seconds
            self.order.append(name)

        return call


def test_quick_ones_get_all_repeats_and_slow_ones_as_many_as_their_budget():
    clock = Clock()
    calls = {"quick": clock.work("quick", 0.5), "slow": clock.work("slow", 2.0), "slowest": clock.work("slowest", 9.0)}
    timings, failed = measure(calls, repeats=6, budget=3.0, clock=clock)
    assert failed == {}
    assert {name: timing.seconds for name, timing in timings.items()} == {
        "quick": (0.5,) * 6,
        "slow": (2.0,) * 2,
        "slowest": (9.0,),
    }


def test_contestants_take_turns_in_changing_order_after_one_warm_up_each():
    clock = Clock()
    names = ["a", "b", "c", "d"]
    measure({name: clock.work(name, 1.0) for name in names}, repeats=5, budget=99.0, clock=clock)
    rounds = [clock.order[start : start + 4] for start in range(0, len(clock.order), 4)]
    assert rounds[0] == names and len(rounds) == 6
    assert all(sorted(turn) == names for turn in rounds)
    assert len({tuple(turn) for turn in rounds[1:]}) > 1


def test_the_device_is_waited_for_before_every_reading():
    clock = Clock()
    waits = []

    def synchronize():
        waits.append(clock.now)
        clock.now += 10.0 if len(waits) % 2 == 0 else 0.0  # the device is busy after the call

    timings, _ = measure({"a": clock.work("a", 1.0)}, repeats=2, budget=99.0, synchronize=synchronize, clock=clock)
    assert timings["a"].seconds == (11.0, 11.0)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
    ],
)
def test_who_runs_out_of_memory_is_named_and_the_others_go_on(error):
    clock, calls = Clock(), 0

    def hungry():
        nonlocal calls
        calls += 1
        if calls == 2:
            raise error

    work = {"hungry": hungry, "modest": clock.work("modest", 1.0)}
    timings, failed = measure(work, repeats=3, budget=9.0, clock=clock)
    assert failed == {"hungry": "ran out of memory"} and list(timings) == ["modest"]
    assert timings["modest"].seconds == (1.0,) * 3 and gc.isenabled()


def test_other_errors_are_not_hidden():
    def broken():
        raise RuntimeError("shapes do not fit")

    with pytest.raises(RuntimeError, match="shapes"):
        measure({"broken": broken})
    assert gc.isenabled()


def test_median_and_quartiles():
    timing = Timing((5.0, 1.0, 2.0, 4.0, 3.0))
    assert timing.as_dict() == {"median": 3.0, "lower": 2.0, "upper": 4.0, "shortest": 1.0, "repeats": 5}
    assert Timing((7.0,)).quartiles == (7.0, 7.0)
