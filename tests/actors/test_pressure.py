"""Who is admitted, who passes whom and who gives way when there is not room for all."""

from __future__ import annotations

import random

import numpy as np
import pytest
from harness import ENDS, Harness
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.actors.planner import Limits
from paceline.bench.simulate import crowd
from paceline.bench.simulator import Cost, Simulator, Story, Visit
from paceline.kv.ledger import Ledger
from support.scripted import expected

LONG = tuple(range(1000, 9000))


def opened(h: Harness) -> list[int]:
    """Sequences in the order in which they were first admitted."""
    seqs = [opening.seq for plan in h.pair.steps for opening in plan.openings]
    return list(dict.fromkeys(seqs))


def test_who_waits_is_admitted_by_priority_and_by_arrival_within_one():
    h = Harness(60, 4, 1, Limits(32, 40))
    for seq, priority in enumerate((0, 3, -2, 0, -2, 3)):
        h.add(seq, [5 + seq] * 6, seed=seq, max_tokens=4, k=0, priority=priority)
    h.drain()
    assert opened(h) == [2, 4, 0, 3, 1, 5]


@pytest.mark.parametrize("flights", [1, 2, 3])
@pytest.mark.parametrize(("blocks", "slots"), [(60, 2), (9, 4)], ids=["no slot", "no room"])
def test_running_ones_of_a_lower_priority_give_way_and_lose_nothing(blocks, slots, flights):
    h = Harness(blocks, 4, slots, Limits(32, 40, flights))
    jobs = {seq: h.add(seq, [5 + seq] * 9, seed=seq, max_tokens=20, k=2, priority=4 + seq)
            for seq in range(2)}  # fmt: skip
    for _ in range(2):
        h.launch()
        h.land()
    jobs[2] = h.add(2, [9] * 10, seed=2, max_tokens=5, k=2, priority=-1)
    h.drain()
    assert jobs[1].preemptions > 0
    assert jobs[2].preemptions == 0
    assert next(iter(h.reasons)) == 2
    for seq, job in jobs.items():
        prompt = job.tokens[: job.prompt_tokens]
        assert h.answers[seq] == expected(prompt, seq, job.params.max_tokens, ENDS)


def test_nobody_gives_way_to_an_equal_nor_where_it_would_not_help():
    h = Harness(9, 4, 4, Limits(32, 40))
    h.add(0, [5] * 12, seed=0, max_tokens=12, k=0, priority=-5)
    h.add(1, [6] * 4, seed=1, max_tokens=4, k=0, priority=3)
    h.launch()
    h.land()
    h.add(2, [7] * 24, seed=2, max_tokens=2, k=0, priority=0)  # 1 has not enough for it
    h.add(3, [8] * 20, seed=3, max_tokens=2, k=0, priority=3)
    h.launch()
    assert {row.seq for row in h.pair.steps[-1].rows} == {0, 1}
    h.land()
    h.drain()
    assert h.planner.preemptions == 0


def test_a_batch_forms_until_its_time_has_come_or_it_is_full():
    h = Harness(60, 4, 3, Limits(32, 40, forming=2.0))
    assert h.planner.wakes is None
    h.now = 10.0
    h.add(0, [5] * 4, seed=0, max_tokens=3, k=0)
    h.now = 11.0
    h.add(1, [6] * 4, seed=1, max_tokens=3, k=0)
    assert not h.launch()
    assert h.planner.wakes == 12.0
    h.now = 12.0
    assert h.launch()
    assert len(h.pair.steps[0].rows) == 2
    assert h.planner.wakes is None
    h.add(2, [7] * 4, seed=2, max_tokens=3, k=0)
    h.land()
    assert h.launch()
    assert len(h.pair.steps[1].rows) == 3, "who comes later joins what runs"
    h.land()
    h.drain()
    for seq in range(3, 6):
        assert not h.launch()
        h.add(seq, [seq] * 4, seed=seq, max_tokens=3, k=0)
    assert h.launch(), "a full batch waits for nobody"


def test_a_short_prompt_does_not_wait_for_the_end_of_a_long_one():
    h = Harness(500, 4, 4, Limits(32, 2000))
    h.add(0, [9] * 1000, seed=0, max_tokens=2, k=0)
    h.launch()
    h.land()
    h.add(1, [7] * 14, seed=1, max_tokens=2, k=0)
    h.launch()
    counts = {row.seq: row.count for row in h.pair.steps[-1].rows}
    assert counts == {1: 14, 0: 18}
    h.land()
    h.add(2, [8] * 900, seed=2, max_tokens=2, k=0)
    h.launch()
    assert {row.seq for row in h.pair.steps[-1].rows} == {0, 1}, "of two long ones, the first"
    h.land()
    h.drain()


