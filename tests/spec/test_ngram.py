"""Prompt lookup equals a scan of the whole text, however the text arrives."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.spec.drafter import Window
from paceline.spec.ngram import NgramDrafter
from paceline.spec.params import SamplingParams
from paceline.spec.plan import Opening
from paceline.spec.slots import Slots


def scan(tokens: list[int], longest: int, shortest: int, k: int) -> list[int]:
    """Longest suffix first, latest earlier occurrence first, continuing into the guesses."""
    for n in range(longest, shortest - 1, -1):
        for end in range(len(tokens) - 1, n - 1, -1):
            if tokens[end - n : end] == tokens[-n:]:
                text = list(tokens)
                for i in range(k):
                    text.append(text[end + i])
                return text[len(tokens) :]
    return []


def opened(slots: Slots, tokens: list[int], drafter: NgramDrafter, index: int = 0) -> None:
    slot = slots.open(Opening(index, index, tuple(tokens), SamplingParams(), "ngram"))
    drafter.open(slot)


texts = st.lists(st.integers(0, 3), min_size=1, max_size=60)


@given(text=texts, lengths=st.sampled_from([(4, 2), (3, 1), (2, 2), (1, 1)]), data=st.data())
@settings(deadline=None)
def test_growing_text(text: list[int], lengths: tuple[int, int], data: st.DataObject) -> None:
    longest, shortest = lengths
    slots, drafter = Slots(1, 100), NgramDrafter(longest, shortest)
    opened(slots, text, drafter)
    upto = 0
    while upto < len(text):
        upto += data.draw(st.integers(1, 7).filter(lambda n, at=upto: at + n <= len(text)))
        k = data.draw(st.integers(0, 9))
        for _ in range(data.draw(st.integers(1, 2))):
            [draft] = drafter.propose([Window(slots[0], upto, k)])
            assert draft == scan(text[:upto], longest, shortest, k)


@given(first=texts, second=texts)
@settings(deadline=None)
def test_a_slot_given_to_another_sequence_knows_nothing_of_the_last(
    first: list[int], second: list[int]
) -> None:
    slots, drafter = Slots(2, 100), NgramDrafter()
    opened(slots, first, drafter)
    opened(slots, second, drafter, index=1)
    windows = [Window(slots[0], len(first), 4), Window(slots[1], len(second), 3)]
    assert drafter.propose(windows) == [scan(first, 4, 2, 4), scan(second, 4, 2, 3)]
    opened(slots, second, drafter)
    assert drafter.propose([Window(slots[0], len(second), 4)]) == [scan(second, 4, 2, 4)]


def test_large_token_ids_are_not_confused() -> None:
    big = 2**31 - 1
    text = [1, big, 5, 0, big, 6, 1, big]
    slots, drafter = Slots(1, 100), NgramDrafter(2, 2)
    opened(slots, text, drafter)
    assert drafter.propose([Window(slots[0], len(text), 2)]) == [[5, 0]]


def test_looking_up_costs_the_same_in_a_long_text() -> None:
    """The work is counted, not timed: one look-up per length."""
    text = np.random.default_rng(0).integers(0, 50, 5000).tolist()
    slots, drafter = Slots(1, 6000), NgramDrafter()
    opened(slots, text, drafter)
    drafter.propose([Window(slots[0], len(text), 0)])
    looked: list[int] = []

    class Counted(dict[int, int]):
        def get(self, key: int, default: int | None = None) -> int | None:
            looked.append(key)
            return super().get(key, default)

    index = drafter._indexes[0]
    index._next = {n: Counted(table) for n, table in index._next.items()}
    drafter.propose([Window(slots[0], len(text), 8)])
    assert len(looked) <= 3
