"""All drafters of a model pair, and what becomes of their guesses before they are verified.

Owned by the pair, in the launch thread. A grammar has its say here: what it forces is a guess that
costs nothing, and a guess that it forbids is not worth verifying.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from .beside import Beside
from .drafter import Drafter, StateReader, Window
from .params import Method
from .slots import Slot
from .suffix import SuffixDrafter
from .work import Work


class Drafters:
    """One drafter per method. A sequence whose method has none here is never drafted. Where a model
    drafts and suffix drafts are here too, these stand in for the model when they promise more."""

    def __init__(self, drafters: Mapping[Method, Drafter]) -> None:
        self._drafters = dict(drafters)
        suffix = drafters.get("suffix")
        self._beside = Beside(suffix) if isinstance(suffix, SuffixDrafter) else None
        self._readers = {m: it for m, it in drafters.items() if isinstance(it, StateReader)}
        assert len(self._readers) < 2, "the target's states go to one drafter at most"
        self.taps = next((reader.taps for reader in self._readers.values()), ())

    def open(self, slot: Slot) -> None:
        """The slot belongs to another sequence now."""
        if slot.method and (drafter := self._drafters.get(slot.method)):
            drafter.open(slot)
            if self._beside and slot.method == "draft":
                self._beside.open(slot)

    def draft(self, works: Sequence[Work]) -> None:
        """Show every drafter its rows, and take its guesses where the plan wants some."""
        forced = [_forced(work) for work in works]
        for method, drafter in self._drafters.items():
            own = [i for i, work in enumerate(works) if work.slot.method == method]
            if not own:
                continue
            windows = [_window(works[i], forced[i]) for i in own]
            if self._beside and method == "draft":
                windows = self._look_up([works[i] for i in own], windows)
            for i, window, draft in zip(own, windows, drafter.propose(windows), strict=True):
                _take(works[i], draft or works[i].draft, window.odds)
        for work, sure in zip(works, forced, strict=True):
            # A guess that was drawn at random must not give way because of what was drawn.
            if work.odds is None and len(sure) > len(work.draft):
                work.draft, work.looked_up = sure, True

    def learn(self, work: Work, accepted: int) -> None:
        """So many tokens of the work's draft are the sequence's, as all its known tokens are."""
        slot = work.slot
        if slot.method and (reader := self._readers.get(slot.method)):
            reader.learn(slot, work.states[: work.count + accepted])
        if self._beside and slot.method == "draft" and work.draft and not work.looked_up:
            self._beside.judged(slot, accepted)

    def _look_up(self, works: Sequence[Work], windows: Sequence[Window]) -> list[Window]:
        """Give works their draft where a look-up promises more than the model, which then only
        keeps up."""
        assert self._beside
        left = []
        for work, window in zip(works, windows, strict=True):
            work.draft = self._beside.better(window)
            work.looked_up = bool(work.draft)
            left.append(replace(window, k=0) if work.looked_up else window)
        return left


def _forced(work: Work) -> list[int]:
    processors = work.slot.processors
    return processors.forced(work.known, work.wanted) if processors and work.wanted else []


def _window(work: Work, forced: Sequence[int]) -> Window:
    """The drafter's task: nothing but to keep up where the grammar forces a whole draft."""
    wanted = 0 if len(forced) == work.wanted else work.wanted
    return Window(work.slot, work.end, wanted, [] if work.rejects else None)


def _take(work: Work, draft: list[int], odds: list[Tensor] | None) -> None:
    """Give the work its draft, cut where the grammar forbids it. A guess that was drawn at random
    is left for rejection sampling to judge: to drop some would change the odds of the others."""
    if draft and odds:
        work.odds = torch.stack(odds)
    elif draft and (processors := work.slot.processors):
        draft = processors.legal(work.known, draft)
    work.draft = draft
