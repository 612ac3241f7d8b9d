"""The prefix cache in the planner: what is found, what is left, and who waits for whom."""

from __future__ import annotations

import random

import pytest
from harness import ENDS, Harness
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.actors.planner import Limits
from paceline.spec.plan import StepPlan
from support.scripted import expected

BASES = [[4 + (7 * b + 3 * i * i + i) % 90 for i in range(40)] for b in range(2)]
LONG = BASES[0]

requests = st.lists(
    st.tuples(
        st.sampled_from(BASES),
        st.integers(0, 40),  # how much of it
        st.integers(0, 9),  # tokens of its own behind that
        st.integers(1, 24),  # max_tokens
        st.sampled_from([("ngram", 0), ("ngram", 3), ("draft", 2), ("draft", 5)]),
        st.sampled_from(["", "", "", "a"]),  # salt
        st.sampled_from([None, None, None, 0]),  # prompt_logprobs
        st.integers(0, 40),  # arrival
        st.one_of(st.none(), st.none(), st.integers(0, 30)),  # cancel this long after it
    ),
    min_size=2,
    max_size=14,
)


@settings(max_examples=300, deadline=None)
@given(
    requests,
    st.integers(12, 50),
    st.sampled_from([1, 4, 8]),
    st.integers(1, 5),
    st.integers(10, 64),
    st.integers(1, 3),
    st.integers(0, 2**20),
    st.sampled_from([0.0, 0.0, 0.15]),
)
def test_any_schedule_with_shared_prefixes_gives_the_same_tokens(
    asked, blocks, block_size, slots, step_tokens, flights, dice, fault_rate
):
    rng = random.Random(dice)

    def fault(plan: StepPlan) -> None:
        if rng.random() < fault_rate:
            raise rng.choice([ValueError, MemoryError])("injected")

    capacity = blocks * block_size
    limits = Limits(max(step_tokens, 2 * slots), length=capacity, flights=flights)
    h = Harness(blocks, block_size, slots, limits, fault=fault)
    comings = {}
    for seq, (base, count, own, most, way, salt, told, arrival, cancel) in enumerate(asked):
        prompt = (base[:count] + [rng.randrange(4, 97) for _ in range(own)] or [9])[: capacity - 2]
        most, (method, k) = min(most, capacity - len(prompt)), way
        job = {"prompt": prompt, "seed": rng.randrange(3), "max_tokens": most, "k": k}
        more = {"method": method, "cache_salt": salt, "prompt_logprobs": told}
        comings[seq] = (arrival, cancel, job | more)
    h.play(comings, rng)
    assert h.ledger.available_blocks == blocks
    assert h.ledger.check() == []
    for seq, (_, _, job) in comings.items():
        usage = h.usage[seq]
        assert usage.cached_tokens % block_size == 0
        assert usage.cached_tokens < len(job["prompt"])
        assert job["prompt_logprobs"] is None or usage.cached_tokens == 0
        h.kept_its_word(seq, job["prompt"], job["seed"], job["max_tokens"])


def one_after_another(*asked: dict[str, object], **limits: object) -> Harness:
    """The sequences of these prompts, each when the last has ended."""
    h = Harness(60, 4, 4, Limits(64, 200, **limits))
    for seq, more in enumerate(asked):
        h.add(seq, **({"prompt": LONG, "seed": 3, "max_tokens": 6, "k": 2} | more))
        h.drain()
    return h


