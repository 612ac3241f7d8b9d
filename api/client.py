"""A small client for OpenAI-compatible servers, this one or another: used by `paceline chat` and by
the benchmark.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec

from .received import Answer, Chunk, Model, ModelList, Pool, read_answer, read_chunks, read_refusal
from .sse import EventParser


class Stream:
    """An answer under way: an async iterator of chunks. Raises ApiError when it fails."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.request_id = response.headers.get("X-Request-Id")
        self._content = response.content

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        parser = EventParser()
        async for piece in self._content.iter_any():
            for data in parser.feed(piece):
                if data == b"[DONE]":
                    return
                for chunk in read_chunks(data):
                    yield chunk


class Client:
    """Talks to the server at `base_url`, with or without its `/v1`. Close it, or use it `async
    with`. A connection that fails raises aiohttp.ClientError.

    Parameters of a request are named as in the HTTP API and sent as they are given.
    """

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        self._root = base_url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session = aiohttp.ClientSession(
            headers=headers,
            # an answer may take as long as it takes, and a benchmark opens many at once
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            connector=aiohttp.TCPConnector(limit=0),
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._session.close()

    @asynccontextmanager
    async def stream_chat(
        self, model: str, messages: Sequence[dict[str, Any]], **parameters: Any
    ) -> AsyncIterator[Stream]:
        """Stream a chat answer. Leaving the context early cancels it."""
        body = {"model": model, "messages": messages, **parameters}
        async with self._stream("/v1/chat/completions", body) as stream:
            yield stream

    @asynccontextmanager
    async def stream_completion(
        self, model: str, prompt: str | Sequence[int], **parameters: Any
    ) -> AsyncIterator[Stream]:
        """Stream the continuation of a prompt. Leaving the context early cancels it."""
        body = {"model": model, "prompt": prompt, **parameters}
        async with self._stream("/v1/completions", body) as stream:
            yield stream

    async def chat(
        self, model: str, messages: Sequence[dict[str, Any]], **parameters: Any
    ) -> Answer:
        return await self._whole(
            "/v1/chat/completions", {"model": model, "messages": messages, **parameters}
        )

    async def complete(self, model: str, prompt: str | Sequence[int], **parameters: Any) -> Answer:
        return await self._whole(
            "/v1/completions", {"model": model, "prompt": prompt, **parameters}
        )

    async def models(self) -> list[Model]:
        async with self._request("GET", "/v1/models") as response:
            return msgspec.json.decode(await response.read(), type=ModelList).data

    async def pool(self) -> Pool:
        async with self._request("GET", "/debug/kv") as response:
            return msgspec.json.decode(await response.read(), type=Pool)

    async def cancel(self, request_id: str) -> None:
        """Cancel a request of this kind of server. ApiError 404 when it is not open."""
        async with self._request("DELETE", f"/v1/requests/{quote(request_id, safe='')}"):
            pass

    @asynccontextmanager
    async def _stream(self, path: str, body: dict[str, Any]) -> AsyncIterator[Stream]:
        body = {"stream_options": {"include_usage": True}, **body, "stream": True}
        async with self._request("POST", path, body) as response:
            yield Stream(response)

    async def _whole(self, path: str, body: dict[str, Any]) -> Answer:
        async with self._request("POST", path, body) as response:
            return read_answer(await response.read())

    @asynccontextmanager
    async def _request(
        self, method: str, path: str, body: dict[str, Any] | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        async with self._session.request(
            method,
            self._root + path,
            data=None if body is None else msgspec.json.encode(body),
            headers={"Content-Type": "application/json"},
        ) as response:
            if response.status >= 400:
                raise read_refusal(
                    response.status, await response.read(), response.headers.get("Retry-After")
                )
            yield response
