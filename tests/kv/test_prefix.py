"""Keys of blocks, and the ledger's books of what is shared, cached and evicted, call by call."""

import numpy as np
import pytest

from paceline.kv.ledger import Ledger
from paceline.kv.prefix import KEY_BYTES, Chain

TOKENS = list(range(100, 120))


def keys(tokens, salt="", size=4):
    chain = Chain(salt, size)
    chain.cover(tokens)
    return chain.keys


def test_there_is_a_key_for_every_full_block_and_for_no_other():
    for count in range(len(TOKENS) + 1):
        assert keys(TOKENS[:count]) == keys(TOKENS)[: count // 4]
    assert all(len(key) == KEY_BYTES for key in keys(TOKENS))


def test_a_chain_that_grows_is_the_one_made_at_once():
    chain = Chain("", 4)
    for count in (0, 3, 4, 4, 9, 20):
        chain.cover(TOKENS[:count])
    assert chain.keys == keys(TOKENS)


def test_a_key_stands_for_all_tokens_up_to_it():
    changed = keys([TOKENS[0] + 1, *TOKENS[1:]])
    assert not set(changed) & set(keys(TOKENS))
    assert keys([7] * 8)[0] != keys([7] * 8)[1]
    assert not set(keys(TOKENS[4:])) & set(keys(TOKENS))
    assert keys([2**62, 1, 2, 3]) != keys([2**61, 1, 2, 3])


def test_roots_tell_apart_salts():
    salts = ["", "a", "\0", "\ud800"]
    assert len({keys(TOKENS, salt)[0] for salt in salts}) == len(salts)


def test_an_array_of_tokens_has_the_keys_of_the_list():
    assert keys(np.array(TOKENS)) == keys(TOKENS)


def published(blocks: int = 8, used: int = 3) -> tuple[Ledger, list[bytes]]:
    """Sequence 1 holds `used` full blocks that can be found."""
    ledger = Ledger(blocks, 4, 4)
    ledger.open(1)
    ledger.grow(1, 4 * used)
    ledger.publish(1, keys(TOKENS)[:used], 0)
    return ledger, keys(TOKENS)


def counts(ledger: Ledger) -> tuple[int, int, int, int]:
    assert ledger.check() == []
    found = ledger.counts()
    return found["free"], found["cached"], found["held"], found["fenced"]


def test_a_shared_block_is_held_until_its_last_holder_lets_go():
    ledger, chain = published()
    blocks = ledger.lease(1).blocks
    assert ledger.find(chain) == blocks
    ledger.open(2)
    ledger.share(2, ledger.find(chain)[:2])
    assert ledger.lease(2).blocks == blocks[:2]
    ledger.release(1, None)
    assert counts(ledger) == (5, 1, 2, 0)
    ledger.release(2, None)
    assert counts(ledger) == (5, 3, 0, 0)
    assert ledger.available_blocks == 8


def test_a_fence_keeps_its_reference_while_others_come_and_go():
    ledger, chain = published()
    ledger.release(1, 5)
    assert counts(ledger) == (5, 0, 0, 3)
    ledger.open(2)
    ledger.share(2, ledger.find(chain))
    assert counts(ledger) == (5, 0, 3, 0)
    ledger.release(2, None)
    assert counts(ledger) == (5, 0, 0, 3)
    ledger.land(5)
    assert counts(ledger) == (5, 3, 0, 0)


def test_cached_blocks_are_evicted_last_of_all_and_from_the_end_of_their_chain():
    ledger, chain = published()
    blocks = list(ledger.lease(1).blocks)
    ledger.release(1, None)
    ledger.open(2)
    ledger.grow(2, 4 * 5)
    assert counts(ledger) == (0, 3, 5, 0)
    for left in (2, 1, 0):
        ledger.grow(2, 4 * (8 - left))
        assert ledger.find(chain) == blocks[:left]
    assert ledger.lease(2).blocks[5:] == blocks[::-1]
    assert ledger.grow(2, 4 * 9) is None


def test_what_was_found_again_is_evicted_later():
    ledger, chain = published(blocks=4, used=1)
    other = keys([1, 2, 3, 4])
    ledger.open(2)
    ledger.grow(2, 4)
    ledger.publish(2, other, 0)
    ledger.release(1, None)
    ledger.release(2, None)
    ledger.open(3)
    ledger.share(3, ledger.find(chain))
    ledger.release(3, None)
    ledger.open(4)
    ledger.grow(4, 12)
    assert (len(ledger.find(chain)), ledger.find(other)) == (1, [])


def kept(chains: dict[str, list[bytes]], ledger: Ledger) -> dict[str, int]:
    return {name: len(ledger.find(chain)) for name, chain in chains.items()}


def test_what_was_never_found_goes_before_what_was_however_long_that_has_been_idle():
    ledger = Ledger(8, 4, 2)
    chains = {name: keys([i] * 16) for i, name in enumerate(("old", "new"))}
    for chain in chains.values():
        ledger.open(1)
        ledger.grow(1, 16)
        ledger.publish(1, chain, 0)
        ledger.release(1, None)
        if chain is chains["old"]:
            ledger.open(2)
            ledger.share(2, ledger.find(chain))
            ledger.release(2, None)
    ledger.open(3)
    for taken, left in ((3, (4, 1)), (4, (4, 0)), (5, (3, 0))):
        ledger.grow(3, 4 * taken)
        assert kept(chains, ledger) == dict(zip(("old", "new"), left, strict=True))


def test_what_a_table_leaves_beyond_its_share_goes_before_all_else():
    ledger = Ledger(12, 4, 4)
    chains = {"short": keys([1] * 8), "long": keys([2] * 32)}
    assert ledger.fair_share == 3
    for seq, chain in enumerate(chains.values()):
        ledger.open(seq)
        ledger.grow(seq, 4 * len(chain))
        ledger.publish(seq, chain, 0)
        ledger.release(seq, None)
    ledger.open(3)
    ledger.grow(3, 4 * 7)
    assert kept(chains, ledger) == {"short": 2, "long": 3}
    ledger.grow(3, 4 * 8)
    assert kept(chains, ledger) == {"short": 1, "long": 3}


def test_the_first_to_publish_a_key_keeps_it():
    ledger, chain = published(used=1)
    ledger.open(2)
    ledger.grow(2, 4)
    ledger.publish(2, chain[:1], 0)
    ledger.publish(1, chain[1:2], 0)
    assert ledger.find(chain) == ledger.lease(1).blocks
    ledger.release(2, None)
    assert counts(ledger) == (7, 0, 1, 0)


def test_a_chain_may_run_through_blocks_of_several_sequences():
    ledger, chain = published(used=1)
    ledger.open(2)
    ledger.grow(2, 8)
    ledger.publish(2, chain[1:2], 1)
    assert ledger.find(chain) == [*ledger.lease(1).blocks, ledger.lease(2).blocks[1]]
    assert ledger.find(chain[1:]) == [ledger.lease(2).blocks[1]]


def test_misuse_is_an_assertion_with_a_sentence():
    ledger, chain = published()
    with pytest.raises(AssertionError, match="sequence 1 has blocks already"):
        ledger.share(1, ledger.find(chain))
    ledger.open(2)
    with pytest.raises(AssertionError, match="block 7 cannot be shared: it is FREE"):
        ledger.share(2, [7])
    with pytest.raises(AssertionError, match="block 7 cannot be published: it is FREE"):
        ledger.pool.publish(7, b"key")
