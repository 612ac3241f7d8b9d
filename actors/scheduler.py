"""The scheduler actor: owns every sequence, block id, slot and fence; plans the next step.

A thin shell around the planner. It takes admissions, cancellations and verdicts as they come and
acts once on all of them, so that a cancel that arrives beside a verdict is honoured before the
next plan.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from .actor import Actor, Address, Post
from .messages import Admit, Cancel, Inspect, Inspection, Message, SeqClosed, Verdict, Wake
from .metrics import Metrics
from .planner import Closed, Planner
from .sequence import Sequence

log = structlog.get_logger("paceline.scheduler")

CLOSED_TO: tuple[Address, ...] = ("admission", "sampler", "streamer")


class Scheduler(Actor):
    """Messages in: Admit, Cancel, Verdict, Inspect, Wake. Out: StepPlan, SeqClosed, Inspection.

    clock: seconds, never going back.
    """

    name: Address = "scheduler"

    def __init__(
        self,
        post: Post,
        planner: Planner,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(post)
        self._planner = planner
        self._metrics = metrics
        self._clock = clock
        self._audited = True
        self._timer: asyncio.TimerHandle | None = None

    def receive(self, message: Message) -> None:
        match message:
            case Verdict():
                for closed in self._planner.land(message):
                    self._announce(closed)
            case Admit():
                self._planner.add(Sequence.of(message, self._clock()))
            case Cancel():
                cancelled = self._planner.close(message.seq, message.reason)
                if cancelled is not None:
                    self._announce(cancelled)
            case Inspect():
                self._post.send("engine", self._inspection(message.ticket))
            case Wake():
                self._timer = None
            case _:
                raise TypeError(f"the scheduler has no use for {type(message).__name__}")

    def settle(self) -> None:
        now = self._clock()
        while (plan := self._planner.plan(now)) is not None:
            self._post.send("executor", plan)
            self._audited = False
        self._sleep(now)
        if self._planner.idle and not self._audited:
            self._audit()
        self._metrics.observe_queues(
            running=len(self._planner.running),
            waiting=len(self._planner.waiting),
            blocks=self._planner.ledger.counts(),
            preemptions=self._planner.preemptions,
            queries=self._planner.prefixes.queries,
            hits=self._planner.prefixes.hits,
        )

    def _sleep(self, now: float) -> None:
        """See that planning goes on when there is something to plan, even if nothing arrives."""
        wakes = self._planner.wakes
        if wakes is not None and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, wakes - now), self.send, Wake())

    def _announce(self, closed: Closed) -> None:
        message = SeqClosed(
            closed.sequence.seq, closed.reason, closed.sequence.usage(), closed.error
        )
        for actor in CLOSED_TO:
            self._post.send(actor, message)

    def _audit(self) -> None:
        self._audited = True
        problems = self._planner.ledger.check()
        if problems:
            log.error("the block ledger is unsound", problems=problems)

    def _inspection(self, ticket: int) -> Inspection:
        return Inspection(
            ticket=ticket,
            blocks=self._planner.ledger.counts(),
            problems=tuple(self._planner.ledger.check()),
            running=len(self._planner.running),
            waiting=len(self._planner.waiting),
        )
