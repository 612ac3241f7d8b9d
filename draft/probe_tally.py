"""What a probe counts of the steps of one run. Pure; told by the engine's metrics as a Watcher.

Acceptance is counted over all drafts. Time is taken from steps alone that are what the run is
about: every one of `batch` sequences samples, and none of them for the first time, since such a
step has read a prompt.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ..spec.params import MAX_DRAFT
from ..spec.plan import StepDone


class Tally:
    """Counts of the runs of `batch` sequences at once with one method.

    drafted_at, reached_at, held_at: by place in the draft, how many drafts had a guess there, had
    one there and all before it held, had one there that held. timed: steps of which the time was
    taken; seconds: from one landing to the next, the part of the drafter (draft_seconds) and of
    the target's forward (forward_seconds), sums over those; timed_guesses: guesses in them.
    """

    def __init__(self, batch: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.batch = batch
        self.drafts = 0
        self.drafted_at = [0] * MAX_DRAFT
        self.reached_at = [0] * MAX_DRAFT
        self.held_at = [0] * MAX_DRAFT
        self.timed = 0
        self.timed_guesses = 0
        self.seconds = 0.0
        self.draft_seconds = 0.0
        self.forward_seconds = 0.0
        self._clock = clock
        self._last = 0.0
        self._begun: set[int] = set()

    @property
    def drafted(self) -> int:
        return sum(self.drafted_at)

    @property
    def accepted(self) -> int:
        return sum(self.held_at)

    def draft(self, method: str, drafted: int, accepted: int) -> None:
        """One verified draft: its first `accepted` guesses held."""
        self.drafts += 1
        for i in range(drafted):
            self.drafted_at[i] += 1
            self.reached_at[i] += i <= accepted
            self.held_at[i] += i < accepted

    def step(self, done: StepDone) -> None:
        """A step has landed just now."""
        now = self._clock()
        sampled = {row.seq for row in done.rows if row.tokens}
        # Rows without tokens are parts of prompts. Sequences that have begun sampled in the step
        # before too, so that the time since then is this step's and not the engine's leisure.
        if len(done.rows) == len(sampled) == self.batch and sampled <= self._begun:
            self.timed += 1
            self.timed_guesses += sum(row.drafted for row in done.rows)
            self.seconds += now - self._last
            self.draft_seconds += done.times.draft
            self.forward_seconds += done.times.forward
        self._begun |= sampled
        self._last = now
