"""A client that leaves, at every stage of a request: the engine hears of it once, at once."""

from __future__ import annotations

import asyncio
import gc
import json

import aiohttp
import pytest
from aiohttp import web
from fake_engine import FakeEngine, silent
from served import CHAT, COMPLETION, ROUTES, fill, http_request, running
from structlog.testing import capture_logs

from paceline.actors.messages import Delta
from paceline.api.sse import EventStream

STAGES = ["opened", "accepted", "streaming"]


@pytest.fixture
async def quiet():
    """An edge that must log nothing."""
    with capture_logs() as logs:
        async with running(FakeEngine(silent)) as served:
            yield served
    assert logs == []


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ROUTES)
async def test_leaving_abandons_the_request(quiet, path, stream, stage):
    body = json.dumps({**ROUTES[path], "stream": stream, "n": 2}).encode()
    reader, writer = await quiet.raw(http_request(path, body))
    (answer,) = await quiet.engine.opened()
    if stage != "opened":
        answer.accept()
    if stage == "streaming":
        answer.put(Delta(0, "some"))
    if stream and stage != "opened":
        await reader.readuntil(b"some" if stage == "streaming" else b"\r\n\r\n")
    assert quiet.engine.abandoned == []
    writer.close()
    await asyncio.wait_for(answer.closed.wait(), 30)
    assert quiet.engine.abandoned == [(answer.request, "client")]


async def test_an_answer_that_ended_is_not_abandoned(quiet):
    for path, body in ROUTES.items():
        for stream in (False, True):
            request = quiet.begin(path, {**body, "stream": stream})
            answer = (await quiet.engine.opened(len(quiet.engine.submits) + 1))[-1]
            answer.accept()
            answer.put(Delta(0, "all"))
            answer.end()
            async with await request as response:
                assert response.status == 200
                await response.read()
            await asyncio.wait_for(answer.closed.wait(), 30)
    assert quiet.engine.abandoned == []


async def test_leaving_amid_the_upload_opens_nothing(quiet):
    _, writer = await quiet.raw(http_request("/v1/completions", b'{"model":', length=100))
    await asyncio.sleep(0.05)
    writer.close()
    await writer.wait_closed()
    assert await quiet.get_json("/health/live")
    assert quiet.engine.submits == []


@pytest.mark.parametrize("leave", ["close", "reset"])
async def test_a_client_that_does_not_read_holds_up_only_itself(quiet, leave):
    body = json.dumps({**CHAT, "stream": True}).encode()
    reader, writer = await quiet.raw(http_request("/v1/chat/completions", body))
    (answer,) = await quiet.engine.opened()
    answer.accept()
    await reader.readuntil(b"\r\n\r\n")
    await fill([answer])
    waiting = answer.waiting
    answer.put(Delta(0, "x"))
    await asyncio.sleep(0.05)
    assert answer.waiting == waiting + 1, "a handler that cannot write takes no more events"

    other = quiet.begin("/v1/completions", COMPLETION)
    second = (await quiet.engine.opened(2))[1]
    second.accept()
    second.end()
    async with await other as response:
        assert response.status == 200

    if leave == "reset":
        writer.transport.abort()
    else:
        writer.close()
    await asyncio.wait_for(answer.closed.wait(), 30)
    assert quiet.engine.abandoned == [(answer.request, "client")]


async def test_writing_to_a_client_that_is_just_gone(quiet, caplog):
    """The connection is lost after an event has woken the handler, so its write is what fails."""
    body = json.dumps({**CHAT, "stream": True}).encode()
    for stage in ("headers", "text"):
        reader, writer = await quiet.raw(http_request("/v1/chat/completions", body))
        answer = (await quiet.engine.opened(len(quiet.engine.submits) + 1))[-1]
        answer.accept()
        if stage == "text":
            await reader.readuntil(b"\r\n\r\n")
            answer.put(Delta(0, "x"))
        quiet.drop_connections()
        await asyncio.wait_for(answer.closed.wait(), 30)
        writer.close()
    assert len(quiet.engine.abandoned) == 2
    assert caplog.records == []


async def test_a_keep_alive_to_a_client_that_is_gone(caplog):
    """Without cancelled handlers, the comment is what finds out; it ends without a word."""

    async def handler(request):
        async with EventStream(request, 0.001) as events:
            request.transport.abort()
            await asyncio.sleep(0.05)
        gone.set()
        return events.response

    gone = asyncio.Event()
    app = web.Application()
    app.router.add_get("/", handler)
    runner = web.AppRunner(app, handler_cancellation=False)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession() as http:
        with pytest.raises(aiohttp.ClientError):
            async with http.get(f"http://127.0.0.1:{runner.addresses[0][1]}") as response:
                await response.read()
        await asyncio.wait_for(gone.wait(), 30)
    await runner.cleanup()
    gc.collect()
    assert [it for it in caplog.records if it.levelname == "ERROR"] == []


async def test_leaving_during_a_keep_alive():
    with capture_logs() as logs:
        async with running(FakeEngine(silent), keep_alive=0.001) as served:
            body = json.dumps({**COMPLETION, "stream": True}).encode()
            answers = []
            for _ in range(10):
                reader, writer = await served.raw(http_request("/v1/completions", body))
                answers = await served.engine.opened(len(answers) + 1)
                answers[-1].accept()
                await reader.readuntil(b": keep-alive")
                writer.close()
            for answer in answers:
                await asyncio.wait_for(answer.closed.wait(), 30)
            assert served.engine.abandoned == [(it.request, "client") for it in answers]
    assert logs == []


async def test_many_clients_leave_at_many_moments(quiet):
    async def visit(number: int) -> str:
        ident = f"v{number}"
        path = list(ROUTES)[number % 2]
        body = json.dumps({**ROUTES[path], "stream": number % 3 > 0}).encode()
        request = http_request(path, body).replace(
            b"Host: test\r\n", f"Host: test\r\nX-Request-Id: {ident}\r\n".encode()
        )
        _, writer = await quiet.raw(request)
        for turn in range(number % 7):
            await asyncio.sleep(0)
            if turn == 2 and ident in quiet.engine.streams:
                quiet.engine.streams[ident].accept()
        writer.close()
        return ident

    await asyncio.gather(*(visit(number) for number in range(60)))
    for _ in range(3000):
        if not quiet.site.runner.server.connections:
            break
        await asyncio.sleep(0.01)
    for answer in quiet.engine.streams.values():
        await asyncio.wait_for(answer.closed.wait(), 30)
    assert sorted(quiet.engine.abandoned) == sorted(
        (ident, "client") for ident in quiet.engine.streams
    )


async def test_closing_the_site_ends_what_still_runs():
    engine = FakeEngine(silent)
    async with running(engine) as served:
        request = served.begin("/v1/completions", COMPLETION)
        (answer,) = await engine.opened()
        await served.site.close()
        await asyncio.wait_for(answer.closed.wait(), 30)
        with pytest.raises(aiohttp.ClientError):
            await request
    assert engine.abandoned == [(answer.request, "client")]
