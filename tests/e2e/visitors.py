"""A crowd of clients that leave a server at random moments, each in a way of its own.

`Crowd.visit_all` sends them in, some at a time. Every way of leaving is one method that takes a
random source and a request, and returns what came of it in a word or two.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp

from paceline.api.sse import EventParser

Body = dict[str, Any]
Way = Callable[["Crowd", Random, Body], Coroutine[Any, Any, str]]

ENDS = {"length", "cancelled"}
VISIT_SECONDS = 240.0


@dataclass
class Kept:
    """A request that was answered to its end, and its text."""

    body: Body
    text: str


@dataclass
class Crowd:
    """url: the server's. make_body: a request's parameters, without `stream`; it must ignore the
    end of text and be several steps long. moment: the longest time in seconds that a visitor who
    leaves by the clock stays.
    """

    url: str
    make_body: Callable[[Random], Body]
    moment: float
    outcomes: Counter[str] = field(default_factory=Counter)
    kept: list[Kept] = field(default_factory=list)
    _number: int = 0

    async def visit_all(self, visits: int, at_once: int, seed: int) -> None:
        """Send in `visits` clients, equally many of each way, `at_once` at a time."""
        random, seats = Random(seed), asyncio.Semaphore(at_once)
        ways = [WAYS[i % len(WAYS)] for i in range(visits)]
        random.shuffle(ways)

        async def visit(way: Way, random: Random) -> None:
            async with seats, asyncio.timeout(VISIT_SECONDS):
                outcome = await way(self, random, self.make_body(random))
                self.outcomes[f"{way.__name__}: {outcome}"] += 1

        async with asyncio.TaskGroup() as group:
            for way in ways:
                group.create_task(visit(way, Random(random.random())))

    # --- ways to leave -----------------------------------------------------------------------

    async def stay(self, random: Random, body: Body) -> str:
        """To the end of a stream or of a whole answer."""
        if random.random() < 0.5:
            async with self._post(body) as response:
                choices = (await response.json())["choices"]
            texts, ends = [it["text"] for it in choices], [it["finish_reason"] for it in choices]
        else:
            async with self._post(body | {"stream": True}) as response:
                texts, ends = await _read(response, body.get("n", 1))
        assert set(ends) == {"length"}, ends
        self.kept.append(Kept(body, "\n".join(texts)))
        return "answered"

    async def leave_before_the_text(self, random: Random, body: Body) -> str:
        """When the request is accepted; its prompt may not even have been begun."""
        async with self._post(body | {"stream": True}):
            return "left"

    async def leave_by_the_clock(self, random: Random, body: Body) -> str:
        """At any time at all, also while the request is on its way; streamed or not."""
        body = body | {"stream": random.random() < 0.5}
        try:
            async with asyncio.timeout(random.uniform(0, self.moment)):
                async with self._post(body) as response:
                    await response.read()
            return "answered"
        except TimeoutError:
            return "left"

    async def leave_the_stream(self, random: Random, body: Body) -> str:
        """After some of the text."""
        pieces = random.randint(1, 6)
        async with self._post(body | {"stream": True}) as response:
            async for _ in _events(response):
                pieces -= 1
                if not pieces:
                    return "left"
        return "answered"

    async def delete(self, random: Random, body: Body) -> str:
        """By another connection, which names the request; the stream must still end regularly."""
        ident = self._next()
        async with self._post(body | {"stream": True}, ident) as response:
            await asyncio.sleep(random.choice((0.0, random.uniform(0, self.moment))))
            status = await self._delete(ident)
            _, ends = await _read(response, body.get("n", 1))
        assert status == 200 or set(ends) == {"length"}, (status, ends)
        return ", ".join(sorted(set(ends)))

    async def cancel_on_the_socket(self, random: Random, body: Body) -> str:
        """Two turns on one socket, one of them cancelled: both must end, once."""
        async with self._socket() as ws:
            await _start(ws, "left", body)
            await _start(ws, "kept", body)
            await asyncio.sleep(random.choice((0.0, random.uniform(0, self.moment))))
            await ws.send_json({"type": "cancel", "id": "left"})
            ends: Counter[str] = Counter()
            late = False
            while sum(ends.values()) < 2 * body.get("n", 1):
                frame = await ws.receive_json()
                if frame["type"] == "error":  # the turn had ended before it could be cancelled
                    assert frame["error"]["code"] == "unknown_id", frame
                    late = True
                elif frame["type"] == "end":
                    assert frame["finish_reason"] in ENDS
                    assert frame["id"] == "left" or frame["finish_reason"] == "length"
                    ends[frame["id"]] += 1
            assert ends["left"] == ends["kept"], ends
        return "too late" if late else "cancelled"

    async def leave_the_socket(self, random: Random, body: Body) -> str:
        """With two turns on it: after some frames or at any time, with a farewell or without."""
        async with aiohttp.ClientSession() as session:
            ws = await session.ws_connect(f"{self.url}/v1/ws")
            await _start(ws, "one", body)
            await _start(ws, "two", body)
            if random.random() < 0.5:
                await asyncio.sleep(random.uniform(0, self.moment))
            else:
                for _ in range(random.randint(1, 8)):
                    await ws.receive_json()
            if random.random() < 0.5:
                await ws.close()
                return "left"
        return "broken off"

    # --- plumbing ----------------------------------------------------------------------------

    def _next(self) -> str:
        self._number += 1
        return f"visitor-{self._number}"

    @asynccontextmanager
    async def _post(
        self, body: Body, ident: str | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A session of its own for every request, so that leaving breaks the connection."""
        headers = {"X-Request-Id": ident or self._next()}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/v1/completions", json=body, headers=headers) as response,
        ):
            assert response.status == 200, await response.text()
            yield response

    async def _delete(self, ident: str) -> int:
        async with (
            aiohttp.ClientSession() as session,
            session.delete(f"{self.url}/v1/requests/{ident}") as response,
        ):
            return response.status

    @asynccontextmanager
    async def _socket(self) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        headers = {"X-Request-Id": self._next()}
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(f"{self.url}/v1/ws", headers=headers) as ws,
        ):
            yield ws


WAYS: tuple[Way, ...] = (
    Crowd.stay,
    Crowd.leave_before_the_text,
    Crowd.leave_by_the_clock,
    Crowd.leave_the_stream,
    Crowd.delete,
    Crowd.cancel_on_the_socket,
    Crowd.leave_the_socket,
)


async def _start(ws: aiohttp.ClientWebSocketResponse, ident: str, body: Body) -> None:
    await ws.send_json({"type": "start", "id": ident, **body})


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    parser = EventParser()
    async for piece in response.content.iter_any():
        for event in parser.feed(piece):
            yield event


async def _read(response: aiohttp.ClientResponse, n: int) -> tuple[list[str], list[str]]:
    """Text and finish reason of each of a stream's choices; asserts that it ends regularly."""
    texts, ends = [""] * n, [""] * n
    events = [event async for event in _events(response)]
    assert events[-1] == b"[DONE]"
    for event in events[:-1]:
        (choice,) = json.loads(event)["choices"]
        index = choice["index"]
        assert not ends[index], "something follows the end"
        texts[index] += choice["text"]
        ends[index] = choice["finish_reason"] or ""
    assert set(ends) <= ENDS, ends
    return texts, ends
