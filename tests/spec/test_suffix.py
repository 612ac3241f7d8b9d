"""Suffix drafts equal a slow scan of the whole text and of the traffic that may be seen."""

from __future__ import annotations

from itertools import accumulate
from operator import mul

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.spec import occurrences
from paceline.spec.drafter import Window
from paceline.spec.occurrences import DOUBT, DOUBT_OF_OTHERS, END, LONGEST, SURE, VOTERS, find
from paceline.spec.params import SamplingParams, Speculation
from paceline.spec.plan import Opening
from paceline.spec.slots import Slot, Slots
from paceline.spec.suffix import SuffixDrafter
from paceline.spec.suffix_memory import SuffixMemory

texts = st.lists(st.integers(0, 3), min_size=1, max_size=60)
periodic = st.builds(
    lambda head, word, times: head + word * times,
    st.lists(st.integers(0, 3), max_size=6),
    st.lists(st.integers(0, 3), min_size=1, max_size=5),
    st.integers(2, 9),
)


def matches(text: list[int], suffix: list[int]) -> tuple[int, list[int]]:
    """Longest first: what follows each place where the last `n` tokens stand."""
    for n in range(min(LONGEST, len(suffix)), 0, -1):
        after = [end for end in range(n, len(text)) if text[end - n : end] == suffix[-n:]]
        after = [end for end in after if text[end] != END]
        if after:
            return n, after
    return 0, []


def votes(
    text: list[int], length: int, after: list[int], k: int, doubt: float
) -> tuple[list[int], float]:
    """Count what follows at each place, guess by guess, in the text and the guesses behind it."""
    guesses: list[int] = []
    reached, promise = 1.0, 0.0
    after = after[-VOTERS:]
    while after and len(guesses) < k:
        so_far = text + guesses
        says = [so_far[at + len(guesses)] for at in after]
        most = max(says.count(token) for token in says)
        best = [token for token in says if says.count(token) == most][-1]
        reached *= most / (len(says) + doubt / (length + len(guesses)))
        if best == END or reached < SURE:
            break
        after = [at for at, token in zip(after, says, strict=True) if token == best]
        guesses.append(best)
        promise += reached
    return guesses, promise


def slowly(own: list[int], others: list[list[int]], k: int) -> tuple[list[int], float]:
    length, after = matches(own, own)
    traffic = [token for text in others for token in (*text, END)]
    there, places = matches(traffic, own)
    if there > length:
        return votes(traffic, there, places, k, DOUBT_OF_OTHERS)
    return votes(own, length, after, k, DOUBT)


def opened(
    slots: Slots,
    tokens: list[int],
    drafter: SuffixDrafter,
    index: int = 0,
    *,
    salt: str = "",
    memory: bool = True,
) -> Slot:
    params = SamplingParams(cache_salt=salt, speculation=Speculation(memory=memory))
    slot = slots.open(Opening(index, index, tuple(tokens), params, "suffix"))
    drafter.open(slot)
    return slot


def agrees(drafter: SuffixDrafter, slot: Slot, k: int, others: list[list[int]]) -> None:
    window = Window(slot, slot.known, k)
    guess = drafter.guess(window)
    tokens, promise = slowly(slot.tokens[: slot.known].tolist(), others, k)
    assert guess.tokens == tokens
    assert guess.claims is not None
    reached = list(accumulate(guess.claims, mul))
    assert sum(reached) == pytest.approx(promise)
    assert len(guess.tokens) <= k
    assert len(guess.claims) == len(guess.tokens)
    assert drafter.propose([window, window]) == [tokens, tokens]


@given(text=texts | periodic, data=st.data())
@settings(deadline=None)
def test_growing_text(text: list[int], data: st.DataObject) -> None:
    slots, drafter = Slots(1, 100), SuffixDrafter()
    slot = opened(slots, text[:1], drafter)
    while slot.known < len(text):
        agrees(drafter, slot, data.draw(st.integers(0, 9)), [])
        slot.advance(1, text[slot.known : slot.known + data.draw(st.integers(1, 7))])
    agrees(drafter, slot, 16, [])


@given(own=texts, others=st.lists(texts, max_size=5), k=st.integers(1, 16))
@settings(deadline=None)
def test_texts_of_recent_traffic(own: list[int], others: list[list[int]], k: int) -> None:
    slots, drafter = Slots(1, 100), SuffixDrafter(10_000)
    for text in others:
        opened(slots, text, drafter)
    slot = opened(slots, own, drafter)
    agrees(drafter, slot, k, [text for text in others if len(text) > 1])


@given(own=texts, others=st.lists(texts, max_size=3))
@settings(deadline=None)
def test_without_a_memory_a_slot_knows_nothing_of_its_last_sequence(
    own: list[int], others: list[list[int]]
) -> None:
    slots, drafter = Slots(1, 100), SuffixDrafter()
    for text in others:
        opened(slots, text, drafter)
    agrees(drafter, opened(slots, own, drafter), 8, [])


@pytest.mark.parametrize("period", [1, 2, 5, 40])
def test_a_period_goes_on_behind_the_end(period: int) -> None:
    text = [i % period for i in range(4 * period + 20)]
    slots, drafter = Slots(1, 200), SuffixDrafter()
    guess = drafter.guess(Window(opened(slots, text, drafter), len(text), 16))
    assert guess.tokens == [i % period for i in range(len(text), len(text) + 16)]


