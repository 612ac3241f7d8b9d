"""Chances learnt from guesses that held and did not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.spec.acceptance import MOST, Habit, Own, Record, Trust


def held(rng: random.Random, chances: list[float]) -> int:
    """How many of the first guesses hold, each with its chance if those before it do."""
    for place, chance in enumerate(chances):
        if rng.random() >= chance:
            return place
    return len(chances)


def test_chances_by_place_are_learnt() -> None:
    rng, habit = random.Random(1), Habit()
    truth = [0.8, 0.5, 0.2]
    for _ in range(4000):
        Own().judged(habit, 3, held(rng, truth))
    assert habit.chances(3) == pytest.approx(truth, abs=0.07)
    assert Own().chances(habit, 3) == pytest.approx([0.8, 0.4, 0.08], abs=0.07)


def test_a_sequence_of_its_own_kind_is_told_from_all() -> None:
    rng, habit, own = random.Random(1), Habit(), Own()
    for _ in range(2000):
        Own().judged(habit, 2, held(rng, [0.9, 0.9]))
    for _ in range(60):
        own.judged(habit, 2, held(rng, [0.1, 0.1]))
    assert own.chances(habit, 1)[0] < 0.35
    assert Own().chances(habit, 1)[0] > 0.8


def test_what_changed_long_ago_is_forgotten() -> None:
    habit, own = Habit(), Own()
    for _ in range(200):
        own.judged(habit, 1, 1)
    for _ in range(60):
        own.judged(habit, 1, 0)
    assert own.chances(habit, 1)[0] < 0.3


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=60))
def test_chances_are_chances(drafts: list[tuple[int, int]]) -> None:
    habit, own = Habit(), Own()
    for drafted, accepted in drafts:
        own.judged(habit, drafted, min(drafted, accepted))
    chances = own.chances(habit, 8)
    assert chances == sorted(chances, reverse=True)
    assert all(0.0 < chance <= MOST for chance in chances)


def test_claims_that_are_too_bold_are_seen_through() -> None:
    rng, trust = random.Random(1), Trust()
    for _ in range(2000):
        trust.judged([0.9], held(rng, [0.4]), Record())
        trust.judged([0.3], held(rng, [0.3]), Record())
    assert trust.chances([0.9], Record()) == pytest.approx([0.4], abs=0.08)
    assert trust.chances([0.3], Record()) == pytest.approx([0.3], abs=0.08)


def test_look_ups_that_fail_one_sequence_alone_are_trusted_elsewhere() -> None:
    rng, trust, own = random.Random(1), Trust(), Record()
    for _ in range(1000):
        trust.judged([0.9, 0.9], held(rng, [0.9, 0.9]), Record())
    for _ in range(40):
        trust.judged([0.9, 0.9], 0, own)
    assert trust.chances([0.9], own)[0] < 0.35
    assert trust.chances([0.9], Record())[0] > 0.75
