"""The executor actor: owns the launch thread and, through it, the pair.

Everything of torch happens in that one thread, whose thread-local state (thread count, inference
mode) was set where it started. The actor only hands plans in and results on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import structlog

from ..spec.plan import FailureKind, Pair, StepDone, StepFailed, StepPlan
from .actor import Actor, Address, Post
from .messages import Message

log = structlog.get_logger("paceline.executor")


class DeviceLost(RuntimeError):
    """The device no longer computes; only a new process helps."""


class Executor(Actor):
    """Messages in: StepPlan. Out: StepDone or StepFailed, in launch order, to the sampler.

    `classify` names the blast radius of an exception that a launch raised. A device failure is
    raised out of the actor as DeviceLost, for the supervisor.
    """

    name: Address = "executor"

    def __init__(
        self,
        post: Post,
        pair: Pair,
        thread: ThreadPoolExecutor,
        classify: Callable[[BaseException], FailureKind],
    ) -> None:
        super().__init__(post)
        self._pair = pair
        self._thread = thread
        self._classify = classify
        self._loop = asyncio.get_running_loop()
        self._stopped = False

    def receive(self, message: Message) -> None:
        match message:
            case StepPlan():
                flight = self._thread.submit(self._fly, message)
                flight.add_done_callback(partial(self._landed, message.step))
            case StepDone():
                self._post.send("sampler", message)
            case StepFailed():
                if message.kind == "device":
                    raise DeviceLost(message.error)
                self._post.send("sampler", message)
            case _:
                raise TypeError(f"the executor has no use for {type(message).__name__}")

    def stop(self) -> None:
        """Launch nothing more: plans still queued for the thread come back as failed."""
        self._stopped = True

    def _fly(self, plan: StepPlan) -> StepDone:
        if self._stopped:
            raise RuntimeError("the executor has stopped")
        return self._pair.launch(plan).land()

    def _landed(self, step: int, flight: Future[StepDone]) -> None:
        error = flight.exception()
        if error is None:
            result: StepDone | StepFailed = flight.result()
        else:
            text, kind = f"{type(error).__name__}: {error}", self._classify(error)
            if not self._stopped:
                log.error("a step failed", step=step, kind=kind, exc_info=error)
            result = StepFailed(step, text, kind)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.send, result)
