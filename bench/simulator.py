"""The planner and the judge on a virtual clock: traffic without a model.

A step takes as long as a `Cost` says and its tokens are invented, but who is admitted, what a step
computes, who gives way and what the prefix cache holds is decided by the code that serves. Called
by `simulate` and by the tests of the planner.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from ..actors.messages import Admit, Verdict
from ..actors.planner import Closed, Limits, Planner
from ..actors.sequence import Sequence
from ..kv.ledger import Ledger
from ..spec.judge import Bounds, Judge
from ..spec.pacing import Pace
from ..spec.params import Method, SamplingParams
from ..spec.plan import Row, RowDone, StepPlan

NEW_TOKEN = 1 << 20
"""Invented tokens are from here on: unlike any that a prompt may hold."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a step: `fixed`, and `token` for each of its tokens, guesses included. Behind
    `far` positions a token costs twice as much, behind twice as many three times."""

    fixed: float = 0.015
    token: float = 0.0007
    far: float = float("inf")

    def of(self, rows: Iterable[tuple[int, int]]) -> float:
        """rows: how many tokens at the first position of each."""
        return self.fixed + self.token * sum(count * (1 + at / self.far) for count, at in rows)


@dataclass(frozen=True, slots=True)
class Visit:
    """A request to come: when, with which prompt, for how many tokens. leaves: when the client goes
    away, if it does. accepts: how likely a guess holds if all before it do."""

    at: float
    prompt: tuple[int, ...]
    output: int
    priority: int = 0
    method: Method | None = None
    k: int = 0
    accepts: float = 0.6
    salt: str = ""
    leaves: float | None = None


@dataclass(slots=True)
class Story:
    """What became of a visit. times: of each token, when its step landed. reason: why it ended."""

    visit: Visit
    times: list[float] = field(default_factory=list)
    reason: str = ""
    cached: int = 0
    preemptions: int = 0

    @property
    def first(self) -> float:
        """Seconds from the visit to its first token."""
        return self.times[0] - self.visit.at

    def gaps(self, begin: float = 0.0, end: float = float("inf")) -> list[float]:
        """Seconds between steps that brought tokens, those that end within a stretch of time."""
        steps = pairwise(sorted(set(self.times)))
        return [later - earlier for earlier, later in steps if begin <= later <= end]


class Simulator:
    """A ledger, a planner and a judge, and one device that computes a step after the other.

    steps: what was launched, with the time at which it landed. Same visits and seed, same run.
    """

    def __init__(
        self, ledger: Ledger, limits: Limits, cost: Cost | None = None, seed: int = 0
    ) -> None:
        self.ledger = ledger
        self.planner = Planner(ledger, limits)
        self.steps: list[tuple[float, StepPlan]] = []
        self._cost = cost or Cost()
        self._random = random.Random(seed)
        self._judge = Judge()
        self._air: deque[tuple[float, StepPlan]] = deque()
        self._stories: dict[int, Story] = {}
        self._now = 0.0
        self._made = NEW_TOKEN
        self._reach: dict[int, int] = {}

    def run(self, visits: Iterable[Visit]) -> list[Story]:
        """Play all visits to their end; their stories in the order of arrival."""
        coming = sorted(visits, key=lambda visit: visit.at)
        first = len(self._stories)
        leaving: list[tuple[float, int]] = []
        arrived = 0
        while True:
            self._launch()
            times = [visit.at for visit in coming[arrived : arrived + 1]]
            times += [time for time, _ in leaving[:1]]
            times += [time for time, _ in list(self._air)[:1]]
            if (wakes := self.planner.wakes) is not None and wakes > self._now:
                times.append(wakes)
            if not times:
                break
            self._now = max(self._now, min(times))
            if self._air and self._air[0][0] <= self._now:
                self._land()
            while arrived < len(coming) and coming[arrived].at <= self._now:
                seq = self._arrive(coming[arrived])
                if (leaves := coming[arrived].leaves) is not None:
                    leaving.insert(bisect_right(leaving, (leaves, seq)), (leaves, seq))
                arrived += 1
            while leaving and leaving[0][0] <= self._now:
                self._leave(leaving.pop(0)[1])
        assert self.planner.idle, "all visits have come and gone, and something still waits"
        return [self._stories[seq] for seq in range(first, len(self._stories))]

    def _arrive(self, visit: Visit) -> int:
        seq = len(self._stories)
        params = SamplingParams(seed=seq, max_tokens=visit.output, cache_salt=visit.salt)
        admit = Admit(
            seq, str(seq), 0, visit.prompt, params, visit.method, visit.k, priority=visit.priority
        )
        self._stories[seq] = Story(visit)
        self._judge.open(seq, Bounds(frozenset(), visit.output), Pace(visit.k))
        self.planner.add(Sequence.of(admit, self._now))
        return seq

    def _leave(self, seq: int) -> None:
        closed = self.planner.close(seq, "cancelled")
        if closed is not None:
            self._judge.close(seq)
            self._close(closed)

    def _launch(self) -> None:
        while (plan := self.planner.plan(self._now)) is not None:
            begin = max(self._now, self._air[-1][0] if self._air else 0.0)
            self._air.append((begin + self._cost.of(self._reads(plan)), plan))
            self.steps.append(self._air[-1])

    def _reads(self, plan: StepPlan) -> Iterator[tuple[int, int]]:
        """How many tokens each row has, and where it begins if all guesses in the air hold."""
        self._reach |= {opening.seq: opening.cached for opening in plan.openings}
        for row in plan.rows:
            yield row.count + row.draft, self._reach[row.seq]
            self._reach[row.seq] += row.count

    def _land(self) -> None:
        _, plan = self._air.popleft()
        judged = (self._judge.judge(self._compute(row)) for row in plan.rows)
        verdict = Verdict(plan.step, tuple(row for row in judged if row is not None))
        for row in verdict.rows:
            self._stories[row.seq].times += [self._now] * len(row.tokens)
        for closed in self.planner.land(verdict):
            self._close(closed)

    def _compute(self, row: Row) -> RowDone:
        if not row.sample:
            return RowDone(row.seq)
        accepts, accepted = self._stories[row.seq].visit.accepts, 0
        while accepted < row.draft and self._random.random() < accepts:
            accepted += 1
        self._reach[row.seq] += accepted
        first, self._made = self._made, self._made + accepted + 1
        return RowDone(row.seq, tuple(range(first, self._made)), row.draft, accepted)

    def _close(self, closed: Closed) -> None:
        story, sequence = self._stories[closed.sequence.seq], closed.sequence
        story.reason, story.cached = closed.reason, sequence.cached or 0
        story.preemptions = sequence.preemptions
