"""The client, against the edge and against servers that are only roughly like it."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from fake_engine import MODEL, PROMPT_TOKENS, FakeEngine, silent
from served import running

from paceline.actors.messages import Delta, Refused
from paceline.api.client import Client
from paceline.api.received import ApiError, Chunk, SpeculationUsage, Usage

MESSAGES = [{"role": "user", "content": "hi"}]
USED = Usage(PROMPT_TOKENS, 3, SpeculationUsage("ngram", 3, 10, 4))


@pytest.fixture(params=["", "/", "/v1", "/v1/"])
async def client(edge, request):
    async with Client(edge.url + request.param) as client:
        yield client


async def test_streams(edge, client):
    async with client.stream_chat(MODEL, MESSAGES, temperature=0) as stream:
        chunks = [chunk async for chunk in stream]
        assert stream.request_id in edge.engine.streams
    assert "".join(chunk.text for chunk in chunks) == "Hello world"
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["stop"]
    assert chunks[-1] == Chunk(usage=USED)
    async with client.stream_completion(MODEL, [1, 2], n=2) as stream:
        texts = ["", ""]
        async for chunk in stream:
            texts[chunk.index] += chunk.text
    assert texts == ["Hello world"] * 2
    assert [submit.params.temperature for submit in edge.engine.submits] == [0, 1]


async def test_whole_answers(client):
    for answer in (
        await client.chat(MODEL, MESSAGES, n=2),
        await client.complete(MODEL, "hi", n=2),
    ):
        assert answer.texts == ["Hello world"] * 2
        assert answer.finish_reasons == ["stop"] * 2
        assert answer.usage.completion_tokens == 6


async def test_models_and_pool(client):
    (model,) = await client.models()
    assert (model.id, model.owned_by, model.max_model_len) == (MODEL, "paceline", 2048)
    pool = await client.pool()
    assert (pool.ok, pool.blocks.total, pool.blocks.held, pool.running) == (True, 9, 2, 2)


async def test_errors():
    async with running(FakeEngine()) as edge, Client(edge.url) as client:
        with pytest.raises(ApiError, match="unknown field") as caught:
            await client.chat(MODEL, MESSAGES, nonsense=1)
        assert (caught.value.status, caught.value.param) == (400, "nonsense")
        assert caught.value.code == "unknown_field"
        edge.engine.script = lambda _: [Refused("full", status=429, retry_after=3)]
        with pytest.raises(ApiError) as caught:
            async with client.stream_chat(MODEL, MESSAGES):
                pass
        assert (caught.value.status, caught.value.retry_after) == (429, "3")
        edge.engine.script = silent
        async with asyncio.TaskGroup() as group:
            group.create_task(fail_in_stream(edge.engine))
            with pytest.raises(ApiError, match="internal server error") as caught:
                async with client.stream_chat(MODEL, MESSAGES) as stream:
                    assert [chunk.text async for chunk in stream] == ["never"]
        assert caught.value.status == 200


async def fail_in_stream(engine):
    stream = (await engine.opened(2))[1]
    stream.accept()
    stream.put(Delta(0, "some"), RuntimeError("x"))


async def test_cancelling():
    async with running(FakeEngine(silent)) as edge, Client(edge.url) as client:
        with pytest.raises(ApiError) as caught:
            await client.cancel("no/such?one")
        assert caught.value.status == 404

        async def accept():
            (answer,) = await edge.engine.opened()
            answer.accept()

        async with asyncio.TaskGroup() as group:
            group.create_task(accept())
            async with client.stream_chat(MODEL, MESSAGES) as stream:
                await client.cancel(stream.request_id)
                reasons = [chunk.finish_reason async for chunk in stream]
        assert "cancelled" in reasons


async def test_leaving_early_is_a_disconnect():
    async with running(FakeEngine(silent)) as edge, Client(edge.url) as client:

        async def accept():
            (answer,) = await edge.engine.opened()
            answer.accept()
            answer.put(Delta(0, "some"))

        async with asyncio.TaskGroup() as group:
            group.create_task(accept())
            async with client.stream_completion(MODEL, "hi") as stream:
                async for chunk in stream:
                    if chunk.text:
                        break
        (answer,) = await edge.engine.opened()
        await asyncio.wait_for(answer.closed.wait(), 30)
        assert edge.engine.abandoned == [(answer.request, "client")]


async def test_a_server_that_is_not_there():
    async with Client("http://127.0.0.1:9") as client:
        with pytest.raises(aiohttp.ClientError):
            await client.models()


# --- other servers -----------------------------------------------------------------------------


async def other(handler):
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    server = TestServer(app)
    await server.start_server()
    return server


async def test_other_servers_shapes():
    body = (
        ": hello\r\n\r\n"
        'data: {"choices":[],"prompt_filter_results":[{"x":1}]}\r\n\r\n'
        'data:{"choices":[{"index":0,"delta":{"role":"assistant","content":null}}],"usage":null}'
        "\r\n\r\n"
        'data: {"choices":[{"delta":{"content":"hé","reasoning":"x"},"finish_reason":null}]}'
        "\r\n\r\n"
        'data: {"choices":[{"delta":{},"finish_reason":"length","stop_reason":null}]}\r\n\r\n'
        'data: {"choices":null,"usage":{"prompt_tokens":1,"completion_tokens":2,"cost":3}}\r\n\r\n'
        "data: [DONE]\r\n\r\n"
    ).encode()

    async def handler(request):
        assert request.headers["Authorization"] == "Bearer key"
        assert await request.json() == {
            "model": "m",
            "messages": MESSAGES,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        response = web.StreamResponse()
        await response.prepare(request)
        for cut in range(0, len(body), 7):
            await response.write(body[cut : cut + 7])
            await asyncio.sleep(0)
        return response

    server = await other(handler)
    async with (
        Client(str(server.make_url("/v1")), api_key="key") as client,
        client.stream_chat("m", MESSAGES) as stream,
    ):
        chunks = [chunk async for chunk in stream]
    await server.close()
    assert chunks == [
        Chunk(),
        Chunk("hé"),
        Chunk(finish_reason="length"),
        Chunk(usage=Usage(1, 2)),
    ]


@pytest.mark.parametrize(
    ("body", "message", "code"),
    [
        ('{"error":{"message":"m","code":7,"type":"t"}}', "m", "7"),
        ('{"error":"plain"}', "plain", None),
        ('{"detail":"x"}', '{"detail":"x"}', None),
        ("<html>", "<html>", None),
        ("", "HTTP status 502", None),
    ],
)
async def test_other_servers_errors(body, message, code):
    async def handler(request):
        return web.Response(text=body, status=502)

    server = await other(handler)
    async with Client(str(server.make_url("/"))) as client:
        with pytest.raises(ApiError) as caught:
            await client.chat("m", MESSAGES)
    await server.close()
    assert (caught.value.message, caught.value.code) == (message, code)
    assert caught.value.status == 502
