"""What a grammar makes of guesses, and who is asked for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from msgspec.structs import replace

from paceline.spec.drafter import Window
from paceline.spec.drafters import Drafters
from paceline.spec.guide import Guide
from paceline.spec.params import Grammar, Method, SamplingParams, Speculation
from paceline.spec.plan import Opening
from paceline.spec.processors import Processors
from paceline.spec.slots import Slot, Slots
from paceline.spec.work import Work
from support.automaton import Automaton, AutomatonState

VOCAB = 8
ENDS = frozenset({7})
# 1 2 3, then 4 or 5, then an end.
AUTOMATON = Automaton(({1: 1}, {2: 2}, {3: 3}, {4: 4, 5: 4}, {}), accepting=frozenset({4}))


@dataclass
class Asked:
    """A drafter with an answer ready, and the windows it was shown."""

    answer: list[int] = field(default_factory=list)
    odds: bool = False
    method: Method = "draft"
    windows: list[Window] = field(default_factory=list)
    opened: list[Slot] = field(default_factory=list)

    def open(self, slot: Slot) -> None:
        self.opened.append(slot)

    def propose(self, windows: Sequence[Window]) -> list[list[int]]:
        self.windows += windows
        drafts = [self.answer[: w.k] for w in windows]
        for window, draft in zip(windows, drafts, strict=True):
            if window.odds is not None and self.odds:
                window.odds.extend(torch.full((VOCAB,), 1 / VOCAB) for _ in draft)
        return drafts


def work_of(
    wanted: int, output: tuple[int, ...] = (), *, grammar: bool = True, rejection: bool = False
) -> Work:
    accept = "rejection" if rejection else "coupled"
    params = SamplingParams(seed=1, speculation=Speculation(accept=accept))
    slot = Slots(1, 32).open(Opening(0, 0, (6, 6, *output), params, "draft", prompt=2))
    if grammar:
        state = AutomatonState(AUTOMATON, VOCAB, ENDS)
        slot.processors = Processors(
            SamplingParams(grammar=Grammar("regex", "x")),
            prompt=2,
            longest=32,
            ends=ENDS,
            guide=Guide(state, ENDS, VOCAB),
            device="cpu",
        )
    return Work(slot, 0, slot.known, True, wanted)


def drafted(work: Work, asked: Asked) -> list[int]:
    Drafters({"draft": asked}).draft([work])
    return work.draft


def test_what_the_grammar_forces_needs_no_drafter() -> None:
    asked = Asked([4, 4, 4])
    assert drafted(work_of(2), asked) == [1, 2]
    assert not asked.windows


def test_a_longer_forced_run_replaces_a_guess() -> None:
    asked = Asked([1])
    assert drafted(work_of(5), asked) == [1, 2, 3]
    assert [window.k for window in asked.windows] == [5]


@pytest.mark.parametrize(
    ("guess", "draft"),
    [
        ([3, 4, 7, 0], [3, 4, 7]),  # nothing behind an end
        ([3, 1, 4], [3]),
        ([3, 5, 4], [3, 5]),
        ([4, 4], [3]),  # what is forced instead
    ],
)
def test_a_guess_is_cut_where_the_grammar_forbids_it(guess: list[int], draft: list[int]) -> None:
    assert drafted(work_of(4, (1, 2)), Asked(guess)) == draft


def test_without_a_grammar_a_guess_stays_as_it_is() -> None:
    asked = Asked([4, 4, 4])
    assert drafted(work_of(3, grammar=False), asked) == [4, 4, 4]
    assert asked.windows[0].odds is None


def test_a_guess_drawn_at_random_is_neither_cut_nor_replaced() -> None:
    """Its odds would no longer be what they are said to be."""
    work = work_of(5, rejection=True)
    assert drafted(work, Asked([4, 4], odds=True)) == [4, 4]
    assert work.odds is not None
    assert work.odds.shape == (2, VOCAB)
    # A certain one may be.
    work = work_of(5, rejection=True)
    assert drafted(work, Asked([4, 4])) == [1, 2, 3]
    assert work.odds is None


def test_a_row_that_wants_nothing_is_shown_to_nobody() -> None:
    asked, work = Asked([4]), work_of(0, (1,))
    assert drafted(work, asked) == []
    assert not asked.windows


def undrafted(work: Work, asked: Asked) -> str | None:
    drafted(work, asked)
    assert (work.undrafted is None) == bool(work.draft)
    return work.undrafted


def test_why_a_row_has_no_draft() -> None:
    assert undrafted(work_of(0), Asked()) == "first"
    assert undrafted(work_of(0, (1,)), Asked()) == "room"
    assert undrafted(work_of(3, (1, 2), grammar=False), Asked([])) == "nothing"
    assert undrafted(work_of(3, (1, 2), grammar=False), Asked([5])) is None
    last = work_of(0, (1, 2, 3))
    last.slot.params = replace(last.slot.params, max_tokens=4)
    assert undrafted(last, Asked()) == "end"
    nobody = work_of(3, (1, 2))
    nobody.slot.method = None
    assert undrafted(nobody, Asked([3])) == "off"
    prompt = work_of(0)
    prompt.sample = False
    Drafters({"draft": Asked()}).draft([prompt])
    assert prompt.undrafted is None


def test_drafters_open_their_own_slots_alone() -> None:
    asked = Asked()
    drafters = Drafters({"draft": asked})
    slots = Slots(3, 8)
    for i, method in enumerate(("draft", "ngram", None)):
        drafters.open(slots.open(Opening(i, i, (1,), SamplingParams(), method)))  # type: ignore[arg-type]
    assert asked.opened == [slots[0]]
