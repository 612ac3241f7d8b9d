"""Server-sent events, both ends: the response that carries a stream, and the parser that a client
reads it with.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType

from aiohttp import web

KEEP_ALIVE = b": keep-alive\n\n"
_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class EventStream:
    """A streamed response: headers on entering, one write per event, and a comment whenever
    nothing was sent for `keep_alive` seconds. Raises ConnectionResetError once the client is gone.
    """

    def __init__(self, request: web.Request, keep_alive: float) -> None:
        self.response = web.StreamResponse(headers=_HEADERS)
        self._request = request
        self._keep_alive = keep_alive
        self._lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._last_sent = self._loop.time()

    async def __aenter__(self) -> EventStream:
        await self.response.prepare(self._request)
        self._beat = asyncio.create_task(self._beats())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._beat.cancel()
        await asyncio.wait([self._beat])
        if not self._beat.cancelled():
            self._beat.result()  # cancelling silences even a failed task

    async def send(self, payload: bytes) -> None:
        """One event; `payload` is a single line."""
        await self._write(b"data: %b\n\n" % payload)

    async def _write(self, data: bytes) -> None:
        # Both writers may have to wait for a slow client, and aiohttp keeps one waiter for them:
        # cancelling one of two that wait would cancel the other.
        async with self._lock:
            await self.response.write(data)
        self._last_sent = self._loop.time()

    async def _beats(self) -> None:
        with suppress(ConnectionResetError):
            while True:
                idle = self._loop.time() - self._last_sent
                if idle < self._keep_alive:
                    await asyncio.sleep(self._keep_alive - idle)
                elif self._lock.locked():
                    await asyncio.sleep(self._keep_alive)
                else:
                    await self._write(KEEP_ALIVE)


class EventParser:
    """Data of server-sent events from bytes in pieces of any size (WHATWG HTML, section 9.2.6).

    Comments and the fields `event`, `id` and `retry` are skipped.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._after_cr = False
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[bytes]:
        """Payloads of the events that end within `piece`, in order."""
        if self._after_cr and piece.startswith(b"\n"):
            piece = piece[1:]  # the other half of a \r\n that was cut
            self._after_cr = False
        if piece:
            self._after_cr = piece.endswith(b"\r")
        text = (self._rest + piece).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = text.split(b"\n")
        return [event for line in lines if (event := self._line(line)) is not None]

    def _line(self, line: bytes) -> bytes | None:
        if not line:
            data, self._data = self._data, []
            return b"\n".join(data) if data else None
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        return None