def test_a_longer_match_brings_more_guesses() -> None:
    text = list(range(100, 160))
    counts = []
    for length in (1, 2, 4, 8):
        slots, drafter = Slots(1, 200), SuffixDrafter()
        slot = opened(slots, [*text, 7, *text[20 : 20 + length]], drafter)
        guess = drafter.guess(Window(slot, slot.known, 16))
        assert guess.tokens == text[20 + length :][: len(guess.tokens)]
        counts.append(len(guess.tokens))
    assert counts == sorted(set(counts))
    assert counts[0] == 1


def test_a_match_is_looked_for_no_further_than_the_longest() -> None:
    text = np.arange(200)
    assert find(text, text[:100]).length == LONGEST
    assert find(text, text[:5]).length == 5
    assert find(text, np.array([3, 900])).length == 0


def test_large_tokens_are_not_confused() -> None:
    big = 2**31 - 1
    slots, drafter = Slots(1, 20), SuffixDrafter(100)
    opened(slots, [big - 1, big, 8, 8], drafter)
    slot = opened(slots, [1, big, 5, 0, big, 6, 1, big], drafter)
    assert drafter.guess(Window(slot, 8, 2)).tokens == [5, 0]


def test_the_work_is_bounded_where_a_text_repeats_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of very many occurrences the latest ones are compared."""
    compared: list[int] = []
    where = occurrences.np.minimum

    def counting(lengths: np.ndarray, most: np.ndarray) -> np.ndarray:
        compared.append(lengths.size)
        return where(lengths, most)

    monkeypatch.setattr(occurrences.np, "minimum", counting)
    for text in (np.ones(5000, dtype=np.int64), np.arange(5000) % 3):
        match = find(text[:-1], text)
        assert match.length == LONGEST
        assert match.after[-1] == 4999 if text[0] else 4997
    assert max(compared) <= 128


# --- the memory ------------------------------------------------------------------------------

sharing = st.lists(
    st.tuples(st.sampled_from(["", "a", "b"]), st.lists(st.integers(0, 9), max_size=12)),
    max_size=20,
)


@given(bound=st.integers(0, 30), added=sharing)
@settings(deadline=None)
def test_the_oldest_texts_leave_first_and_the_bound_holds(
    bound: int, added: list[tuple[str, list[int]]]
) -> None:
    memory = SuffixMemory(bound)
    held: list[tuple[str, list[int]]] = []
    for salt, text in added:
        memory.add(salt, np.array(text, dtype=np.int64))
        text = text[max(0, len(text) - bound) :]
        if len(text) > 1:
            held.append((salt, text))
        while sum(len(text) for _, text in held) > bound:
            held.pop(0)
        assert memory.held == sum(len(text) for _, text in held) <= bound
        for own in ("", "a", "b"):
            texts = [token for it, text in held if it == own for token in (*text, END)]
            assert memory.texts(own).tolist() == texts
            # Nothing of what left is kept behind a view.
            assert memory.texts(own).base is None
    assert memory.texts("never seen").size == 0


LESSON = [5, 6, 7, 8, 9, 10, 11]


def guessed(slots: Slots, drafter: SuffixDrafter, **wish: object) -> list[int]:
    """What a request that begins the lesson is told; it leaves no trace."""
    slot = opened(slots, [1, *LESSON[:4]], drafter, 1, **wish)  # type: ignore[arg-type]
    slot.leaving = None
    return drafter.guess(Window(slot, slot.known, 1)).tokens


def test_salts_do_not_see_each_other() -> None:
    slots, drafter = Slots(2, 20), SuffixDrafter(100)
    opened(slots, LESSON, drafter, salt="a")
    opened(slots, [1], drafter, salt="b")
    assert guessed(slots, drafter, salt="a") == [9]
    assert guessed(slots, drafter, salt="b") == []
    assert guessed(slots, drafter) == []


def test_who_forbids_the_memory_neither_reads_nor_feeds_it() -> None:
    slots, drafter = Slots(2, 20), SuffixDrafter(100)
    opened(slots, LESSON, drafter, memory=False)
    opened(slots, [1], drafter)
    assert guessed(slots, drafter) == []
    opened(slots, LESSON, drafter)
    opened(slots, [1], drafter)
    assert guessed(slots, drafter, memory=False) == []
    assert guessed(slots, drafter) == [9]


def test_a_text_is_remembered_whole_when_its_slot_passes_on() -> None:
    slots, drafter = Slots(2, 20), SuffixDrafter(100)
    slot = opened(slots, LESSON[:3], drafter)
    slot.advance(3, LESSON[3:])
    assert guessed(slots, drafter) == []
    # To a sequence that nobody drafts, and that is longer.
    slots.open(Opening(7, 0, tuple(range(30, 45)), SamplingParams()))
    assert guessed(slots, drafter) == [9]
    # What follows was not drafted by suffixes, so it is not remembered.
    slots.open(Opening(8, 0, (1,), SamplingParams()))
    slot = opened(slots, [33, 34, 35], drafter, 1)
    assert drafter.guess(Window(slot, 3, 4)).tokens == []


def test_texts_are_remembered_when_all_slots_are_reset() -> None:
    slots, drafter = Slots(2, 20), SuffixDrafter(100)
    opened(slots, LESSON, drafter)
    slots.reset()
    slots.reset()
    assert guessed(slots, drafter) == [9]


def test_own_text_goes_before_the_memory_at_equal_length() -> None:
    slots, drafter = Slots(1, 40), SuffixDrafter(100)
    opened(slots, [5, 6, 7, 1, 1], drafter)
    slot = opened(slots, [3, 6, 7, 2, 2, 0, 6, 7], drafter)
    assert drafter.guess(Window(slot, slot.known, 1)).tokens == [2]
    slot = opened(slots, [3, 6, 7, 2, 2, 5, 6, 7], drafter)
    assert drafter.guess(Window(slot, slot.known, 1)).tokens == [1]
