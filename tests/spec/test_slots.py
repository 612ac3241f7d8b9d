"""A slot's tokens and counts, and nothing left of its last sequence."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.spec.params import SamplingParams
from paceline.spec.plan import Opening, Row
from paceline.spec.slots import Slots


def opening(seq: int, slot: int, tokens: list[int]) -> Opening:
    return Opening(seq, slot, tuple(tokens), SamplingParams(seed=seq))


@given(
    prompt=st.lists(st.integers(0, 99), min_size=1, max_size=10),
    steps=st.lists(st.lists(st.integers(0, 99), max_size=4), max_size=8),
)
@settings(deadline=None)
def test_tokens_accumulate_and_counts_follow(prompt: list[int], steps: list[list[int]]) -> None:
    slots = Slots(2, 60)
    slot = slots.open(opening(7, 1, prompt))
    expected, computed = list(prompt), 0
    for tokens in steps:
        count = len(expected) - computed
        slot.advance(count, tokens)
        computed += count
        expected += tokens
        assert slot.tokens[: slot.known].tolist() == expected
        assert slot.computed == computed


def test_an_opening_replaces_everything() -> None:
    slots = Slots(1, 16)
    slot = slots.open(opening(1, 0, [1, 2, 3, 4]))
    slot.blocks.extend([5, 6])
    slot.advance(4, [9])
    slot.prepared = True
    slots.open(Opening(2, 0, (8, 7), SamplingParams(seed=3), "ngram"))
    assert slot.tokens[: slot.known].tolist() == [8, 7]
    assert (slot.seq, slot.computed, slot.blocks) == (2, 0, [])
    assert (slot.params.seed, slot.method) == (3, "ngram")
    assert (slot.prompt, slot.reported, slot.prepared, slot.processors) == (2, 0, False, None)


def test_an_opening_says_what_of_it_is_the_prompt() -> None:
    slot = Slots(1, 16).open(
        Opening(1, 0, (1, 2, 3, 4), SamplingParams(seed=1), prompt=3, reported=2)
    )
    assert (slot.known, slot.prompt, slot.reported) == (4, 3, 2)


def test_what_leaves_a_slot_is_shown_once_and_whole() -> None:
    slots = Slots(1, 16)
    seen: list[tuple[int, list[int]]] = []
    slot = slots.open(opening(1, 0, [1, 2]))
    slot.leaving = lambda it: seen.append((it.seq, it.tokens[: it.known].tolist()))
    slot.advance(2, [3])
    slots.open(opening(2, 0, [9, 9, 9, 9]))
    assert seen == [(1, [1, 2, 3])]
    slots.reset()
    assert len(seen) == 1
    slot = slots.open(opening(3, 0, [5]))
    slot.leaving = lambda it: seen.append((it.seq, it.tokens[: it.known].tolist()))
    slots.reset()
    slots.reset()
    assert seen[1:] == [(3, [5])]


def test_rows_must_name_the_sequence_of_their_slot() -> None:
    slots = Slots(2, 16)
    slots.open(opening(4, 1, [1]))
    assert slots.of(Row(4, 1, 1, 0, True)) is slots[1]
    with pytest.raises(AssertionError, match="holds sequence 4, not 5"):
        slots.of(Row(5, 1, 1, 0, True))
    slots.reset()
    with pytest.raises(AssertionError, match="not 4"):
        slots.of(Row(4, 1, 1, 0, True))


def test_a_full_sequence_has_room_for_one_token_sampled_ahead() -> None:
    slots = Slots(1, 4)
    slot = slots.open(opening(1, 0, [1, 2, 3, 4]))
    slot.advance(4, [5])
    assert slot.tokens[: slot.known].tolist() == [1, 2, 3, 4, 5]
