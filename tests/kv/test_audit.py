"""`check()` finds corruption of every kind, names the block and its owner, and nothing else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.kv.blocks import BlockState
from paceline.kv.ledger import Lease, Ledger


def busy() -> Ledger:
    """Sequences 1 and 2 hold blocks 0-2 and 3-4, sequence 3 left 5-6 behind step 9, 7-11 free."""
    ledger = Ledger(12, 4, 4)
    for seq, tokens in ((1, 12), (2, 8), (3, 8)):
        ledger.open(seq)
        ledger.grow(seq, tokens)
    ledger.release(3, 9)
    ledger.land(8)
    assert ledger.check() == []
    return ledger


def expect(ledger: Ledger, *parts: tuple[str, ...]) -> None:
    """One sentence for each of `parts`, in any order, which contains all of its words."""
    found = ledger.check()
    assert len(found) == len(parts), found
    for words in parts:
        assert any(all(word in sentence for word in words) for sentence in found), (words, found)


def test_a_block_lost_from_a_lease():
    ledger = busy()
    ledger.lease(2).blocks.remove(4)
    expect(ledger, ("block 4", "lost", "HELD"))


def test_a_block_lost_from_the_free_list():
    ledger = busy()
    ledger.pool.free_list.remove(8)
    expect(ledger, ("block 8", "lost", "FREE"))


def test_a_lease_that_vanished_loses_its_slot_and_blocks():
    ledger = busy()
    slot = ledger.leases.pop(2).slot
    expect(ledger, ("block 3", "lost"), ("block 4", "lost"), (f"slot {slot}", "lost"))


def test_a_block_of_two_sequences():
    ledger = busy()
    ledger.lease(2).blocks.append(0)
    expect(
        ledger,
        ("block 0", "2 owners", "sequence 1", "sequence 2"),
        ("block 0", "1 references, not 2"),
    )


def test_a_block_twice_in_one_table():
    ledger = busy()
    ledger.lease(1).blocks.append(0)
    ledger.pool.refs[0] = 2
    expect(ledger, ("block 0", "2 owners", "sequence 1 and sequence 1"))


def test_a_block_freed_while_a_step_may_still_write_it():
    ledger = busy()
    ledger.pool.drop([5], BlockState.FENCED)
    expect(
        ledger,
        ("block 5", "2 owners", "the free list", "sequence 3 behind the fence of step 9"),
        ("block 5", "0 references, not 1"),
        ("block 5", "0 fences, not 1"),
    )


def sharing() -> Ledger:
    """As `busy`, and sequence 4 shares block 0 with sequence 1; block 7 is cached."""
    ledger = busy()
    ledger.publish(1, [b"0"], 0)
    ledger.open(4)
    ledger.grow(4, 4)
    ledger.publish(4, [b"7"], 0)
    ledger.release(4, None)
    ledger.open(4)
    ledger.share(4, [0])
    assert ledger.check() == []
    return ledger


def test_a_shared_block_that_lost_its_key():
    ledger = sharing()
    del ledger.pool.prefixes.blocks[ledger.pool.prefixes.keys.pop(0)]
    expect(ledger, ("block 0", "2 owners", "sequence 1 and sequence 4"))


def test_a_cached_block_that_lost_its_key():
    ledger = sharing()
    del ledger.pool.prefixes.blocks[ledger.pool.prefixes.keys.pop(7)]
    expect(ledger, ("block 7", "no key", "the prefix cache"))


def test_a_free_block_with_a_key():
    ledger = sharing()
    ledger.pool.prefixes.bind(9, b"9")
    expect(ledger, ("block 9", "has a key", "the free list"))


def test_a_cached_block_that_is_lost():
    ledger = sharing()
    ledger.pool.prefixes.idle.discard(7)
    expect(ledger, ("block 7", "lost", "CACHED"))


def test_a_cached_block_that_somebody_holds():
    ledger = sharing()
    ledger.pool.prefixes.idle.add(0, proven=True)
    expect(ledger, ("block 0", "3 owners", "the prefix cache", "sequence 1", "sequence 4"))


def test_a_shared_block_twice_in_one_table():
    ledger = sharing()
    ledger.lease(4).blocks.append(0)
    ledger.pool.refs[0] = 3
    expect(ledger, ("block 0", "3 owners", "sequence 4 and sequence 4"))


def test_a_shared_block_without_a_reference_of_one_of_its_owners():
    ledger = sharing()
    ledger.pool.refs[0] = 1
    expect(ledger, ("block 0", "1 references, not 2", "sequence 1 and sequence 4"))


def test_a_fence_that_is_not_counted():
    ledger = busy()
    ledger.pool.fences[6] = 0
    expect(ledger, ("block 6", "0 fences, not 1", "step 9"))


def test_a_key_that_stands_for_another_block():
    ledger = sharing()
    ledger.pool.prefixes.blocks[b"7"] = 0
    expect(ledger, ("block 7", "key that stands for block 0"))


def test_a_key_without_a_block():
    ledger = sharing()
    ledger.pool.prefixes.blocks[b"x"] = 3
    expect(ledger, ("3 keys", "2 blocks"))


@pytest.mark.parametrize(("block", "owner"), [(1, "sequence 1"), (6, "step 9"), (9, "free list")])
def test_a_wrong_reference_count(block, owner):
    ledger = busy()
    ledger.pool.refs[block] += 1
    expect(ledger, (f"block {block} counts", "references", owner))


@pytest.mark.parametrize(("block", "owner"), [(1, "sequence 1"), (6, "step 9"), (9, "free list")])
def test_a_wrong_state(block, owner):
    ledger = busy()
    ledger.pool.states[block] = BlockState.CACHED
    actual = BlockState.FREE if block == 9 else BlockState.HELD if block == 1 else BlockState.FENCED
    ledger.pool.tally[actual] -= 1
    ledger.pool.tally[BlockState.CACHED] += 1
    expect(ledger, (f"block {block} is marked CACHED", owner))


def test_a_wrong_tally():
    ledger = busy()
    ledger.pool.tally[BlockState.HELD] += 1
    expect(ledger, ("counts 6 HELD", "5 are marked"))


@pytest.mark.parametrize("block", [-1, 12])
def test_a_block_that_does_not_exist(block):
    ledger = busy()
    ledger.lease(2).blocks.append(block)
    expect(ledger, (f"block {block} of sequence 2 does not exist",))


def test_a_lost_slot():
    ledger = busy()
    slot = ledger._free_slots.pop()
    expect(ledger, (f"slot {slot}", "lost"))


def test_a_slot_of_two_owners():
    ledger = busy()
    ledger._free_slots.append(ledger.lease(2).slot)
    expect(ledger, (f"slot {ledger.lease(2).slot}", "2 owners", "free list", "sequence 2"))


def test_a_slot_that_does_not_exist():
    ledger = busy()
    slot, ledger.lease(2).slot = ledger.lease(2).slot, 4
    expect(ledger, ("slot 4 of sequence 2 does not exist",), (f"slot {slot}", "lost"))


def test_a_fence_whose_step_has_landed():
    ledger = busy()
    ledger.landed = 9
    expect(ledger, ("sequence 3", "step 9", "landed"))


def test_a_lease_under_another_name():
    ledger = busy()
    ledger.leases[5] = ledger.leases.pop(2)
    expect(ledger, ("sequence 2", "filed under sequence 5"))


def test_a_finding_has_its_blocks_and_its_leases():
    ledger = sharing()
    ledger.lease(2).blocks.remove(4)
    ledger.pool.refs[0] = 1
    lost, wrong = sorted(ledger.findings(), key=lambda finding: not finding.lost)
    assert (lost.blocks, lost.leases, lost.lost) == ((4,), (), True)
    assert (wrong.blocks, wrong.lost) == ((0,), False)
    assert [lease.seq for lease in wrong.leases] == [1, 4]
    ledger = busy()
    ledger.landed = 9
    (fence,) = ledger.findings()
    assert (fence.blocks, [lease.seq for lease in fence.leases]) == ((5, 6), [3])


@st.composite
def ledgers(draw) -> Ledger:
    """A sound ledger in any reachable state with at least one block."""
    ledger = Ledger(draw(st.integers(1, 20)), 1, 6)
    for seq in range(draw(st.integers(0, 6))):
        ledger.open(seq)
        ledger.grow(seq, draw(st.integers(0, 6)))
        if draw(st.booleans()):
            ledger.release(seq, draw(st.one_of(st.none(), st.integers(0, 5))))
        if draw(st.booleans()):
            ledger.land(ledger.landed + 1)
    return ledger


def owners_of(ledger: Ledger) -> list[Lease]:
    return [*ledger.leases.values(), *(fence.lease for fence in ledger.fences)]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(ledger=ledgers(), data=st.data())
def test_any_single_corruption_of_any_state_is_found_and_named(ledger, data):
    assert ledger.check() == []
    block = data.draw(st.integers(0, ledger.pool.total - 1), label="block")
    tables = [ledger.pool.free_list, *(lease.blocks for lease in owners_of(ledger))]
    kind = data.draw(st.sampled_from(["state", "reference", "lost", "owner"]), label="kind")
    if kind == "state":
        other = [x for x in BlockState if x != ledger.pool.states[block]]
        ledger.pool.states[block] = data.draw(st.sampled_from(other))
    elif kind == "reference":
        ledger.pool.refs[block] += data.draw(st.sampled_from([-1, 1, 5]))
    elif kind == "lost":
        next(table for table in tables if block in table).remove(block)
    else:
        data.draw(st.sampled_from(tables)).append(block)
    found = ledger.check()
    assert any(f"block {block} " in sentence for sentence in found), found
    assert {x.split()[1] for x in found if x.startswith("block")} == {str(block)}