@pytest.mark.parametrize(
    ("first", "second", "cached"),
    [
        ({}, {}, 36),
        ({"seed": 5}, {"prompt": [*LONG[:21], 9, 9]}, 20),
        ({}, {"prompt": LONG[:3]}, 0),
        ({}, {"prompt": LONG[1:]}, 0),
        ({"cache_salt": "a"}, {"cache_salt": "a"}, 36),
        ({"cache_salt": "a"}, {"cache_salt": "b"}, 0),
        ({"cache_salt": "a"}, {}, 0),
        ({"k": 0}, {"method": "draft"}, 36),
        ({"method": "draft"}, {"k": 0}, 36),
        ({"method": "draft"}, {"method": "draft"}, 36),
        ({"prompt_logprobs": 0}, {}, 36),
        ({}, {"prompt_logprobs": 0}, 0),
    ],
)  # fmt: skip
def test_what_a_later_prompt_finds(first, second, cached):
    h = one_after_another(first, second)
    assert (h.usage[0].cached_tokens, h.usage[1].cached_tokens) == (0, cached)
    [opening] = [o for plan in h.pair.steps for o in plan.openings if o.seq == 1]
    assert opening.cached == cached
    first_row = next(row for plan in h.pair.steps for row in plan.rows if row.seq == 1)
    assert first_row.count == len(second.get("prompt", LONG)) - cached
    asks = "prompt_logprobs" in second
    assert h.planner.prefixes.hits == cached
    assert (h.planner.prefixes.queries > len(LONG) - 1) or asks or "prompt_logprobs" in first


def test_an_answer_is_found_by_the_prompt_that_continues_it():
    h = one_after_another({"seed": 8, "max_tokens": 30})
    answer = h.answers[0]
    assert len(answer) > 8
    h.add(1, [*LONG, *answer, 5, 6], seed=1, max_tokens=2, k=0)
    h.drain()
    assert h.usage[1].cached_tokens >= len(LONG) + len(answer) - 7
    assert h.usage[0].cached_tokens == 0


def test_without_caching_nothing_is_kept():
    h = one_after_another({}, {}, caching=False)
    assert h.usage[1].cached_tokens == 0
    assert h.ledger.counts()["free"] == 60
    assert h.planner.prefixes.queries == 0


@pytest.mark.parametrize("method", ["ngram", "draft"])
@pytest.mark.parametrize("flights", [1, 2])
def test_prompts_that_arrive_together_are_computed_once(method, flights):
    h = Harness(90, 4, 4, Limits(16, 300, flights))
    for seq in range(4):
        h.add(seq, [*LONG, 50 + seq], seed=seq, max_tokens=12, k=2, method=method)
    h.drain()
    for seq in range(4):
        assert h.answers[seq] == expected([*LONG, 50 + seq], seq, 12, ENDS)
    assert [h.usage[seq].cached_tokens for seq in range(4)] == [0, 40, 40, 40]


def test_who_waits_for_a_prompt_does_not_hold_up_those_behind():
    h = Harness(90, 4, 4, Limits(30, 300))
    h.add(0, LONG, seed=1, max_tokens=9, k=0)
    h.add(1, LONG, seed=2, max_tokens=9, k=0)
    h.add(2, [8, 9], seed=3, max_tokens=9, k=0)
    assert h.launch()
    h.land()
    assert h.launch()
    assert [s.seq for s in h.planner.running] == [0, 2]
    h.drain()
    assert h.usage[1].cached_tokens == 36


@pytest.mark.parametrize("flights", [1, 2])
def test_when_the_one_it_waits_for_is_cancelled_it_goes_on(flights):
    h = Harness(90, 4, 4, Limits(16, 300, flights))
    h.add(0, LONG, seed=1, max_tokens=9, k=0)
    h.add(1, LONG, seed=2, max_tokens=9, k=0)
    h.launch()
    h.land()
    h.cancel(0)
    h.drain()
    assert h.usage[1].cached_tokens == 16
    assert h.answers[1] == expected(LONG, 2, 9, ENDS)


def test_who_gave_way_finds_its_own_blocks():
    h = Harness(blocks=12, block_size=4, slots=2, limits=Limits(64, 48))
    for seq in range(2):
        h.add(seq, BASES[seq][:16], seed=11 * seq + 5, max_tokens=16, k=0)
    h.drain()
    assert h.planner.preemptions > 0
    again = [o for plan in h.pair.steps for o in plan.openings if len(o.tokens) > 16]
    assert any(opening.cached >= 16 for opening in again)
    assert all(h.usage[seq].cached_tokens == 0 for seq in range(2))
