"""SIGTERM, from a server's first refusal to its exit code."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from paceline.api.client import Client
from paceline.api.received import ApiError
from support.server import Server, until

PATIENCE = 4
"""Seconds that the server gives its open requests."""


async def follow(client: Client, tokens: int, begun: asyncio.Event) -> str | None:
    """Stream an answer to its end; sets `begun` with the first text. Its finish reason."""
    reason = None
    async with client.stream_completion(
        "tiny", [7, 8, 9], max_tokens=tokens, ignore_eos=True, speculation={"mode": "off"}
    ) as stream:
        async for chunk in stream:
            begun.set()
            reason = chunk.finish_reason or reason
    return reason


async def test_open_requests_finish_or_are_cancelled_in_the_end(tiny_flags):
    with Server(*tiny_flags, "--shutdown-timeout", str(PATIENCE)) as server:
        async with Client(server.url) as client, aiohttp.ClientSession() as http:
            begun = [asyncio.Event(), asyncio.Event()]
            short = asyncio.create_task(follow(client, 300, begun[0]))
            long = asyncio.create_task(follow(client, 8000, begun[1]))
            await asyncio.gather(*(event.wait() for event in begun))
            server.ask_to_end()

            async def draining() -> bool:
                async with http.get(f"{server.url}/health/ready") as response:
                    return response.status == 503

            await until("the server says that it is not ready", draining)
            with pytest.raises(ApiError) as refused:
                await client.complete("tiny", [7, 8, 9], max_tokens=1)
            assert (refused.value.status, refused.value.code) == (503, "draining")
            assert await short == "length"
            assert await long == "cancelled"
        assert await asyncio.to_thread(server.end) == 0
    (line,) = server.named("draining")
    assert line["open_requests"] == 2
