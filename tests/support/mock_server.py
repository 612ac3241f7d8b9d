"""A server that answers like OpenAI's, with text, usage and times that a test has chosen.

In this process with a clock that stands still unless the server moves it, so that what a client
measures can be known exactly; or in a process of its own (`python -m support.mock_server --port N
--log FILE [--name NAME]`), for tests of what starts servers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

PIECES = ("Some ", "words of ", "text.")
TOKENS = 7


class SteppedClock:
    """Stands still until it is set; knows when it was read."""

    def __init__(self) -> None:
        self.now = 0.0
        self._read = asyncio.Event()

    def __call__(self) -> float:
        self._read.set()
        return self.now

    async def show(self, response: web.StreamResponse, now: float, data: bytes) -> None:
        """Send `data` at the time `now`, and wait until the client has looked at the clock."""
        self.now = now
        self._read.clear()
        await response.write(data)
        await asyncio.wait_for(self._read.wait(), 20)


class Mock:
    """Answers every request with `pieces`; `bodies` are the requests so far.

    clock, times: when each piece is sent, counted from the request; None sends all at once. usage:
    None leaves it out. end: what follows the pieces. silent: no end. failure: an HTTP status
    instead of an answer. metrics: the text of /metrics, {} being the tokens written so far.
    """

    def __init__(
        self,
        *,
        pieces: Sequence[str] = PIECES,
        usage: dict[str, Any] | bool | None = True,
        clock: SteppedClock | None = None,
        times: Sequence[float] = (),
        broken: bytes | None = None,
        finish: str | None = "length",
        silent: bool = False,
        failure: int | None = None,
        metrics: str | None = None,
    ) -> None:
        usual = {"prompt_tokens": 5, "completion_tokens": TOKENS}
        self.usage = usual if usage is True else usage or None
        self.pieces, self.clock, self.times = pieces, clock, times
        self.broken, self.finish, self.silent = broken, finish, silent
        self.failure, self.metrics = failure, metrics
        self.bodies: list[dict[str, Any]] = []
        self.written = 0
        self.app = web.Application()
        self.app.add_routes(
            [
                web.post("/v1/chat/completions", self._answer),
                web.post("/v1/completions", self._answer),
                web.get("/v1/models", self._models),
                web.get("/metrics", self._metrics),
            ]
        )

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "mock"}]})

    async def _metrics(self, request: web.Request) -> web.Response:
        if self.metrics is None:
            raise web.HTTPNotFound
        return web.Response(text=self.metrics.replace("{}", str(self.written)))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append({"path": request.path, **await request.json()})
        if self.failure:
            error = {"error": {"message": "not today", "param": None, "code": None}}
            return web.json_response(error, status=self.failure)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        chat = "chat" in request.path
        if chat:
            await response.write(_event({"choices": [{"delta": {"role": "assistant"}}]}))
        for number, piece in enumerate(self.pieces):
            choice = {"delta": {"content": piece}} if chat else {"text": piece}
            await self._send(response, number, _event({"choices": [{"index": 0, **choice}]}))
        if self.silent:
            await asyncio.Event().wait()
        if self.broken is not None:
            await response.write(self.broken)
            return response
        if self.finish:
            await response.write(_event({"choices": [{"delta": {}, "finish_reason": self.finish}]}))
        if self.usage:
            self.written += self.usage["completion_tokens"]
            await response.write(_event({"choices": [], "usage": self.usage}))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _send(self, response: web.StreamResponse, number: int, data: bytes) -> None:
        if self.clock is None:
            await response.write(data)
        else:
            await self.clock.show(response, self.times[number], data)


def _event(fields: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


@contextmanager
def served(mock: Mock) -> Iterator[str]:
    """The URL of the mock, served by a thread: for commands with an event loop of their own."""
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(mock.app)

    async def start() -> str:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(start(), loop).result(20)
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


def main() -> None:
    """Serve until a signal, noting requests in a file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--name", default="mock")
    parser.add_argument("--failure", type=int)
    args = parser.parse_args()
    mock = Mock(failure=args.failure)

    def note(event: str, **more: Any) -> None:
        with args.log.open("a") as file:
            print(json.dumps({"name": args.name, "event": event, **more}), file=file)

    @web.middleware
    async def noting(request: web.Request, handler: Any) -> web.StreamResponse:
        response = await handler(request)
        if request.method == "POST":
            note("request", body=mock.bodies[-1])
        return response

    async def ended(app: web.Application) -> None:
        note("end")

    mock.app.middlewares.append(noting)
    mock.app.on_cleanup.append(ended)
    note("start")
    web.run_app(mock.app, host="127.0.0.1", port=args.port, print=None)


if __name__ == "__main__":
    main()
