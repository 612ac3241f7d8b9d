"""The scheduler actor: owns every sequence, block id, slot and fence; plans the next step.

A thin shell around the planner. It takes admissions, cancellations and verdicts as they come and
acts once on all of them, so that a cancel that arrives beside a verdict is honoured before the
next plan. What it hears and decides it tells the recorder and the auditor; audits and gauges come
when the plan is on its way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from .actor import Actor, Address, Post
from .auditor import Auditor
from .messages import Admit, Cancel, Inspect, Message, SeqClosed, Verdict, Wake
from .metrics import Metrics
from .planner import Closed, Planner
from .recording import MICROSECOND, Recorder
from .sequence import Sequence

CLOSED_TO: tuple[Address, ...] = ("admission", "sampler", "streamer")


def microseconds() -> int:
    """The scheduler's clock. Whole numbers, so that a recording holds exactly what it said."""
    return time.monotonic_ns() // 1000


def alarm_of_the_loop(seconds: float, ring: Callable[[], None]) -> object:
    return asyncio.get_running_loop().call_later(seconds, ring)


class Scheduler(Actor):
    """Messages in: Admit, Cancel, Verdict, Inspect, Wake. Out: StepPlan, SeqClosed, Inspection.

    audit_every: steps between audits while there is work; 0 leaves them to idle moments.
    """

    name: Address = "scheduler"

    def __init__(
        self,
        post: Post,
        planner: Planner,
        metrics: Metrics,
        *,
        audit_every: int = 0,
        recorder: Recorder | None = None,
        clock: Callable[[], int] = microseconds,
        alarm: Callable[[float, Callable[[], None]], object] = alarm_of_the_loop,
    ) -> None:
        super().__init__(post)
        self._planner = planner
        self._metrics = metrics
        self._auditor = Auditor(planner, metrics, audit_every)
        self._recorder = recorder or Recorder()
        self._clock = clock
        self._alarm = alarm
        self._alarmed = False

    def receive(self, message: Message) -> None:
        ticks = self._clock()
        now = ticks * MICROSECOND
        match message:
            case Verdict():
                self._recorder.landed(message, ticks)
                closings = self._planner.land(message)
                self._auditor.landed(now)
                for closed in closings:
                    self._announce(closed)
            case Admit():
                self._recorder.arrived(message, ticks)
                self._planner.add(Sequence.of(message, now))
            case Cancel():
                self._recorder.cancelled(message, ticks)
                cancelled = self._planner.close(message.seq, message.reason)
                if cancelled is not None:
                    self._announce(cancelled)
            case Inspect():
                self._post.send("engine", self._auditor.inspect(message.ticket, now))
            case Wake():
                self._alarmed = False
            case _:
                raise TypeError(f"the scheduler has no use for {type(message).__name__}")

    def settle(self) -> None:
        ticks = self._clock()
        now = ticks * MICROSECOND
        self._recorder.settled(ticks)
        while (plan := self._planner.plan(now)) is not None:
            self._post.send("executor", plan)
            self._recorder.planned(plan)
            self._auditor.planned(plan, now)
        self._sleep(now)

    def reflect(self) -> None:
        self._auditor.settled(self._clock() * MICROSECOND)
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
        if wakes is not None and not self._alarmed:
            self._alarmed = True
            self._alarm(max(0.0, wakes - now), lambda: self.send(Wake()))

    def _announce(self, closed: Closed) -> None:
        self._recorder.ended(closed)
        message = SeqClosed(
            closed.sequence.seq, closed.reason, closed.sequence.usage(), closed.error
        )
        for actor in CLOSED_TO:
            self._post.send(actor, message)
