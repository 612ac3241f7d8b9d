"""The controller of speculation: against not speculating, and against the best fixed length."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.bench.pacing import BOXES, FIXED, TEXTS, Box, Errors, Fixed, Paced, Run
from paceline.spec.costs import Costs, Curve, DraftCosts
from paceline.spec.pacing import Ask, Pace, Pacer
from paceline.spec.params import MAX_DRAFT
from paceline.spec.plan import StepTimes

TOKENS = 8000


@pytest.mark.parametrize("streams", [1, 4, 8, 16, 32])
@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("box", BOXES)
def test_paced_against_off_and_against_the_best_length(box: str, text: str, streams: int) -> None:
    """Whatever the text, the machine and the load: never much slower than without speculation, and
    close to the best length in hindsight. The pacer's costs were measured with errors."""
    run = Run(BOXES[box], TEXTS[text], streams, seed=3)
    fixed = [run.rate(Fixed(k), TOKENS) for k in FIXED]
    paced = run.rate(Paced(BOXES[box].costs(Errors(5))), TOKENS)
    assert paced >= 0.97 * fixed[0]
    assert paced >= 0.95 * max(fixed)  # which has been chosen knowing how it ends


def test_costs_that_were_measured_wrong_are_found_out() -> None:
    """Measured while guesses seemed free: they are not, and that shows."""
    box = BOXES["few bits"]
    free = dict.fromkeys(box.first, 0.01)
    seemed = Box({rows: 2.5 + 0.01 * rows for rows in box.target}, free, free)
    run = Run(box, TEXTS["random"], 8, seed=3)
    assert run.rate(Paced(seemed.costs()), 20_000) > 0.94 * run.rate(Fixed(0), 20_000)


def test_a_draft_that_becomes_good_is_taken_up_again() -> None:
    """It has not been used for long; now and then a guess finds out."""
    pacer = Pacer(BOXES["few bits"].costs())
    pacer.open(0)
    used = [0, 0]
    for step in range(4000):
        good = step >= 1000
        [grant] = pacer.choose([Ask(0, 8, model=True)], 1, 1)
        if grant.model:
            pacer.guessed(0, grant.model, grant.model if good else 0)
            used[good] += 1
    assert used[0] < 150
    assert used[1] > 1500


def chosen(pacer: Pacer, asks: list[Ask], streams: int) -> int:
    return sum(c.model + c.looked_up for c in pacer.choose(asks, streams, streams))


@given(
    asks=st.lists(
        st.tuples(
            st.integers(0, 8), st.lists(st.floats(0.01, 1.0), max_size=8), st.booleans(),
            st.integers(0, 200),
        ),
        min_size=1, max_size=12,
    ),
    box=st.sampled_from(sorted(BOXES)),
    others=st.integers(0, 20),
)  # fmt: skip
@settings(deadline=None)
def test_nobody_gets_more_than_there_is(
    asks: list[tuple[int, list[float], bool, int]], box: str, others: int
) -> None:
    pacer = Pacer(BOXES[box].costs())
    wishes = []
    for slot, (most, claims, model, lag) in enumerate(asks):
        pacer.open(slot)
        wishes.append(Ask(slot, most, tuple(claims), len(claims), model, lag))
    streams = len(wishes) + others
    for _ in range(3):
        for ask, grant in zip(wishes, pacer.choose(wishes, streams, streams), strict=True):
            assert not (grant.model and grant.looked_up)
            assert grant.model <= (ask.most if ask.model else 0)
            assert grant.looked_up <= min(ask.most, ask.looked_up)
            assert (grant.undrafted is None) == bool(grant.model + grant.looked_up)


def test_the_more_streams_the_fewer_guesses_each() -> None:
    each = []
    for streams in (1, 2, 4, 8, 16):
        pacer = Pacer(BOXES["bf16"].costs())
        for slot in range(streams):
            pacer.open(slot)
        asks = [Ask(slot, 8, model=True) for slot in range(streams)]
        each.append(chosen(pacer, asks, streams) / streams)
    assert each == sorted(each, reverse=True)
    assert each[0] >= 2
    assert each[-1] < 1


def test_under_load_the_likeliest_guesses_get_the_room() -> None:
    pacer = Pacer(BOXES["few bits"].costs())
    for slot in range(8):
        pacer.open(slot)
    asks = [Ask(slot, 4, (0.97,) * 4 if slot < 2 else (0.4,) * 4, 4) for slot in range(8)]
    grants = pacer.choose(asks, 8, 8)
    assert all(grant.looked_up >= 2 for grant in grants[:2])
    assert all(grant.undrafted == "load" for grant in grants[2:])


