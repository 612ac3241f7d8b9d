"""Outboxes: where a request's events wait for the handler that sends them.

The streamer puts, the handler takes. Deltas that nobody has taken yet are merged, so an outbox
holds no more than the request's text however slow its client is, and putting never waits.
"""

from __future__ import annotations

import asyncio
from collections import deque

from .messages import Delta, Ended, Event, Refused
from .metrics import Metrics
from .record import RequestRecord


class Outbox:
    """Unsent events of one request. One taker."""

    def __init__(self, record: RequestRecord) -> None:
        self.record = record
        self._events: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._deaf = False

    def put(self, event: Event) -> None:
        self.record.note(event)
        if self._deaf:
            return
        last = self._events[-1] if self._events else None
        if isinstance(event, Delta) and isinstance(last, Delta) and last.index == event.index:
            self._events[-1] = _merge(last, event)
        else:
            self._events.append(event)
        self._wake.set()

    async def take(self) -> Event | None:
        """The next event; None when the last one has been taken or the outbox was shut."""
        while not self._events:
            if self._deaf or self.record.over:
                return None
            self._wake.clear()
            await self._wake.wait()
        return self._events.popleft()

    def shut(self) -> None:
        """Nobody takes any more: drop what is here and what comes; only the record goes on."""
        self._deaf = True
        self._events.clear()
        self._wake.set()


class Outboxes:
    """The outboxes of all open requests, by request id."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._open: dict[str, Outbox] = {}
        self.empty = asyncio.Event()
        self.empty.set()

    def __contains__(self, request: str) -> bool:
        return request in self._open

    def __len__(self) -> int:
        return len(self._open)

    def open(self, request: str, sequences: int) -> Outbox:
        outbox = Outbox(RequestRecord(request, sequences, self._metrics))
        self._open[request] = outbox
        self.empty.clear()
        return outbox

    def requests(self) -> list[str]:
        return list(self._open)

    def put(self, request: str, event: Event) -> None:
        """Deliver an event; the last one of a request closes its entry."""
        outbox = self._open[request]
        outbox.put(event)
        if outbox.record.over:
            del self._open[request]
            if not self._open:
                self.empty.set()

    def fail_all(self, error: str) -> None:
        """End every open request with an error: its actors are gone."""
        for request, outbox in list(self._open.items()):
            if outbox.record.accepted is None:
                self.put(request, Refused(error, status=500, code="internal_error"))
                continue
            done = {ended.index for ended in outbox.record.ended}
            for index in range(outbox.record.sequences):
                if index not in done:
                    self.put(request, Ended(index, "error", outbox.record.usage, error))


def _merge(a: Delta, b: Delta) -> Delta:
    return Delta(a.index, a.text + b.text, a.tokens + b.tokens, a.logprobs + b.logprobs)