def test_large_ones_together_leave_half_of_the_pool_to_others():
    large = [Visit(0.01 * i, tuple(range(100 * i, 100 * i + 100)), 8) for i in range(3)]
    small = [Visit(0.001 * i, (i, 2, 3), 60) for i in range(2)]
    simulator = Simulator(Ledger(80, 4, 8), Limits(64, 320))
    stories = simulator.run([*small, *large])
    assert {story.reason for story in stories} == {"length"}
    longs = sorted((s for s in stories if len(s.visit.prompt) > 3), key=lambda s: s.visit.at)
    ends, begins = [s.times[-1] for s in longs], [s.times[0] for s in longs]
    assert ends[0] < begins[1] < ends[1] < begins[2], "one of them at a time"
    assert max(s.times[-1] for s in stories if len(s.visit.prompt) == 3) > begins[2]


def test_large_ones_take_all_of_the_pool_when_they_are_among_themselves():
    h = Harness(80, 4, 8, Limits(200, 320))
    for seq in range(3):
        h.add(seq, [20 + seq] * 90, seed=seq, max_tokens=8, k=0)
    for _ in range(3):
        h.launch()
        h.land()
    assert len(h.planner.running) == 3


# --- the worst case of the field --------------------------------------------------------------


def play(visits: list[Visit], blocks: int) -> tuple[list[Story], Simulator]:
    simulator = Simulator(Ledger(blocks, 16, 16), Limits(256, 16 * blocks))
    return simulator.run(visits), simulator


def hit_rate(stories: list[Story]) -> float:
    return sum(s.cached for s in stories) / sum(len(s.visit.prompt) for s in stories)


@pytest.mark.parametrize("blocks", [1024, 2048])
def test_one_over_long_request_among_many_short_ones(blocks):
    short = crowd(400, rate=2.5, tenants=8, prefix=400, seed=1)
    alone, _ = play(short, blocks)
    both, simulator = play([*short, Visit(40.0, LONG, 100)], blocks)
    beside = [story for story in both if story.visit.prompt != LONG]
    [large] = [story for story in both if story.visit.prompt == LONG]
    assert all(story.reason == "length" for story in both)
    assert hit_rate(beside) >= 0.98 * hit_rate(alone)
    assert simulator.ledger.check() == []
    near = [s for s in beside if 40.0 <= s.visit.at <= large.times[0]]
    assert len(near) > 10
    full = Cost().fixed + 256 * Cost().token
    reading = len(LONG) / 256 * full
    assert max(s.first for s in near) < reading / 4, "they pass it"
    assert np.median([s.first for s in near]) < 2 * full
    assert large.first < 2 * reading, "and it is not starved"


def test_what_an_over_long_request_leaves_behind_pushes_nobody_out():
    """The cache holds what forty tenants share; then 8,000 tokens come that never come again."""
    rng = random.Random(3)
    systems = [tuple(rng.randrange(1000) for _ in range(320)) for _ in range(40)]
    first = [Visit(2.0 * i, (*system, 1, 2, 3), 4) for i, system in enumerate(systems)]
    again = [Visit(200 + 2.0 * i, (*system, 4, 5, 6), 4) for i, system in enumerate(systems)]
    simulator = Simulator(Ledger(1400, 16, 16), Limits(256, 16384))
    simulator.run([*first, Visit(100.0, LONG, 20)])
    later = simulator.run([*again[:20], Visit(250.0, LONG[::-1], 20), *again[20:]])
    shorts = [story for story in later if len(story.visit.prompt) < 1000]
    assert [story.cached for story in shorts] == [320] * 40


@pytest.mark.parametrize(("far", "most"), [(None, 5.0), (2000, 1.1)])
def test_a_step_takes_no_longer_at_the_end_of_a_long_prompt(far, most):
    """Where each token looks at all before it, steps of as many tokens take ever longer."""
    streams = [Visit(0.1 * i, tuple(range(i, i + 50)), 900) for i in range(4)]
    limits, cost = Limits(256, 10_000, far=far), Cost(far=2000)
    stories = Simulator(Ledger(2048, 16, 16), limits, cost).run([*streams, Visit(3.0, LONG, 10)])
    gaps = np.concatenate([s.gaps(3.0, stories[-1].times[0]) for s in stories[:-1]])
    full = cost.fixed + 256 * cost.token
    ratio = np.percentile(gaps, 99) / full
    assert ratio <= most
    assert far is not None or ratio > 3
    assert all(story.reason == "length" for story in stories)


