"""Who guesses for the rows of a step, and how far: as far as there is room, or as the pacer says.

Used by `drafters`. Guesses of look-ups are taken here, since whether they are worth a place depends
on the guesses; what a model is to guess is handed back as tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple, Protocol

from .drafter import Drafter, Follower, LookUp, Window
from .occurrences import NOTHING, Guess
from .pacing import Ask, Pacer
from .params import MAX_DRAFT, Method
from .plan import Pacing, StepTimes
from .slots import Slot
from .work import Work


class Task(NamedTuple):
    """So many guesses are wanted from the drafter of the work's method."""

    work: Work
    k: int


class Strategy(Protocol):
    """All calls concern sequences of methods that have a drafter."""

    def open(self, slot: Slot) -> None:
        """The slot belongs to another sequence now."""
        ...

    def begin(self, works: Sequence[Work]) -> None:
        """All rows of a step that is about to be drafted for."""
        ...

    def assign(self, works: Sequence[Work]) -> list[Task]:
        """Rows with room for a draft: give some their guesses, name tasks for others, and say of
        those that are to have neither why they are not drafted."""
        ...

    def judged(self, work: Work, accepted: int) -> None:
        """Of the work's draft so many guesses held."""
        ...

    def landed(self, times: StepTimes, idle: float) -> Pacing | None:
        """The step is done, which began so many seconds after the one before: what speculation was
        worth in it, if any row sampled."""
        ...

    def wish(self, work: Work) -> int:
        """Guesses that the next row of the work's sequence may be worth."""
        ...


class Eager:
    """As many guesses as there is room for, from the drafter of the sequence's method."""

    def __init__(self, drafters: Mapping[Method, Drafter]) -> None:
        self._look_ups = look_ups(drafters)

    def open(self, slot: Slot) -> None:
        pass

    def begin(self, works: Sequence[Work]) -> None:
        pass

    def assign(self, works: Sequence[Work]) -> list[Task]:
        tasks = []
        for work in works:
            method = work.slot.method
            if method and (look_up := self._look_ups.get(method)):
                guess = look_up.guess(Window(work.slot, work.end, work.wanted))
                work.take(guess.tokens, method)
            else:
                tasks.append(Task(work, work.wanted))
        return tasks

    def judged(self, work: Work, accepted: int) -> None:
        pass

    def landed(self, times: StepTimes, idle: float) -> Pacing | None:
        return None

    def wish(self, work: Work) -> int:
        return MAX_DRAFT


@dataclass(slots=True)
class _Step:
    """streams: rows that sample. rows: of all kinds, without drafts. guesses: that were verified,
    accepted: those that held. rounds, models, lag: of the model, how far at most, for how many
    rows, and what they lacked together."""

    streams: int = 0
    rows: int = 0
    guesses: int = 0
    accepted: int = 0
    rounds: int = 0
    models: int = 0
    lag: int = 0