def test_why_nothing_is_guessed() -> None:
    dear = Pacer(Costs(Curve({1: 1.0, 2: 2.0})))
    dear.open(0)
    assert dear.worth(1) == 0
    assert dear.choose([Ask(0, 4)], 1, 1)[0].undrafted == "load"
    cheap = Pacer(Costs(Curve({1: 1.0, 64: 20.0})))
    cheap.open(0)
    assert cheap.choose([Ask(0, 4)], 1, 1)[0].undrafted == "nothing"
    for _ in range(300):
        cheap.found(0, (0.5,), 1, 0)
    assert cheap.choose([Ask(0, 4, (0.5,), 1)], 1, 1)[0].undrafted == "unlikely"


def test_prompts_beside_it_change_what_a_guess_costs() -> None:
    """Where a step has many rows of prompts already, those of guesses are no longer cheap."""
    pacer = Pacer(Costs(Curve({1: 1.0, 8: 1.1, 64: 20.0, 128: 60.0})))
    pacer.open(0)
    assert pacer.worth(1) > 4
    assert pacer.worth(1, rows=65) < pacer.worth(1)


def test_a_model_that_lags_far_behind_must_promise_more() -> None:
    costs = Costs(Curve({1: 1.0, 4: 1.1}), DraftCosts(Curve({1: 0.3}), Curve({1: 0.3}), 0.1))
    for lag, model in ((0, True), (200, False)):
        pacer = Pacer(costs)
        pacer.open(0)
        assert bool(pacer.choose([Ask(0, 8, model=True, lag=lag)], 1, 1)[0].model) is model


@given(
    streams=st.integers(1, 40), guesses=st.integers(0, 60), share=st.floats(0.0, 1.0),
    prompt=st.integers(0, 200), forward=st.floats(0.001, 0.1),
)  # fmt: skip
@settings(deadline=None)
def test_what_speculation_was_worth_adds_up(
    streams: int, guesses: int, share: float, prompt: int, forward: float
) -> None:
    pacer = Pacer(BOXES["bf16"].costs())
    accepted = int(share * guesses)
    times = StepTimes(draft=0.002, forward=forward)
    worth = pacer.landed(streams, streams + prompt, guesses, accepted, times)
    assert 0.0 <= worth.rejected <= worth.verify <= forward
    assert worth.plain > 0.0
    if not guesses:
        assert worth.verify == 0.0
        assert worth.plain == pytest.approx(forward)
    if accepted == guesses:
        assert worth.rejected == 0.0


@given(st.integers(0, MAX_DRAFT), st.integers(0, 40), st.integers(0, MAX_DRAFT))
def test_room_is_asked_for_what_may_be_of_use(k: int, remaining: int, wish: int) -> None:
    room = Pace(k).next_draft(remaining, wish)
    assert 0 <= room <= min(k, wish)
    assert room < max(1, remaining)


def test_what_was_not_worth_it_is_not_thought_about_every_step() -> None:
    """But it is again before long, and at once where something is new."""
    pacer = Pacer(BOXES["few bits"].costs())
    for slot in range(2):
        pacer.open(slot)
    asks = [Ask(slot, 8) for slot in range(2)]
    assert pacer.still([0, 1], 2) is None
    assert [grant.undrafted for grant in pacer.choose(asks, 2, 2)] == ["nothing"] * 2
    rests = 0
    while (still := pacer.still([0, 1], 2)) is not None:
        assert list(still) == ["nothing"] * 2
        rests += 1
    assert 0 < rests < 20
    pacer.choose(asks, 2, 2)
    assert pacer.still([0], 2) is None
    assert pacer.still([0, 1], 2) is not None
    pacer.open(1)
    assert pacer.still([0, 1], 2) is None


def test_look_ups_that_bring_nothing_are_made_now_and_then() -> None:
    pacer = Pacer(Costs(Curve({1: 1e-3, 64: 2e-3}), look=1e-4))
    pacer.open(0)
    made = [pacer.looks([0], 4)[0] for _ in range(400)]
    assert made[0]
    assert 30 < sum(made[100:]) < 60
    for _ in range(8):
        while not pacer.looks([0], 4)[0]:
            pass
        pacer.found(0, (0.9,) * 4, 4, 4)
    assert all(pacer.looks([0], 4)[0] for _ in range(4))
