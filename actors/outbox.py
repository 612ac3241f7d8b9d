"""Outboxes: where a request's events wait for the handler that sends them.

The streamer puts, the handler takes, and putting never waits. An outbox holds no more than the
request's text however slow its client is: deltas that nobody has taken yet are merged, unless the
client wants every token in a delta of its own.
"""

from __future__ import annotations

import asyncio
from collections import deque

from .messages import Delta, Ended, Event, Refused
from .metrics import Metrics
from .record import RequestRecord


class Outbox:
    """Unsent events of one request. One taker. merge: whether deltas may become one."""

    def __init__(self, record: RequestRecord, *, merge: bool = True) -> None:
        self.record = record
        self._merge = merge
        self._events: deque[Event] = deque()
        self._taker: asyncio.Future[None] | None = None
        self._deaf = False

    def put(self, event: Event) -> None:
        self.record.note(event)
        if self._deaf:
            return
        last = self._events[-1] if self._events and self._merge else None
        if isinstance(event, Delta) and isinstance(last, Delta) and last.index == event.index:
            self._events[-1] = _merged(last, event)
        else:
            self._events.append(event)
        self._wake()

    async def take(self) -> Event | None:
        """The next event; None when the last one has been taken or the outbox was shut."""
        while not self._events:
            if self._deaf or self.record.over:
                return None
            self._taker = asyncio.get_running_loop().create_future()
            await self._taker
        return self._events.popleft()

    def shut(self) -> None:
        """Nobody takes any more: drop what is here and what comes; only the record goes on."""
        self._deaf = True
        self._events.clear()
        self._wake()

    def _wake(self) -> None:
        taker, self._taker = self._taker, None
        if taker is not None and not taker.done():  # done: its handler was cancelled
            taker.set_result(None)


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

    def open(self, request: str, sequences: int, *, merge: bool = True) -> Outbox:
        outbox = Outbox(RequestRecord(request, sequences, self._metrics), merge=merge)
        self._open[request] = outbox
        self.empty.clear()
        return outbox

    def requests(self) -> list[str]:
        return list(self._open)

    def put(self, request: str, event: Event) -> None:
        """Deliver an event; the last one of a request closes its entry."""
        outbox = self._open[request]
        outbox.put(event)
        if not isinstance(event, Delta) and outbox.record.over:
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


def _merged(a: Delta, b: Delta) -> Delta:
    return Delta(
        index=a.index,
        text=a.text + b.text,
        tokens=a.tokens + b.tokens,
        logprobs=a.logprobs + b.logprobs,
        sources=a.sources + b.sources,
        prompt_logprobs=a.prompt_logprobs + b.prompt_logprobs,
    )