class Paced:
    """What makes the most tokens a second, by the pacer. Where a model drafts and suffix drafts are
    here too, these stand in for it when they promise more. Requests that force their way get as
    many guesses as there is room for."""

    def __init__(self, drafters: Mapping[Method, Drafter], pacer: Pacer) -> None:
        self._eager = Eager(drafters)
        self._look_ups = look_ups(drafters)
        self._followers = {m: it for m, it in drafters.items() if isinstance(it, Follower)}
        self._pacer = pacer
        self._step = _Step()

    def open(self, slot: Slot) -> None:
        self._pacer.open(slot.index)
        if slot.method == "draft" and (beside := self._look_ups.get("suffix")):
            beside.open(slot)

    def begin(self, works: Sequence[Work]) -> None:
        self._step = _Step(sum(work.sample for work in works), sum(work.count for work in works))

    def assign(self, works: Sequence[Work]) -> list[Task]:
        tasks = self._eager.assign([work for work in works if _forces(work)])
        self._pace([work for work in works if not _forces(work)], tasks)
        step = self._step
        step.rounds, step.models = max((task.k for task in tasks), default=0), len(tasks)
        step.lag = sum(self._lag(task.work) or 0 for task in tasks)
        return tasks

    def judged(self, work: Work, accepted: int) -> None:
        self._step.guesses += len(work.draft)
        self._step.accepted += accepted
        if _forces(work) or work.guesser == "grammar":
            return
        if work.guesser == "draft":
            self._pacer.guessed(work.slot.index, len(work.draft), accepted)
        else:
            self._pacer.found(work.slot.index, work.claims, len(work.draft), accepted)

    def landed(self, times: StepTimes, idle: float) -> Pacing | None:
        step = self._step
        if not step.streams:
            return None
        self._pacer.costs.waited(idle, step.streams)
        if step.models and (drafting := self._pacer.costs.draft):
            drafting.correct(step.rounds, step.models, step.lag, times.draft)
        return self._pacer.landed(
            step.streams, step.rows, step.guesses, step.accepted, times, step.rounds
        )

    def wish(self, work: Work) -> int:
        return MAX_DRAFT if _forces(work) else self._pacer.worth(max(1, self._step.streams))

    def _pace(self, works: Sequence[Work], tasks: list[Task]) -> None:
        """Give works what the pacer chooses for them."""
        if not works:
            return
        step = self._step
        most = self._pacer.worth(step.streams, step.rows)
        least = self._pacer.least(step.streams, step.rows)
        guesses = self._look_up_all(works, most, least)
        if not any(guess.tokens for guess in guesses):
            slots = [work.slot.index for work in works]
            if (still := self._pacer.still(slots, step.streams)) is not None:
                for work, reason in zip(works, still, strict=True):
                    work.undrafted = reason
                return
        asks = [self._ask(work, guess) for work, guess in zip(works, guesses, strict=True)]
        grants = self._pacer.choose(asks, step.streams, step.rows)
        for work, guess, grant in zip(works, guesses, grants, strict=True):
            if grant.model:
                tasks.append(Task(work, grant.model))
            elif grant.looked_up:
                method = work.slot.method if work.slot.method in self._look_ups else "suffix"
                work.take(guess.tokens[: grant.looked_up], method, claims=guess.claims)
            gave_up = grant.undrafted == "nothing" and self._gave_up(work)
            work.undrafted = "sick" if gave_up else grant.undrafted

    def _look_up_all(self, works: Sequence[Work], most: int, least: float) -> list[Guess]:
        """Guesses for the works for which it is worth looking."""
        if not most:
            return [NOTHING] * len(works)
        looks = self._pacer.looks([work.slot.index for work in works], self._step.streams)
        begun = perf_counter()
        guesses = [
            self._look_up(work, min(most, work.wanted), least) if looking else NOTHING
            for work, looking in zip(works, looks, strict=True)
        ]
        self._pacer.costs.looked(sum(looks), perf_counter() - begun)
        return guesses

    def _look_up(self, work: Work, k: int, least: float) -> Guess:
        """Guesses of the work's look-up, or of the one beside its model. They have no odds."""
        look_up = self._look_ups.get(work.slot.method or "suffix", self._look_ups.get("suffix"))
        if work.rejects or look_up is None:
            return NOTHING
        return look_up.guess(Window(work.slot, work.end, k, least=least))

    def _ask(self, work: Work, guess: Guess) -> Ask:
        lag = None if work.slot.method in self._look_ups else self._lag(work)
        return Ask(
            work.slot.index,
            work.wanted,
            guess.claims,
            len(guess.tokens),
            lag is not None,
            lag or 0,
        )

    def _gave_up(self, work: Work) -> bool:
        return work.slot.method not in self._look_ups and self._lag(work) is None

    def _lag(self, work: Work) -> int | None:
        follower = self._followers.get(work.slot.method or "draft")
        return follower.lag(work.slot) if follower else 0


def look_ups(drafters: Mapping[Method, Drafter]) -> dict[Method, LookUp]:
    """Those that look their guesses up."""
    return {m: it for m, it in drafters.items() if isinstance(it, LookUp)}


def _forces(work: Work) -> bool:
    return work.slot.params.speculation.mode == "force"
