"""The ledger's contract, call by call: leases, growth, fences, order, misuse."""

import pytest

from paceline.kv.blocks import BlockPool, BlockState
from paceline.kv.ledger import Ledger


def make(blocks: int = 8, block_size: int = 4, slots: int = 2) -> Ledger:
    return Ledger(blocks, block_size, slots)


def counts(ledger: Ledger) -> tuple[int, int, int]:
    found = ledger.counts()
    assert set(found) == {"total", "free", "cached", "held", "fenced"}
    assert found["cached"] == 0
    assert found["free"] + found["held"] + found["fenced"] == found["total"]
    return found["free"], found["held"], found["fenced"]


def test_open_gives_each_sequence_its_own_slot_until_there_is_none():
    ledger = make(slots=3)
    leases = [ledger.open(seq) for seq in range(3)]
    assert {lease.slot for lease in leases} == {0, 1, 2}
    assert all(lease.blocks == [] for lease in leases)
    assert ledger.free_slots == 0
    assert ledger.open(3) is None
    assert 3 not in ledger.leases


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_blocks_for_is_the_least_number_that_holds_the_tokens(block_size):
    ledger = make(block_size=block_size)
    for tokens in range(70):
        needed = ledger.blocks_for(tokens)
        assert needed * block_size >= tokens
        assert (needed - 1) * block_size < tokens or needed == 0


def test_grow_appends_only_what_is_missing():
    ledger = make()
    lease = ledger.open(7)
    first = ledger.grow(7, 5)
    assert len(first) == 2
    assert ledger.grow(7, 8) == ()
    assert ledger.grow(7, 3) == (), "a table never shrinks"
    second = ledger.grow(7, 9)
    assert len(second) == 1
    assert lease.blocks == [*first, *second]
    assert ledger.lease(7) is lease
    assert counts(ledger) == (5, 3, 0)


def test_grow_never_succeeds_in_part():
    ledger = make(blocks=4)
    ledger.open(1)
    ledger.open(2)
    ledger.grow(1, 12)
    assert ledger.grow(2, 8) is None
    assert ledger.lease(2).blocks == []
    assert counts(ledger) == (1, 3, 0)
    assert len(ledger.grow(2, 4)) == 1


@pytest.mark.parametrize("fence", [None, 0, 4, 5])
def test_release_without_a_step_in_the_air_frees_at_once(fence):
    ledger = make()
    ledger.land(5)
    ledger.open(1)
    ledger.grow(1, 8)
    ledger.release(1, fence)
    assert counts(ledger) == (8, 0, 0)
    assert ledger.free_slots == 2


def test_release_behind_a_fence_waits_for_that_step_and_no_other():
    ledger = make()
    for seq, fence in ((1, 7), (2, 6)):
        ledger.open(seq)
        ledger.grow(seq, 8)
        ledger.release(seq, fence)
    assert counts(ledger) == (4, 0, 4)
    assert (ledger.available_blocks, ledger.free_slots) == (4, 0)
    ledger.land(5)
    assert counts(ledger) == (4, 0, 4)
    ledger.land(6)
    assert counts(ledger) == (6, 0, 2)
    assert (ledger.available_blocks, ledger.free_slots) == (6, 1)
    ledger.land(7)
    assert counts(ledger) == (8, 0, 0)
    assert ledger.free_slots == 2


def test_the_very_first_step_is_in_the_air_until_it_lands():
    ledger = make()
    ledger.open(1)
    ledger.grow(1, 4)
    ledger.release(1, 0)
    assert counts(ledger) == (7, 0, 1)
    ledger.land(0)
    assert counts(ledger) == (8, 0, 0)


def test_a_step_that_lands_frees_for_all_that_were_skipped():
    ledger = make()
    ledger.open(1)
    ledger.grow(1, 4)
    ledger.release(1, 3)
    ledger.land(9)
    assert counts(ledger) == (8, 0, 0)


def test_a_preempted_sequence_opens_again_while_its_old_lease_waits():
    ledger = make()
    old = ledger.open(1)
    ledger.grow(1, 8)
    ledger.release(1, 3)
    new = ledger.open(1)
    ledger.grow(1, 8)
    assert new.slot != old.slot
    assert not set(new.blocks) & set(old.blocks)
    assert ledger.check() == []
    ledger.release(1, 4)
    ledger.land(4)
    assert counts(ledger) == (8, 0, 0)


def test_what_was_freed_last_is_handed_out_first_in_the_same_order():
    ledger = make(blocks=16, slots=3)
    for seq in (1, 2, 3):
        ledger.open(seq)
        ledger.grow(seq, 16)
    middle = ledger.lease(2)
    ledger.release(2, None)
    again = ledger.open(4)
    assert ledger.grow(4, 16) == tuple(middle.blocks)
    assert again.slot == middle.slot


@pytest.mark.parametrize(
    ("misuse", "sentence"),
    [
        (lambda x: x.open(1), "sequence 1 is open already"),
        (lambda x: (x.release(1, None), x.release(1, None)), "sequence 1 has no open lease"),
        (lambda x: (x.release(1, 9), x.release(1, 9)), "sequence 1 has no open lease"),
        (lambda x: x.grow(2, 4), "sequence 2 has no open lease"),
        (lambda x: x.lease(2), "sequence 2 has no open lease"),
        (lambda x: x.land(3), "step 3 landed after step 3"),
        (lambda x: x.land(2), "step 2 landed after step 3"),
    ],
)
def test_misuse_is_an_assertion_with_a_sentence(misuse, sentence):
    ledger = make()
    ledger.open(1)
    ledger.land(3)
    with pytest.raises(AssertionError, match=sentence):
        misuse(ledger)


def test_the_pool_refuses_to_drop_what_is_free_or_to_fence_what_is_not_held():
    pool = BlockPool(4)
    taken = pool.take(2)
    pool.fence(taken)
    with pytest.raises(AssertionError, match=f"block {taken[0]} cannot be fenced: it is FENCED"):
        pool.fence(taken)
    pool.drop(taken, BlockState.FENCED)
    with pytest.raises(AssertionError, match=f"block {taken[1]} cannot be dropped: it is FREE"):
        pool.drop(taken, BlockState.HELD)


def test_an_empty_pool_is_sound_and_gives_nothing():
    ledger = make(blocks=0)
    ledger.open(1)
    assert ledger.grow(1, 1) is None
    assert ledger.grow(1, 0) == ()
    assert ledger.check() == []
