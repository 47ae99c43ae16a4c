"""Crossovers and slopes of numbers whose answers are known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.speed.measuring.figures import Crossover, crossover, growth, ratio, reference_length

LENGTHS = [256, 512, 1024, 2048, 4096]


def test_linear_meets_quadratic_where_both_cost_the_same():
    ours = [n / 1000 for n in LENGTHS]
    theirs = [n * n / 1_000_000 for n in LENGTHS]
    assert crossover(LENGTHS, ours, theirs) == Crossover("at", pytest.approx(1000.0), 1)


@given(
    st.floats(700, 3900),
    st.floats(0.5, 1.4),
    st.floats(1.6, 2.5),
    st.floats(1e-3, 1e3),
)
def test_two_power_laws_meet_at_the_very_length(length, slow, fast, scale):
    ours = [scale * (n / length) ** slow for n in LENGTHS]
    theirs = [scale * (n / length) ** fast for n in LENGTHS]
    found = crossover(LENGTHS, ours, theirs)
    assert found.kind == "at" and found.length == pytest.approx(length, rel=1e-6) and found.changes == 1


@pytest.mark.parametrize(
    ("ours", "expected", "shown"),
    [
        ([1, 1, 1], Crossover("always", 100.0), "< 100"),
        ([3, 3, 3], Crossover("never", 400.0), "> 400"),
        ([2, 2, 2], Crossover("never", 400.0), "> 400"),
        ([1, 1, 3], Crossover("never", 400.0, 1), "> 400"),
        ([4, 2, 1], Crossover("at", 200.0, 1), "200"),
        ([1, 4, 1], Crossover("at", pytest.approx(282.8427), 2), "283 (several)"),
        ([None, None, None], Crossover("unknown", None), "-"),
        ([None, 4, 1], Crossover("at", pytest.approx(282.8427), 1), "283"),
        ([1, None, None], Crossover("always", 100.0), "< 100"),
    ],
)
def test_every_kind_of_crossover(ours, expected, shown):
    found = crossover([100, 200, 400], ours, [2, 2, 2])
    assert found == expected and str(found) == shown


def test_slopes_are_exact_for_powers_and_only_of_the_lengths_that_count():
    lengths = [512, 1024, 2048, 4096, 16384, 32768]
    values = [99.0, *(3.0 * (n / 1024) ** 1.5 for n in lengths[1:-1]), 1.0]
    assert growth(lengths, values) == {"slope": pytest.approx(1.5), "from": 1024, "to": 16384}
    assert growth(lengths, values, low=1, high=600) is None
    assert growth(lengths, [None] * 6) is None
    assert growth([1024, 2048], [0, 8]) is None


@given(st.floats(0.1, 3), st.floats(1e-6, 1e6))
def test_a_slope_does_not_depend_on_the_unit(power, unit):
    values = [unit * n**power for n in LENGTHS]
    assert growth(LENGTHS, values)["slope"] == pytest.approx(power, abs=1e-9)


def test_ratios_and_reference_lengths():
    assert ratio(6.0, 3.0) == 2.0 and ratio(None, 3.0) is None and ratio(6.0, None) is None and ratio(6.0, 0) is None
    assert reference_length(LENGTHS, 4096) == 4096
    assert reference_length([256, 1000], 4096) == 1000
    assert reference_length([8192], 4096) == 8192
