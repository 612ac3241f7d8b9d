"""The planner against a scripted pair: random arrivals, cancels, pools and flights."""

from __future__ import annotations

import random

import pytest
from harness import ENDS, Harness
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.actors.planner import STEP_FAILED, Limits
from paceline.spec.plan import StepPlan
from support.scripted import expected

arrivals = st.lists(
    st.tuples(
        st.integers(1, 40),  # prompt
        st.integers(1, 30),  # max_tokens
        st.integers(0, 6),  # k
        st.sampled_from([0, 0, 0, -1, 5]),  # priority
        st.integers(0, 25),  # arrival
        st.one_of(st.none(), st.integers(0, 40)),  # cancel this long after the arrival
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=300, deadline=None)
@given(
    arrivals,
    st.integers(9, 40),
    st.sampled_from([4, 8]),
    st.integers(1, 5),
    st.integers(10, 64),
    st.integers(1, 3),
    st.integers(0, 2**20),
    st.sampled_from([0.0, 0.0, 0.1, 0.4]),
)
def test_any_schedule_gives_the_same_tokens_and_returns_every_block(
    requests, blocks, block_size, slots, step_tokens, flights, salt, fault_rate
):
    rng = random.Random(salt)

    def fault(plan: StepPlan) -> None:
        if rng.random() < fault_rate:
            raise rng.choice([ValueError, MemoryError])("injected")

    limits = Limits(max(step_tokens, 2 * slots), length=blocks * block_size, flights=flights)
    h = Harness(blocks, block_size, slots, limits, fault=fault)
    capacity = blocks * block_size
    comings = {}
    for seq, (prompt_len, max_tokens, k, rank, arrival, cancel) in enumerate(requests):
        prompt_len = min(prompt_len, capacity - 2)
        max_tokens = min(max_tokens, capacity - prompt_len)
        prompt = [rng.randrange(4, 97) for _ in range(prompt_len)]
        asked = {"prompt": prompt, "seed": rng.randrange(2**20), "max_tokens": max_tokens}
        comings[seq] = (arrival, cancel, asked | {"k": k, "priority": rank})
    h.play(comings, rng)
    for seq, (_, _, asked) in comings.items():
        h.kept_its_word(seq, asked["prompt"], asked["seed"], asked["max_tokens"])


def test_a_pool_with_room_for_two_of_four_finishes_all_four():
    h = Harness(blocks=10, block_size=4, slots=4, limits=Limits(32, 40))
    for seq in range(4):
        h.add(seq, [10 + seq] * 9, seed=seq + 50, max_tokens=10, k=2)
    h.drain()
    for seq in range(4):
        assert h.answers[seq] == expected([10 + seq] * 9, seq + 50, 10, ENDS)


def test_the_newest_gives_way_and_the_oldest_never_does():
    h = Harness(blocks=8, block_size=4, slots=4, limits=Limits(64, 32))
    sequences = []
    for seq in range(3):
        sequences.append(h.add(seq, [5 + seq] * 8, seed=11 * seq + 5, max_tokens=20, k=0))
    h.drain()
    assert h.planner.preemptions > 0
    assert sequences[0].preemptions == 0


def test_a_sequence_opens_again_with_its_prompt_told_from_its_output():
    h = Harness(blocks=8, block_size=4, slots=4, limits=Limits(5, 32))
    for seq in range(3):
        h.add(seq, [5 + seq] * 8, seed=11 * seq + 5, max_tokens=20, k=0)
    h.drain()
    computed, furthest, opened_again = [0] * 3, [0] * 3, 0
    for plan in h.pair.steps:
        for opening in plan.openings:
            assert (opening.prompt, opening.reported) == (8, furthest[opening.seq])
            opened_again += len(opening.tokens) > 8
            computed[opening.seq] = opening.cached
        for row in plan.rows:
            computed[row.seq] += row.count
            furthest[row.seq] = max(furthest[row.seq], computed[row.seq])
    assert opened_again


def test_running_streams_advance_every_step_while_a_long_prompt_is_chunked():
    h = Harness(blocks=200, block_size=4, slots=4, limits=Limits(16, 800))
    h.add(0, [9, 9], seed=2, max_tokens=40, k=3)
    h.launch()
    h.land()
    h.add(1, [8] * 200, seed=3, max_tokens=4, k=0)
    while h.planner.running and h.planner.running[0].seq == 0:
        assert h.launch()
        plan, _ = h.air[-1]
        assert 0 in {row.seq for row in plan.rows}
        h.land()
    chunks = [row.count for plan in h.pair.steps for row in plan.rows if row.seq == 1]
    assert len(chunks) > 3
    assert max(chunks) <= 16


def test_every_decoding_row_gets_its_token_before_anyone_drafts():
    h = Harness(blocks=200, block_size=4, slots=8, limits=Limits(16, 800))
    for seq in range(8):
        h.add(seq, [seq + 4], seed=seq * 3 + 1, max_tokens=12, k=6)
    h.drain()
    full = [plan for plan in h.pair.steps if len(plan.rows) == 8]
    assert full, "all eight never ran together"


@pytest.mark.parametrize("flights", [1, 2, 3])
def test_a_row_that_always_fails_ends_alone(flights):
    def fault(plan: StepPlan) -> None:
        if any(row.seq == 1 for row in plan.rows):
            raise ValueError("row 1 is bad")

    h = Harness(60, 4, 4, Limits(64, 100, flights), fault=fault)
    for seq in range(3):
        h.add(seq, [7 + seq] * 5, seed=seq + 21, max_tokens=12, k=2)
    h.drain()
    assert h.reasons[1] == "error"
    assert h.errors[1] == STEP_FAILED
    for seq in (0, 2):
        assert h.answers[seq] == expected([7 + seq] * 5, seq + 21, 12, ENDS)
    assert h.ledger.available_blocks == 60


def test_out_of_memory_runs_fewer_rows_and_loses_none():
    def fault(plan: StepPlan) -> None:
        if len(plan.rows) > 2:
            raise MemoryError("out of memory")

    h = Harness(90, 4, 5, Limits(64, 100), fault=fault)
    for seq in range(5):
        h.add(seq, [7 + seq] * 5, seed=seq + 21, max_tokens=12, k=2)
    h.drain()
    for seq in range(5):
        assert h.answers[seq] == expected([7 + seq] * 5, seq + 21, 12, ENDS)


def test_a_cancelled_sequence_in_the_air_is_fenced_until_its_step_lands():
    h = Harness(20, 4, 2, Limits(64, 80))
    h.add(0, [9] * 6, seed=1, max_tokens=10, k=0)
    h.launch()
    h.cancel(0)
    assert h.ledger.counts()["fenced"] > 0
    assert h.ledger.counts()["free"] < 20
    h.land()
    assert h.ledger.counts()["free"] == 20
    h.cancel(0)
    assert list(h.reasons) == [0]
