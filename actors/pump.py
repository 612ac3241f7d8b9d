"""The pump: who has mail is served, one after the other, in one callback of the event loop.

What follows from a message is done before the loop turns to anything else, so a step's way from the
launch thread through judging and planning back to it costs no detour. The patient come after all
others, and whatever nobody waits for after them. Made by the supervisor for one life of the actors.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from .actor import NOBODY, Actor

MOST = 100
"""Calls in one callback, so that whoever else waits for the event loop gets a turn. A step takes
half a dozen."""


class Pump:
    """Serves `actors`. The first exception of one of them ends it for all, and `failed` is
    told."""

    def __init__(self, actors: Sequence[Actor], failed: Callable[[Actor, Exception], None]) -> None:
        self._actors = actors
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._called: deque[Actor] = deque()
        self._patient: deque[Actor] = deque()
        self._served: list[Actor] = []
        self._actor: Actor  # whose turn it is
        self._held = False
        self._due = False  # a callback is on its way, or running
        for actor in actors:
            actor.caller = self

    def call(self, actor: Actor) -> None:
        """An actor has mail, and has not been called since it was served last."""
        actor.called = True
        (self._patient if actor.patient else self._called).append(actor)
        if not self._due:
            self._due = True
            self._loop.call_soon(self._serve)

    def serve(self, actor: Actor) -> None:
        """The same, of a callback of the event loop: everybody who has been called is served."""
        self._due = True
        if not actor.called:
            self.call(actor)
        self._serve()

    def hold(self) -> None:
        """The patient and reflection wait until `resume`."""
        self._held = True

    def resume(self) -> None:
        self._held = False
        self._serve()

    def stop(self) -> None:
        """Serve nobody any more."""
        for actor in self._actors:
            actor.caller = NOBODY
        self._called.clear()
        self._patient.clear()
        self._served.clear()

    def _serve(self) -> None:
        """Until nobody is called, or it gets too long for one callback."""
        try:
            for _ in range(MOST):
                called = self._called or (None if self._held else self._patient)
                if not called:
                    if self._held:
                        break
                    self._reflect()
                    break
                self._actor = called.popleft()
                self._actor.called = False
                self._served.append(self._actor)
                self._actor.work()
        except Exception as error:
            self.stop()
            self._failed(self._actor, error)
        self._due = bool(self._called or (self._patient and not self._held))
        if self._due:
            self._loop.call_soon(self._serve)

    def _reflect(self) -> None:
        for actor in dict.fromkeys(self._served):
            self._actor = actor
            actor.reflect()
        self._served.clear()