@pytest.mark.parametrize("flights", [1, 2])
@pytest.mark.parametrize("k", [0, 4])
def test_streams_go_on_while_a_prompt_of_8000_tokens_is_read(k, flights):
    """The 99th percentile of the gaps between tokens stays below twice a full step's time."""
    streams = [Visit(0.1 * i, tuple(range(i, i + 50)), 400, method="ngram", k=k) for i in range(8)]
    simulator = Simulator(Ledger(2048, 16, 16), Limits(256, 10_000, flights))
    stories = simulator.run([*streams, Visit(3.0, LONG, 10)])
    reading = stories[-1]
    assert stories[-1].visit.prompt == LONG
    gaps = np.concatenate([s.gaps(3.0, reading.times[0]) for s in stories[:-1]])
    full = Cost().fixed + 256 * Cost().token
    assert len(gaps) > 100
    assert np.percentile(gaps, 99) < 2 * full
    assert gaps.max() <= (1 + 1e-6) * full


visits = st.builds(
    Visit,
    at=st.floats(0, 3),
    prompt=st.integers(1, 120).map(lambda n: tuple(range(n))) | st.integers(1, 300).map(
        lambda n: tuple(n * 31 % 997 + i for i in range(n))
    ),
    output=st.integers(1, 60),
    priority=st.sampled_from([0, 0, 0, -3, 8]),
    method=st.sampled_from(["ngram", "draft"]),
    k=st.integers(0, 5),
    salt=st.sampled_from(["", "a"]),
    leaves=st.none() | st.floats(0, 6),
)  # fmt: skip


class Audited(Simulator):
    """Checks the ledger after every step."""

    def _land(self) -> None:
        super()._land()
        assert self.ledger.check() == []


@settings(max_examples=150, deadline=None)
@given(
    st.lists(visits, min_size=1, max_size=14),
    st.integers(50, 90),
    st.sampled_from([4, 8]),
    st.integers(1, 6),
    st.integers(16, 80),
    st.integers(1, 3),
    st.sampled_from([0.0, 0.0, 0.3]),
    st.sampled_from([None, 5, 100]),
)
def test_every_visit_ends_and_every_block_comes_back(
    coming, blocks, block_size, slots, tokens, flights, forming, far
):
    length = blocks * block_size
    limits = Limits(max(tokens, 2 * slots), length, flights, forming=forming, far=far)
    play_out(coming, Ledger(blocks, block_size, slots), limits)


def play_out(coming: list[Visit], ledger: Ledger, limits: Limits) -> None:
    coming = [v for v in coming if len(v.prompt) + v.output <= limits.length]
    for story in Audited(ledger, limits).run(coming):
        if story.reason == "cancelled":
            assert story.visit.leaves is not None
        else:
            assert (story.reason, len(story.times)) == ("length", story.visit.output)
    counts = ledger.counts()
    assert counts["free"] + counts["cached"] == counts["total"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_ten_thousand_random_schedules():
    """Long-tailed lengths, half of the clients leave, pools with room for two or three."""
    rng = random.Random(11)

    def visit() -> Visit:
        length = min(200, 1 + int(rng.lognormvariate(2.5, 1.2)))
        output = min(80, 1 + int(rng.lognormvariate(2.0, 1.0)))
        stem, at = rng.randrange(3), rng.expovariate(1.0)
        return Visit(
            at=at,
            prompt=tuple(stem * i % 97 for i in range(length)),
            output=output,
            priority=rng.choice((0, 0, 0, -1, 4)),
            method=rng.choice(("ngram", "draft")),
            k=rng.randrange(6),
            salt=rng.choice(("", "", "a")),
            leaves=at + rng.expovariate(1.0) if rng.random() < 0.5 else None,
        )

    for _ in range(10_000):
        block_size, slots = rng.choice((1, 4, 16)), rng.randint(1, 6)
        blocks = -(-300 // block_size) + rng.randrange(100)
        limits = Limits(
            step_tokens=rng.randint(2 * slots, 96),
            length=blocks * block_size,
            flights=rng.randint(1, 3),
            caching=rng.random() < 0.9,
            forming=rng.choice((0.0, 0.0, 0.2)),
        )
        coming = [visit() for _ in range(rng.randint(1, 12))]
        play_out(coming, Ledger(blocks, block_size, slots), limits)
