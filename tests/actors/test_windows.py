"""The planner with a model that sees through a window: blocks that nothing reads are given back.

The scripted pair reads what attention would read, tile by tile, and asserts that it is there.
"""

from __future__ import annotations

import random

from harness import ENDS, Harness
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.actors.planner import Limits
from paceline.kv.window import pool_tokens, reach
from paceline.spec.plan import StepPlan
from support.scripted import expected

LENGTH = 1600

arrivals = st.lists(
    st.tuples(
        st.integers(1, 500),  # prompt
        st.integers(1, 300),  # max_tokens
        st.integers(0, 6),  # k
        st.integers(0, 25),  # arrival
        st.one_of(st.none(), st.integers(0, 40)),  # cancel this long after the arrival
        st.booleans(),  # whether a model drafts
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=150, deadline=None)
@given(
    arrivals,
    st.integers(1, 150),
    st.sampled_from([8, 16, 64]),
    st.integers(1, 4),
    st.integers(10, 90),
    st.integers(1, 3),
    st.integers(0, 2**20),
    st.integers(0, 12),
    st.sampled_from([0.0, 0.0, 0.1, 0.3]),
    st.booleans(),
)
def test_any_schedule_reads_only_what_is_held_and_returns_every_block(
    requests, window, block_size, slots, step_tokens, flights, salt, spare, fault_rate, caching
):
    rng = random.Random(salt)

    def fault(plan: StepPlan) -> None:
        if rng.random() < fault_rate:
            raise rng.choice([ValueError, MemoryError])("injected")

    step_tokens = max(step_tokens, 2 * slots)
    limits = Limits(step_tokens, LENGTH, flights=flights, caching=caching, window=window)
    blocks = reach(limits, block_size).most_blocks + spare  # fewer than most sequences have
    assert pool_tokens(limits, blocks, block_size, LENGTH) == LENGTH
    h = Harness(blocks, block_size, slots, limits, fault=fault)
    comings = {}
    stem = [rng.randrange(4, 97) for _ in range(500)]
    for seq, (prompt_len, max_tokens, k, arrival, cancel, drafted) in enumerate(requests):
        same = rng.randrange(prompt_len + 1)
        prompt = stem[:same] + [rng.randrange(4, 97) for _ in range(prompt_len - same)]
        asked = {"prompt": prompt, "seed": rng.randrange(2**20), "max_tokens": max_tokens, "k": k}
        asked["method"] = "draft" if drafted else "ngram"
        comings[seq] = (arrival, cancel, asked)
    h.play(comings, rng)
    for seq, (_, _, asked) in comings.items():
        h.kept_its_word(seq, asked["prompt"], asked["seed"], asked["max_tokens"])


def harness(window: int | None, blocks: int, **limits: int) -> Harness:
    return Harness(blocks, 16, 4, Limits(32, LENGTH, window=window, **limits))


def test_a_sequence_longer_than_the_pool_runs_to_its_end():
    h = harness(40, blocks=16)
    prompt = [9 + i % 80 for i in range(700)]
    h.add(0, prompt, seed=5, max_tokens=400, k=3)
    most = 0
    while h.launch():
        most = max(most, h.ledger.counts()["held"])
        h.land()
    assert h.answers[0] == expected(prompt, 5, 400, ENDS)
    assert len(prompt) > 16 * 16
    assert most <= reach(h.planner.limits, 16).most_blocks <= 16
    assert h.planner.preemptions == 0


def test_a_repeated_prompt_is_found_though_its_head_is_gone():
    h = harness(40, blocks=20)
    prompt = [9 + i % 80 for i in range(500)]
    h.add(0, prompt, seed=5, max_tokens=2, k=0)
    h.drain()
    h.add(1, prompt, seed=6, max_tokens=2, k=0)
    h.drain()
    assert h.usage[1].cached_tokens > 20 * 16 > 0, "less than half of the prompt was found"
    assert h.answers[1] == expected(prompt, 6, 2, ENDS)


def test_without_a_window_blocks_stay_until_the_end():
    h = harness(None, blocks=60)
    h.add(0, [9] * 500, seed=5, max_tokens=2, k=0)
    while h.launch():
        h.land()
        held = h.ledger.counts()["held"]
        assert held in (0, *range(2, 33))
    assert max(len(row.blocks) for plan in h.pair.steps for row in plan.rows) > 0
    assert -1 not in {block for plan in h.pair.steps for row in plan.rows for block in row.blocks}


def test_what_a_pool_holds_of_one_sequence():
    whole, narrow = Limits(32, 1000), Limits(32, 1000, window=40)
    assert pool_tokens(whole, 10, 16, 1000) == 160
    assert pool_tokens(whole, 100, 16, 1000) == 1000
    most = reach(narrow, 16).most_blocks
    assert pool_tokens(narrow, most, 16, 1000) == 1000
    assert pool_tokens(narrow, most - 1, 16, 1000) == (most - 1) * 16
