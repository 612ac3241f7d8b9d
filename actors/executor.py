"""The executor actor: owns the launch thread and, through it, the pair.

Everything of torch happens in that one thread, whose thread-local state (thread count, inference
mode) was set where it started. The actor only hands plans in and results on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from ..spec.plan import FailureKind, Pair, StepDone, StepFailed, StepPlan
from .actor import Actor, Address, Post
from .launch import LaunchThread
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
        thread: LaunchThread,
        classify: Callable[[BaseException], FailureKind],
    ) -> None:
        super().__init__(post)
        self._pair = pair
        self._thread = thread
        self._classify = classify
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        self._flying = 0
        self._told = True
        pair.computing = self._tell

    def receive(self, message: Message) -> None:
        match message:
            case StepPlan():
                if not self._flying:
                    self.caller.hold()
                self._flying += 1
                self._thread.hand(partial(self._fly, message))
            case StepDone():
                self._flying -= 1
                self._post.send("sampler", message)
            case StepFailed():
                self._flying -= 1
                if message.kind == "device":
                    raise DeviceLost(message.error)
                self._post.send("sampler", message)
            case _:
                raise TypeError(f"the executor has no use for {type(message).__name__}")

    def stop(self) -> None:
        """Launch nothing more: plans still queued for the thread come back as failed."""
        self._stopped = True

    def _fly(self, plan: StepPlan) -> None:
        """In the launch thread: a step, and its result to the event loop."""
        self._told = False
        try:
            if self._stopped:
                raise RuntimeError("the executor has stopped")
            result: StepDone | StepFailed = self._pair.launch(plan).land()
        except BaseException as error:
            result = self._failure(plan.step, error)
        self._tell()
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.deliver, result)

    def _tell(self) -> None:
        """In the launch thread: what nobody waits for may be done now. Before, it would be in the
        way: only one thread runs Python at a time."""
        if not self._told and not self._loop.is_closed():
            self._told = True
            self._loop.call_soon_threadsafe(self.caller.resume)

    def _failure(self, step: int, error: BaseException) -> StepFailed:
        kind = self._classify(error)
        if not self._stopped:
            log.error("a step failed", step=step, kind=kind, exc_info=error)
        return StepFailed(step, f"{type(error).__name__}: {error}", kind)
