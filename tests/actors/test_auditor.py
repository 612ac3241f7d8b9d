"""Every kind of leak is found at the next audit, with its owner and its age, told once and counted;
and no schedule of a sound scheduler is ever complained about."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from staged import Stage, admit, random_stage, run_random
from structlog.testing import capture_logs

from paceline.actors.inventory import Age, Leak
from paceline.actors.planner import Limits

SECOND = 1_000_000


def busy(audit_every: int = 0, flights: int = 1) -> Stage:
    """Sequences 0 to 2, of 9, 13 and 17 prompt tokens in blocks of 4: a step a second, of which
    three have landed and the next is in the air. Sequence 2 came a step after the others."""
    stage = Stage(40, 4, 4, Limits(64, 100, flights), audit_every=audit_every)
    for seq in range(3):
        stage.add(admit(seq, [10 + seq] * (9 + 4 * seq), max_tokens=60, ignore_eos=True))
        if seq:
            stage.turn(SECOND)
            stage.land()
    stage.turn(SECOND)
    stage.land()
    stage.turn(SECOND)
    assert stage.inspect().problems == ()
    return stage


def the_leak(stage: Stage) -> Leak:
    (leak,) = stage.inspect().leaks
    return leak


def gauge(stage: Stage, name: str) -> float:
    return stage.metrics.registry.get_sample_value(f"paceline:{name}") or 0.0


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_a_sound_scheduler_is_never_complained_about(seed):
    random = Random(seed)
    stage = random_stage(random, audit_every=1)

    def sound() -> None:
        seen = stage.inspect()
        assert seen.problems == ()
        for holding in seen.leases:
            assert holding.standing == "running"
            assert holding.blocks == holding.needed
            assert holding.computed <= holding.known
        assert all(fence.flying for fence in seen.fences)
        assert [x.blocks for x in seen.leases] == sorted(
            (x.blocks for x in seen.leases), reverse=True
        )
        held = {block for x in stage.ledger.leases.values() for block in x.blocks}
        assert seen.blocks["held"] == len(held)

    run_random(stage, random, 25, after=sound)
    assert stage.inspect().leases == ()


def test_an_inspection_says_who_holds_what_and_since_when():
    stage = busy()
    seen = stage.inspect()
    assert (seen.step, seen.landed) == (4, 3)
    assert [(x.seq, x.request, x.blocks, x.needed) for x in seen.leases] == [
        (2, "r2", 5, 5),
        (1, "r1", 4, 4),
        (0, "r0", 3, 3),
    ]
    first, last = seen.leases[-1], seen.leases[0]
    assert first.age == Age(3, 3.0)
    assert last.age == Age(2, 2.0)
    assert first.idle == last.idle == Age(1, 1.0)
    assert (first.known, first.computed) == (9 + 3, 9 + 2)


def test_a_lease_that_was_forgotten():
    stage = busy()
    stage.planner.running.pop(0)
    leak = the_leak(stage)
    assert (leak.kind, leak.seq, leak.request) == ("lease", 0, "r0")
    assert leak.blocks == tuple(stage.ledger.lease(0).blocks)
    assert (leak.age, leak.idle) == (Age(3, 3.0), Age(1, 1.0))
    assert "its sequence is gone" in leak.text
    assert leak.sentence.endswith(
        "(sequence 0 of request r0, 3 steps and 3 s old, last landed 1 steps and 1 s ago)"
    )


def test_a_lease_of_a_sequence_that_waits():
    stage = busy()
    stage.planner.waiting.add(stage.planner.running.pop(1))
    leak = the_leak(stage)
    assert (leak.kind, leak.seq) == ("lease", 1)
    assert "its sequence waits" in leak.text
    assert stage.inspect().leases[1].standing == "waiting"


def test_a_lease_that_nobody_ever_planned():
    stage = busy()
    stage.ledger.open(77)
    stage.ledger.grow(77, 8)
    leak = the_leak(stage)
    assert (leak.kind, leak.seq, leak.request, leak.age) == ("lease", 77, None, None)


def test_a_sequence_that_runs_without_a_lease():
    stage = busy()
    blocks = tuple(stage.ledger.leases.pop(1).blocks)
    seen = stage.inspect()
    assert [(x.kind, x.seq, x.request) for x in seen.leaks if x.kind != "books"] == [
        ("lost", 1, "r1"),
        ("lease", 1, "r1"),
    ]
    assert next(x for x in seen.leaks if x.kind == "lost").blocks == tuple(sorted(blocks))
    assert any("slot" in x.text for x in seen.leaks if x.kind == "books")


def test_a_block_that_was_lost_is_told_by_who_had_it_last():
    stage = busy()
    block = stage.ledger.lease(2).blocks.pop()
    lost, short = stage.inspect().leaks
    assert (lost.kind, lost.blocks, lost.seq, lost.request) == ("lost", (block,), 2, "r2")
    assert lost.age == Age(2, 2.0)
    assert (short.kind, short.seq) == ("table", 2)
    assert "4 blocks where 5 are needed" in short.text


def test_blocks_that_were_lost_by_a_sequence_that_has_ended():
    stage = busy()
    stage.land()
    blocks = list(stage.ledger.lease(1).blocks)
    stage.ledger.pool.refs[blocks[-1]] += 1  # so that the release does not free it
    stage.cancel(1)
    stage.turn(SECOND)
    lost = the_leak(stage)
    assert (lost.kind, lost.blocks, lost.seq, lost.request) == ("lost", (blocks[-1],), 1, "r1")
    assert lost.age == Age(4, 4.0)


def test_a_reference_too_many():
    stage = busy()
    block = stage.ledger.lease(1).blocks[1]
    stage.ledger.pool.refs[block] += 1
    leak = the_leak(stage)
    assert (leak.kind, leak.blocks, leak.seq, leak.request) == ("books", (block,), 1, "r1")
    assert leak.age == Age(3, 3.0)
    assert "counts 2 references, not 1" in leak.text


def test_a_fence_that_never_lands():
    stage = busy()
    stage.cancel(2)
    (fence,) = stage.inspect().fences
    assert (fence.seq, fence.request, fence.step, fence.flying) == (2, "r2", 4, True)
    assert stage.inspect().leaks == ()
    object.__setattr__(stage.ledger.fences[0], "step", 99)
    leak = the_leak(stage)
    assert (leak.kind, leak.seq, leak.request, len(leak.blocks)) == ("fence", 2, "r2", 5)
    assert leak.age == Age(2, 2.0)
    assert "step 99" in leak.text
    stage.turn()
    stage.land()
    stage.turn(SECOND)
    leak = the_leak(stage)
    assert (leak.kind, leak.seq, leak.age) == ("fence", 2, Age(3, 3.000001))


def test_a_table_that_is_too_long():
    stage = busy()
    lease = stage.ledger.lease(0)
    length = len(lease.blocks)
    stage.ledger.grow(0, 4 * length + 1)
    leak = the_leak(stage)
    assert (leak.kind, leak.seq, leak.request) == ("table", 0, "r0")
    assert leak.blocks == (lease.blocks[-1],)
    assert f"{length + 1} blocks where {length} are needed" in leak.text


def test_a_block_in_two_tables():
    stage = busy()
    block = stage.ledger.lease(0).blocks[0]
    stage.ledger.lease(2).blocks[0] = block
    kinds = {(x.kind, x.seq) for x in stage.inspect().leaks}
    assert kinds == {("books", 0), ("lost", 2)}


@pytest.mark.parametrize("every", [1, 3, 7])
def test_an_audit_comes_every_so_many_steps_while_busy(every):
    stage = Stage(40, 4, 4, Limits(64, 100), audit_every=every)
    stage.add(admit(0, [9] * 9, max_tokens=30, ignore_eos=True))
    for step in range(1, 22):
        stage.turn()
        assert gauge(stage, "kv_audits_total") == step // every
        stage.land()
    stage.drain()
    at_rest = gauge(stage, "kv_audits_total")
    stage.turn()
    assert gauge(stage, "kv_audits_total") == at_rest, "an idle moment is audited once"


def test_without_it_only_idle_moments_are_audited():
    stage = busy()
    before = gauge(stage, "kv_audits_total")
    stage.land()
    stage.turn()
    assert gauge(stage, "kv_audits_total") == before
    for seq in range(3):
        stage.cancel(seq)
    stage.inspect()  # in the last step; that is no reason to be silent when it has landed
    stage.drain()
    stage.turn()
    assert gauge(stage, "kv_audits_total") == before + 2


def test_a_problem_is_logged_once_while_it_lasts_and_counted():
    stage = busy(audit_every=1)
    block = stage.ledger.lease(1).blocks[1]
    with capture_logs() as logs:
        stage.ledger.pool.refs[block] += 1
        for _ in range(4):
            stage.land()
            stage.turn(SECOND)
        (line,) = logs
        assert line["log_level"] == "error"
        assert f"block {block} counts 2 references" in line["problems"][0]
        assert "request r1, 4 steps and 4 s old" in line["problems"][0]
        assert gauge(stage, "kv_leaked_blocks") == 1
        stage.ledger.pool.refs[block] -= 1
        stage.land()
        stage.turn()
        assert gauge(stage, "kv_leaked_blocks") == 0
        assert len(logs) == 1
        stage.ledger.pool.refs[block] += 1
        stage.land()
        stage.turn()
        assert len(logs) == 2
    stage.ledger.pool.refs[block] -= 1
