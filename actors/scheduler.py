"""The scheduler actor: owns every sequence, block id, slot and fence; plans the next step.

A thin shell around the planner. It takes admissions, cancellations and verdicts as they come and
acts once on all of them, so that a cancel that arrives beside a verdict is honoured before the
next plan.
"""

from __future__ import annotations

import structlog

from .actor import Actor, Address, Post
from .messages import Admit, Cancel, Inspect, Inspection, Message, SeqClosed, Verdict
from .metrics import Metrics
from .planner import Closed, Planner
from .sequence import Sequence

log = structlog.get_logger("paceline.scheduler")

CLOSED_TO: tuple[Address, ...] = ("admission", "sampler", "streamer")


class Scheduler(Actor):
    """Messages in: Admit, Cancel, Verdict, Inspect. Out: StepPlan, SeqClosed, Inspection."""

    name: Address = "scheduler"

    def __init__(self, post: Post, planner: Planner, metrics: Metrics) -> None:
        super().__init__(post)
        self._planner = planner
        self._metrics = metrics
        self._audited = True

    def receive(self, message: Message) -> None:
        match message:
            case Verdict():
                for closed in self._planner.land(message):
                    self._announce(closed)
            case Admit():
                self._planner.add(Sequence.of(message))
            case Cancel():
                cancelled = self._planner.close(message.seq, message.reason)
                if cancelled is not None:
                    self._announce(cancelled)
            case Inspect():
                self._post.send("engine", self._inspection(message.ticket))
            case _:
                raise TypeError(f"the scheduler has no use for {type(message).__name__}")

    def settle(self) -> None:
        while (plan := self._planner.plan()) is not None:
            self._post.send("executor", plan)
            self._audited = False
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
