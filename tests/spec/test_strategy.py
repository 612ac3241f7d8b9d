"""Who guesses for a row when the pacer decides, and what it is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
import torch
from msgspec.structs import replace

from paceline.spec.costs import Costs, Curve, DraftCosts
from paceline.spec.drafter import Drafter, Window
from paceline.spec.drafters import Drafters
from paceline.spec.pacing import Pacer
from paceline.spec.params import MAX_DRAFT, Method, SamplingParams, Speculation
from paceline.spec.plan import Opening, StepTimes
from paceline.spec.slots import Slot, Slots
from paceline.spec.strategy import Paced
from paceline.spec.suffix import SuffixDrafter
from paceline.spec.work import Work

REPEATS = (1, 2, 3, 4, 5) * 4
NOVEL = (1, 2, 3, 4, 5)


@dataclass
class Model:
    """A draft model that guesses sixes, and the windows it was shown."""

    lacks: int | None = 0
    method: Method = "draft"
    windows: list[Window] = field(default_factory=list)

    def open(self, slot: Slot) -> None:
        pass

    def lag(self, slot: Slot) -> int | None:
        return self.lacks

    def propose(self, windows: Sequence[Window]) -> list[list[int]]:
        self.windows += windows
        return [[6] * window.k for window in windows]


class Scene:
    """Drafters with a pacer for whom guesses are cheap, or cost as much as a step each."""

    def __init__(self, drafters: Sequence[Drafter], *, dear: bool = False) -> None:
        target = Curve({1: 1.0, 2: 2.0} if dear else {1: 1.0, 64: 1.5})
        self.pacer = Pacer(Costs(target, DraftCosts(Curve({1: 0.1}), Curve({1: 0.1}))))
        by_method: dict[Method, Drafter] = {it.method: it for it in drafters}
        self.drafters = Drafters(by_method, Paced(by_method, self.pacer))
        self.slots = Slots(8, 64)

    def work(
        self, output: tuple[int, ...], wanted: int = 4, *, slot: int = 0,
        method: Method | None = "draft", wish: Speculation | None = None,
    ) -> Work:  # fmt: skip
        params = SamplingParams(seed=1, speculation=wish or Speculation())
        opening = Opening(slot, slot, (6, 7, *output), params, method, prompt=2)
        opened = self.slots.open(opening)
        self.drafters.open(opened)
        work = Work(opened, 0, opened.known, True, wanted)
        work.states = torch.zeros(work.count + wanted, 0)
        return work

    def drafted(self, *works: Work) -> None:
        self.drafters.draft(works)


def test_a_model_guesses_where_nothing_is_found() -> None:
    model = Model()
    scene = Scene([SuffixDrafter(), model])
    work = scene.work(NOVEL)
    scene.drafted(work)
    assert work.guesser == "draft"
    assert set(work.draft) == {6}
    assert work.undrafted is None


def test_a_look_up_that_promises_more_stands_in_for_the_model() -> None:
    model = Model()
    scene = Scene([SuffixDrafter(), model])
    work = scene.work(REPEATS)
    scene.drafted(work)
    assert (work.draft, work.guesser) == ([1, 2, 3, 4], "suffix")
    assert work.claims
    assert not model.windows


def test_a_model_that_held_longer_is_asked_all_the_same() -> None:
    model = Model()
    scene = Scene([SuffixDrafter(), model])
    for slot in range(1, 5):
        work = scene.work(NOVEL, slot=slot)
        for _ in range(60):
            work.draft, work.guesser = [6] * 4, "draft"
            scene.drafters.learn(work, 4)
    work = scene.work(REPEATS)
    for _ in range(40):
        work.draft, work.guesser, work.claims = [1] * 4, "suffix", (0.7,) * 4
        scene.drafters.learn(work, 0)
    work.draft = []
    scene.drafted(work)
    assert work.guesser == "draft"


def test_odds_are_never_looked_up() -> None:
    model = Model()
    scene = Scene([SuffixDrafter(), model])
    work = scene.work(REPEATS, wish=Speculation(accept="rejection"))
    scene.drafted(work)
    assert work.guesser == "draft"
    assert model.windows[0].odds is not None


def test_nothing_is_guessed_where_it_cannot_pay_but_for_who_forces_it() -> None:
    model = Model()
    scene = Scene([SuffixDrafter(), model], dear=True)
    quiet = scene.work(REPEATS)
    forcing = scene.work(NOVEL, 3, slot=1, wish=Speculation(mode="force"))
    scene.drafted(quiet, forcing)
    assert (quiet.draft, quiet.undrafted) == ([], "load")
    assert forcing.draft == [6, 6, 6]
    assert [window.k for window in model.windows] == [3]
    assert scene.drafters.wish(quiet) == 0
    assert scene.drafters.wish(forcing) == MAX_DRAFT


def test_who_forces_gets_the_method_it_names() -> None:
    model = Model()
    scene = Scene([SuffixDrafter(), model])
    work = scene.work(REPEATS, wish=Speculation(mode="force", method="draft"))
    scene.drafted(work)
    assert work.guesser == "draft"


def test_a_model_that_gave_up_is_not_asked() -> None:
    model = Model(lacks=None)
    scene = Scene([model])
    work = scene.work(NOVEL)
    scene.drafted(work)
    assert (work.draft, work.undrafted) == ([], "sick")
    assert not model.windows


def test_without_a_drafter_nothing_is_wished_for() -> None:
    scene = Scene([SuffixDrafter()])
    work = scene.work(NOVEL, method=None)
    scene.drafted(work)
    assert work.undrafted == "off"
    assert scene.drafters.wish(work) == 0


def test_a_step_is_accounted_for() -> None:
    scene = Scene([SuffixDrafter(), Model()])
    works = [scene.work(NOVEL, slot=0), scene.work(REPEATS, slot=1)]
    scene.drafted(*works)
    for work in works:
        scene.drafters.learn(work, len(work.draft) - 1)
    times = StepTimes(draft=0.2, forward=1.2)
    worth = scene.drafters.landed(times, idle=0.1)
    assert worth is not None
    assert worth.guesses == len(works[0].draft)
    guesses = sum(len(work.draft) for work in works)
    assert worth.rejected == pytest.approx(worth.verify * 2 / guesses)
    prompt = Work(works[0].slot, 0, 3, False)
    scene.drafted(prompt)
    assert scene.drafters.landed(times, idle=0.1) is None


def test_a_failing_model_is_dropped_and_taken_up_by_another_sequence() -> None:
    """Guesses that never hold are soon not made; what is new is given some of the benefit."""
    scene = Scene([Model()])
    work = scene.work(NOVEL)
    made = []
    for _ in range(200):
        work.draft, work.guesser, work.undrafted = [], None, None
        scene.drafted(work)
        made.append(len(work.draft))
        if work.draft:
            scene.drafters.learn(work, 0)
    assert made[0] > 0
    assert sum(made[100:]) < 20
    assert work.undrafted in (None, "unlikely")


def test_a_request_without_pacer_is_served_as_it_asks() -> None:
    drafters = Drafters({"draft": Model()})
    slot = Slots(1, 16).open(Opening(0, 0, (1, 2), replace(SamplingParams(), seed=1), "draft"))
    work = Work(slot, 0, 2, True, 3)
    drafters.draft([work])
    assert work.draft == [6, 6, 6]
    assert drafters.wish(work) == MAX_DRAFT
    assert drafters.landed(StepTimes(), idle=0.0) is None
