"""All drafters of a model pair, and what becomes of their guesses before they are verified.

Owned by the pair, in the launch thread. Who guesses for a row, and how far, a strategy decides. A
grammar has its say here: what it forces is a guess that costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .drafter import Drafter, StateReader, Window
from .params import Method
from .plan import Pacing, StepTimes, Undrafted
from .slots import Slot
from .strategy import Eager, Strategy, Task
from .work import Work


class Drafters:
    """One drafter per method. A sequence whose method has none here is never drafted.

    strategy: decides for every row that has room for a draft; None: all get as many guesses of
    their method as there is room for.
    """

    def __init__(
        self, drafters: Mapping[Method, Drafter], strategy: Strategy | None = None
    ) -> None:
        self._drafters = dict(drafters)
        self._strategy = strategy or Eager(drafters)
        self._readers = {m: it for m, it in drafters.items() if isinstance(it, StateReader)}
        assert len(self._readers) < 2, "the target's states go to one drafter at most"
        self.taps = next((reader.taps for reader in self._readers.values()), ())

    def open(self, slot: Slot) -> None:
        """The slot belongs to another sequence now."""
        if slot.method and (drafter := self._drafters.get(slot.method)):
            drafter.open(slot)
            self._strategy.open(slot)

    def draft(self, works: Sequence[Work]) -> None:
        """Give rows their drafts, where the plan has room for them."""
        self._strategy.begin(works)
        able = [work for work in works if work.wanted and work.slot.method in self._drafters]
        forced = [_forced(work) for work in able]
        free = [work for work, sure in zip(able, forced, strict=True) if len(sure) < work.wanted]
        if free:
            self._guess(self._strategy.assign(free))
        for work, sure in zip(able, forced, strict=True):
            # A guess that was drawn at random must not give way because of what was drawn.
            if work.odds is None and len(sure) > len(work.draft):
                work.draft, work.guesser, work.claims = sure, "grammar", None
        for work in works:
            if work.sample and not work.draft and work.undrafted is None:
                work.undrafted = self._obstacle(work)

    def learn(self, work: Work, accepted: int) -> None:
        """So many tokens of the work's draft are the sequence's, as all its known tokens are."""
        method = work.slot.method
        if method and (reader := self._readers.get(method)):
            kept = work.count + accepted
            reader.learn(work.slot, work.states if kept == work.size else work.states[:kept])
        if work.draft:
            self._strategy.judged(work, accepted)

    def landed(self, times: StepTimes, idle: float) -> Pacing | None:
        """The step that was drafted for last is done, which began so many seconds after the one
        before: what speculation was worth in it."""
        return self._strategy.landed(times, idle)

    def wish(self, work: Work) -> int:
        """Guesses that the next row of the work's sequence may be worth."""
        return self._strategy.wish(work) if work.slot.method in self._drafters else 0

    def _guess(self, tasks: Sequence[Task]) -> None:
        for method, drafter in self._drafters.items():
            own = [task for task in tasks if task.work.slot.method == method]
            if not own:
                continue
            windows = [
                Window(work.slot, work.end, k, [] if work.rejects else None) for work, k in own
            ]
            drafts = drafter.propose(windows)
            for (work, _), window, draft in zip(own, windows, drafts, strict=True):
                work.take(draft, method, odds=window.odds)

    def _obstacle(self, work: Work) -> Undrafted:
        """Why a row without a draft has none, if no strategy has said so."""
        slot = work.slot
        if slot.method not in self._drafters:
            return "off"
        if work.wanted:
            return "nothing"
        if slot.known == slot.prompt:
            return "first"
        most = slot.params.max_tokens
        if most is not None and slot.known - slot.prompt >= most - 1:
            return "end"
        return "room" if self._strategy.wish(work) else "load"


def _forced(work: Work) -> list[int]:
    processors = work.slot.processors
    return processors.forced(work.known, work.wanted) if processors else []
