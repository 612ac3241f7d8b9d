"""Clients that leave, and requests that are cancelled: the answer ends, the blocks come back."""

from __future__ import annotations

import asyncio
import json
import uuid
from contextlib import asynccontextmanager

import aiohttp
import pytest
from pools import metrics, pool_in_use, sample, whole_pool
from prompts import QUESTIONS, asked

from paceline.api.client import Client
from paceline.api.received import ApiError
from support.server import Server

pytestmark = pytest.mark.demo

ENDLESS = {
    "model": "demo",
    "messages": asked(QUESTIONS[0]),
    "temperature": 0,
    "max_tokens": 1500,
    "ignore_eos": True,
}
PROMPT = list(range(1000, 2792))
"""Seven steps' worth of tokens."""


@pytest.fixture
def ident() -> str:
    return uuid.uuid4().hex


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


@asynccontextmanager
async def posted(http, demo, ident, body, path="/v1/chat/completions"):
    async with http.post(demo.url + path, json=body, headers={"X-Request-Id": ident}) as response:
        assert response.status == 200
        yield response


async def events(response):
    """The chunks of a stream, and None for its regular end."""
    async for line in response.content:
        if line.startswith(b"data: "):
            data = line.removeprefix(b"data: ").strip()
            yield None if data == b"[DONE]" else json.loads(data)


async def text_begins(stream) -> None:
    async for chunk in stream:
        choice = chunk["choices"][0]
        if choice["delta"].get("content"):
            return
    raise AssertionError("the stream ended without a text")


async def assert_given_up(
    demo: Server, client: Client, ident: str, *, begun: bool | None = None
) -> None:
    """The log says that the request was cancelled on its way, and nothing is held any more.
    begun: whether it must, or must not, have had a token."""
    line = await demo.logged("request", id=ident)
    assert line["finish"] == "cancelled"
    assert line["completion_tokens"] < 1500
    assert begun is None or begun == bool(line["completion_tokens"])
    await whole_pool(client)
    assert sample(await metrics(demo.url), "num_requests_running") == 0


@pytest.mark.parametrize("method", ["ngram", "draft"])
async def test_a_client_leaves_a_stream(demo, client, http, ident, method):
    body = ENDLESS | {"stream": True, "speculation": {"mode": "force", "method": method}}
    async with posted(http, demo, ident, body) as response:
        await text_begins(events(response))
        assert (await client.pool()).blocks.held
    await assert_given_up(demo, client, ident, begun=True)


async def test_a_client_leaves_before_a_whole_answer(demo, client, http, ident):
    async def answer():
        async with posted(http, demo, ident, ENDLESS):
            pass

    waiting = asyncio.create_task(answer())
    await pool_in_use(client)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await assert_given_up(demo, client, ident)


async def test_a_client_leaves_while_its_prompt_is_computed(demo, client, http, ident):
    body = {"model": "demo", "prompt": PROMPT, "stream": True, "max_tokens": 8}
    async with posted(http, demo, ident, body, "/v1/completions"):
        await pool_in_use(client)
    await assert_given_up(demo, client, ident, begun=False)


async def test_a_stream_is_cancelled_by_its_id(demo, client, http, ident):
    async with posted(http, demo, ident, ENDLESS | {"stream": True}) as response:
        stream = events(response)
        await text_begins(stream)
        await client.cancel(ident)
        *_, ending, done = [chunk async for chunk in stream]
    assert ending["choices"][0]["finish_reason"] == "cancelled"
    assert done is None
    await assert_given_up(demo, client, ident, begun=True)
    with pytest.raises(ApiError) as gone:
        await client.cancel(ident)
    assert gone.value.status == 404


async def test_a_whole_answer_is_cancelled_by_its_id(demo, client, http, ident):
    async def answer():
        async with posted(http, demo, ident, ENDLESS) as response:
            return await response.json()

    waiting = asyncio.create_task(answer())
    await pool_in_use(client)
    await client.cancel(f"chatcmpl-{ident}")
    document = await waiting
    assert document["choices"][0]["finish_reason"] == "cancelled"
    line = await demo.logged("request", id=ident)
    assert document["usage"]["completion_tokens"] == line["completion_tokens"]
    await assert_given_up(demo, client, ident)


async def test_the_server_answers_while_a_prompt_is_computed(demo, http, ident):
    """Health is asked again and again before the first token is there, and answers more often than
    between two steps."""
    body = {"model": "demo", "prompt": PROMPT, "stream": True, "max_tokens": 1}
    body["speculation"] = {"mode": "off"}
    async with posted(http, demo, ident, body, "/v1/completions") as response:
        first = asyncio.create_task(anext(events(response)))
        answers = 0
        while not first.done():
            async with http.get(f"{demo.url}/health/ready") as health:
                assert health.status == 200
            answers += not first.done()
            await asyncio.sleep(0.02)
        assert (await first)["choices"][0]["finish_reason"] is None
    assert answers >= 10
