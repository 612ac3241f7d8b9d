"""A served edge around a scripted engine, and what the tests of this folder need to talk to it."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from fake_engine import MODEL, FakeEngine, FakeStream

from paceline.actors.messages import Delta
from paceline.api.boundary import EdgeOptions
from paceline.api.server import Site, make_app, serve
from paceline.api.sse import EventParser

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": MODEL, "prompt": "hi"}
ROUTES = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETION}


@dataclass(slots=True)
class Edge:
    engine: FakeEngine
    site: Site
    http: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.site.port}"

    def post(self, path: str, body: Any, **options: Any):
        return self.http.post(self.url + path, json=body, **options)

    def begin(self, path: str, body: Any, **options: Any) -> asyncio.Task[aiohttp.ClientResponse]:
        """A request under way: done when the answer's headers are here."""

        async def request() -> aiohttp.ClientResponse:
            return await self.post(path, body, **options)

        return asyncio.create_task(request())

    async def post_json(self, path: str, body: Any, status: int = 200) -> Any:
        async with self.post(path, body) as response:
            document = await response.json()
            assert response.status == status, document
            return document

    async def get_json(self, path: str, status: int = 200) -> Any:
        async with self.http.get(self.url + path) as response:
            document = await response.json()
            assert response.status == status, document
            return document

    async def events(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The stream's chunks, decoded; asserts that [DONE] is the last event."""
        async with self.post(path, {**body, "stream": True}) as response:
            assert response.status == 200, await response.text()
            *events, done = EventParser().feed(await response.read())
            assert done == b"[DONE]"
            return [json.loads(event) for event in events]

    def socket(self, **options: Any):
        return self.http.ws_connect(self.url + "/v1/ws", **options)

    def drop_connections(self) -> None:
        """Break every connection on the server's side; it is told in the next turn of the loop."""
        for connection in self.site.runner.server.connections:
            connection.transport.abort()

    async def raw(self, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection that has sent `request`."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.site.port)
        writer.write(request)
        await writer.drain()
        return reader, writer


def http_request(path: str, body: bytes, length: int | None = None) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body) if length is None else length}\r\n\r\n"
    )
    return head.encode() + body


async def fill(streams: list[FakeStream]) -> None:
    """Say so much that a client that does not read stops the handlers of all `streams`."""
    for _ in range(1000):
        for stream in streams:
            stream.put(Delta(0, "x" * 100_000))
        before = [stream.waiting for stream in streams]
        await asyncio.sleep(0.002)
        if min(before) > 5 and [stream.waiting for stream in streams] == before:
            return
    raise AssertionError("nothing stops the handlers")


async def settled(baseline: set[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """Tasks that stay beyond `baseline` however long one waits."""
    for _ in range(500):
        left = asyncio.all_tasks() - baseline - {asyncio.current_task()}
        if not left:
            break
        await asyncio.sleep(0.01)
    return left


@asynccontextmanager
async def running(engine: FakeEngine, **options: Any):
    """A served edge; asserts that everything has been closed and no task is left behind."""
    baseline = asyncio.all_tasks()
    site = await serve(
        make_app(engine, EdgeOptions(**options)), "127.0.0.1", 0, shutdown_timeout=0.1
    )
    try:
        async with aiohttp.ClientSession() as http:
            yield Edge(engine, site, http)
    finally:
        await site.close()
    assert not await settled(baseline)
    assert [s.request for s in engine.streams.values() if not s.closed.is_set()] == []
