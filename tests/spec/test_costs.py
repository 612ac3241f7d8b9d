"""What steps cost: between measurements, beyond them, and as they turn out to be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.spec.costs import Costs, Curve, DraftCosts

points = st.dictionaries(st.integers(1, 64), st.floats(1e-4, 1.0), min_size=1, max_size=8)


@given(points)
def test_more_never_costs_less(measured: dict[int, float]) -> None:
    curve = Curve(measured)
    seconds = [curve(count) for count in range(1, 200)]
    assert seconds == sorted(seconds)


@given(st.lists(st.floats(1e-4, 1.0), min_size=2, max_size=8).map(sorted))
def test_what_was_measured_in_order_stands(seconds: list[float]) -> None:
    curve = Curve({2**i: it for i, it in enumerate(seconds)})
    for i, it in enumerate(seconds):
        assert curve(2**i) == pytest.approx(it)


def test_between_two_points_lies_a_line_and_it_goes_on_behind_them() -> None:
    curve = Curve({2: 1.0, 4: 2.0, 8: 6.0})
    assert [curve(n) for n in (3, 6, 8, 10)] == pytest.approx([1.5, 4.0, 6.0, 8.0])


def test_an_interrupted_measurement_is_not_believed() -> None:
    curve = Curve({1: 1.0, 2: 9.0, 4: 1.2})
    assert curve(2) == pytest.approx(1.2)


def test_a_slower_machine_is_slower_at_every_count() -> None:
    curve = Curve({1: 1.0, 8: 2.0, 64: 10.0})
    for _ in range(60):
        curve.correct(8, 4.0)
    assert curve(8) == pytest.approx(4.0, rel=0.05)
    assert curve(64) / curve(1) == pytest.approx(10.0, rel=0.4)


def test_a_point_that_was_wrong_is_bent_to_what_it_turns_out_to_be() -> None:
    curve = Curve({1: 1.0, 4: 1.1, 8: 1.2})
    for _ in range(400):
        curve.correct(1, 1.0)
        curve.correct(8, 2.0)
    assert curve(8) / curve(1) == pytest.approx(2.0, rel=0.1)


def test_one_interruption_does_not_change_much() -> None:
    curve = Curve({1: 1.0, 8: 2.0})
    curve.correct(8, 1000.0)
    assert curve(8) < 2.4


def test_drafting_costs_rounds_and_what_must_be_caught_up() -> None:
    costs = DraftCosts(Curve({1: 1.0, 2: 2.0}), Curve({1: 0.5, 2: 0.6}), token=0.01)
    assert costs.seconds(0, 2) == costs.seconds(2, 0) == 0.0
    assert costs.seconds(3, 2, lag=10) == pytest.approx(2.0 + 2 * 0.6 + 0.1)
    for _ in range(200):
        costs.correct(3, 2, 10, 2 * 3.2 + 0.1)
    assert costs.seconds(3, 2) == pytest.approx(6.4, rel=0.05)


def test_a_gap_is_known_from_steps_that_follow_each_other() -> None:
    costs = Costs(Curve({1: 1.0}))
    for _ in range(100):
        costs.waited(0.25, 1)
        costs.waited(60.0, 1)  # nothing to do
    assert costs.plain(1) == pytest.approx(1.25, rel=0.01)
