"""Which blocks a window leaves behind, against a search over every position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.kernels.query_tiles import TILE, first_key_tile
from paceline.kv import window as windows
from paceline.kv.ledger import Ledger
from paceline.kv.window import HOLE, Window, longest_known


@pytest.mark.parametrize("tokens", [1, 5, 63, 64, 65, 128, 200])
@pytest.mark.parametrize("block_size", [4, 16, 64])
def test_the_first_block_is_where_attention_begins_to_read(tokens: int, block_size: int) -> None:
    assert windows.TILE == TILE
    window = Window(tokens, block_size, ahead=1)
    for computed in range(600):
        read = first_key_tile(computed, tokens) * TILE
        assert window.first_block(computed) * block_size == read
        assert read <= max(0, computed - tokens + 1), "a key inside the window is left out"
        later = (first_key_tile(p, tokens) * TILE for p in range(computed, computed + 130))
        assert min(later) == read


@given(st.integers(1, 300), st.sampled_from([4, 16, 64]), st.integers(1, 200), st.integers(0, 3000))
def test_no_sequence_holds_more_than_the_most(
    tokens: int, block_size: int, ahead: int, landed: int
) -> None:
    """With `ahead` tokens in the air."""
    window = Window(tokens, block_size, ahead)
    first = window.first_block(landed)
    assert -(-(landed + ahead) // block_size) - first <= window.most_blocks


@given(st.lists(st.booleans(), max_size=40), st.integers(1, 90), st.sampled_from([8, 16, 32]))
def test_a_beginning_needs_the_blocks_of_its_window_alone(
    known: list[bool], tokens: int, block_size: int
) -> None:
    window = Window(tokens, block_size, ahead=1)
    fits = [
        count
        for count in range(len(known) + 1)
        if all(known[window.first_block(count * block_size) : count])
    ]
    assert longest_known(known, window) == max(fits)
    assert longest_known(known, None) == [*known, False].index(False)


def test_a_chain_whose_head_was_evicted_is_still_found_through_a_window() -> None:
    ledger, window = Ledger(12, 16, 2), Window(20, 16, ahead=16)
    ledger.open(0)
    ledger.grow(0, 12 * 16)
    keys = [bytes([i]) for i in range(11)]
    ledger.publish(0, keys, 0)
    ledger.drop(0, 4)
    assert ledger.lease(0).blocks[:5] == [HOLE] * 4 + [4]
    assert ledger.counts()["cached"] == 4
    ledger.open(1)
    ledger.grow(1, 4 * 16)  # evicts what was dropped
    assert ledger.find(keys) == []
    found = ledger.find(keys, window=window)
    first = window.first_block(11 * 16)
    assert found == [HOLE] * first + list(range(first, 11))
    assert first >= 4
    assert ledger.check() == []


def test_the_audit_knows_holes_from_blocks_that_are_lost() -> None:
    ledger = Ledger(6, 16, 2)
    ledger.open(0)
    ledger.grow(0, 64)
    ledger.drop(0, 2)
    assert ledger.check() == []
    ledger.lease(0).blocks[1] = 1
    assert "dropped blocks that its table still names" in " ".join(ledger.check())
    ledger.lease(0).blocks[1:3] = [HOLE, HOLE]
    problems = " ".join(ledger.check())
    assert "block -1 of sequence 0 does not exist" in problems
    assert "block 2 is lost" in problems
