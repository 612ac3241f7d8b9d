"""Asks a server over HTTP, one request at a time and record by record.

aiohttp, with the little that a benchmark needs between socket and record: the client has to leave
the machine to the server that it measures. Any OpenAI-compatible server will do. Used by `points`.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

import aiohttp
import msgspec

from ..api.received import ApiError, ModelList, SpeculationUsage, read_refusal
from ..api.sse import EventParser
from .records import Record
from .traffic import Clock
from .workloads import Ask


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Which server, and what every request says. body: fields that go over all others.
    patience: seconds that a request may take."""

    url: str
    model: str
    api_key: str | None = None
    temperature: float = 0.0
    ignore_eos: bool = True
    body: dict[str, Any] = {}
    patience: float = 600.0

    @property
    def root(self) -> str:
        return self.url.rstrip("/").removesuffix("/v1")


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None
    speculation: SpeculationUsage | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None

    def size(self) -> int:
        """Characters of this piece, of the answer or of what was thought before it."""
        if self.delta is None:
            return len(self.text or "")
        told = (self.delta.content, self.delta.reasoning_content, self.delta.reasoning)
        return len(next(filter(None, told), ""))


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_read = msgspec.json.Decoder(_Event).decode


class _Failed(Exception):
    """Why a request did not come to its end: the kind, and what was said."""


class _Answer:
    """An answer as it comes."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.sizes: list[int] = []
        self.finish: str | None = None
        self.usage: _Usage | None = None

    def take(self, data: bytes, now: float) -> None:
        """An event that came at `now`. Raises _Failed for one that says error."""
        event = _read(data)
        if event.error is not None:
            raise _Failed("stream", msgspec.json.encode(event.error).decode()[:200])
        for choice in event.choices:
            if size := choice.size():
                self.times.append(now)
                self.sizes.append(size)
            self.finish = choice.finish_reason or self.finish
        self.usage = event.usage or self.usage

    def record(self, number: int, due: float, sent: float, ended: float) -> Record:
        usage = self.usage or _Usage()
        drafts = usage.speculation or SpeculationUsage()
        cached = usage.prompt_tokens_details
        return Record(
            number=number,
            due=due,
            sent=sent,
            ended=ended,
            times=self.times,
            sizes=self.sizes,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=cached.cached_tokens if cached else None,
            tokens=usage.completion_tokens,
            finish=self.finish,
            steps=drafts.steps,
            drafted=drafts.drafted,
            accepted=drafts.accepted,
        )


class Asker:
    """Sends requests to one server, each over a connection of its own. Use it `async with`; `ask`
    never raises for what the server or the connection did wrong: that is in the record."""

    def __init__(self, target: Target) -> None:
        self.target = target
        key = target.api_key
        self._session = aiohttp.ClientSession(
            headers={
                "Content-Type": "application/json",
                "Accept-Encoding": "identity",
                **({"Authorization": f"Bearer {key}"} if key else {}),
            },
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=30),
            # llama.cpp's server promises to keep a connection and closes it behind every stream
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
        )

    async def __aenter__(self) -> Asker:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def ask(self, number: int, ask: Ask, due: float, clock: Clock) -> Record:
        """Send a request and read its answer to the end."""
        answer, body = _Answer(), self.body(ask)
        path = "/v1/completions" if ask.messages is None else "/v1/chat/completions"
        failed: _Failed | None = None
        sent = clock()
        try:
            async with asyncio.timeout(self.target.patience):
                await self._read(path, body, answer, clock)
        except _Failed as error:
            failed = error
        except TimeoutError:
            failed = _Failed("timeout", f"no end within {self.target.patience:g} s")
        except aiohttp.ClientConnectorError as error:
            failed = _Failed("connect", str(error))
        except aiohttp.ClientError as error:
            failed = _Failed("cut", str(error) or type(error).__name__)
        except msgspec.MsgspecError as error:
            failed = _Failed("garbled", str(error))
        record = answer.record(number, due, sent, clock())
        if failed is None and answer.finish is None:
            failed = _Failed("cut", "the stream ended without a finish_reason")
        if failed is None:
            return record
        kind, message = failed.args
        return msgspec.structs.replace(record, error=kind, message=message)

    def body(self, ask: Ask) -> bytes:
        """What is sent for `ask`."""
        fields = {
            "model": self.target.model,
            **({"prompt": ask.prompt} if ask.messages is None else {"messages": ask.messages}),
            "max_tokens": ask.max_tokens,
            "temperature": self.target.temperature,
            **({"ignore_eos": True} if self.target.ignore_eos else {}),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return msgspec.json.encode({**fields, **self.target.body})

    async def _read(self, path: str, body: bytes, answer: _Answer, clock: Clock) -> None:
        async with self._session.post(self.target.root + path, data=body) as response:
            if response.status >= 400:
                said = read_refusal(response.status, await response.read(), None)
                raise _Failed(f"http {response.status}", said.message)
            parser = EventParser()
            async for piece in response.content.iter_any():
                now = clock()
                for data in parser.feed(piece):
                    if data != b"[DONE]":
                        answer.take(data, now)

    async def first_model(self) -> str:
        """The name of the model that the server lists first. Raises ApiError or
        aiohttp.ClientError."""
        async with self._session.get(self.target.root + "/v1/models") as response:
            body = await response.read()
            if response.status >= 400:
                raise read_refusal(response.status, body, None)
            models = msgspec.json.decode(body, type=ModelList).data
        if not models:
            raise ApiError("the server lists no model", status=response.status)
        return models[0].id

    async def counters(self) -> str | None:
        """The text of the server's `/metrics`; None where it has none."""
        async with self._session.get(self.target.root + "/metrics") as response:
            return await response.text() if response.status == 200 else None
