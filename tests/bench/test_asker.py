"""What the client measures, over real HTTP, against a server whose times are known exactly.

Both read one clock, which stands still unless the server moves it; so what the client says can be
compared to the last bit, on any machine.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import msgspec
import pytest
from aiohttp.test_utils import TestServer

from paceline.api.received import ApiError
from paceline.bench.asker import Asker, Target
from paceline.bench.records import Record
from paceline.bench.workloads import Ask
from support.mock_server import PIECES, TOKENS, Mock, SteppedClock

CHAT = Ask(16, [{"role": "user", "content": "hi"}])
TEXT = Ask(16, prompt="hi")


@asynccontextmanager
async def asking(mock: Mock, path: str = "", model: str = "m", **more) -> AsyncIterator[Asker]:
    async with TestServer(mock.app) as server:
        url = str(server.make_url(path))
        async with Asker(Target(url=url, model=model, **more)) as asker:
            yield asker


async def asked(mock: Mock, ask: Ask = CHAT, due: float = 0.0, **more) -> Record:
    async with asking(mock, **more) as asker:
        return await asker.ask(3, ask, due, mock.clock or (lambda: 0.0))


@pytest.mark.parametrize("ask", [CHAT, TEXT])
async def test_times_are_the_servers_to_the_last_bit(ask):
    times = [0.25, 0.375, 1.0]
    record = await asked(Mock(clock=SteppedClock(), times=times), ask, due=-0.5)
    assert record == Record(
        number=3, due=-0.5, sent=0.0, ended=1.0, times=times, sizes=[len(p) for p in PIECES],
        prompt_tokens=5, tokens=TOKENS, finish="length",
    )  # fmt: skip
    assert record.ttft == 0.75
    assert record.tpot == 0.75 / (TOKENS - 1)
    assert record.gaps == [0.125, 0.625]
    assert record.e2e == 1.5


async def test_pieces_that_come_together_have_one_time():
    record = await asked(Mock())
    assert record.times == [0.0] * 3
    assert record.tokens == TOKENS


async def test_without_usage_the_tokens_are_not_known():
    record = await asked(Mock(usage=None))
    assert record.tokens is None
    assert record.counted == len(PIECES)
    assert record.error is None


async def test_what_the_server_tells_of_drafts_and_of_its_cache():
    drafts = {"method": "draft", "steps": 3, "drafted": 9, "accepted": 4}
    cached = {"cached_tokens": 2}
    usage = {"completion_tokens": 7, "speculation": drafts, "prompt_tokens_details": cached}
    record = await asked(Mock(usage=usage))
    assert (record.steps, record.drafted, record.accepted) == (3, 9, 4)
    assert record.cached_tokens == 2
    assert record.prompt_tokens is None


async def test_the_request_is_what_was_asked_for():
    mock = Mock()
    body = {"speculation": {"mode": "off"}, "max_tokens": 5}
    await asked(mock, ignore_eos=False, temperature=0.5, body=body)
    await asked(mock, TEXT)
    assert mock.bodies[0] == {
        "path": "/v1/chat/completions", "model": "m", "temperature": 0.5, "stream": True,
        "stream_options": {"include_usage": True}, "messages": CHAT.messages, **body,
    }  # fmt: skip
    assert mock.bodies[1]["path"] == "/v1/completions"
    assert mock.bodies[1]["prompt"] == "hi"
    assert mock.bodies[1]["ignore_eos"] is True


@pytest.mark.parametrize(
    ("mock", "error", "message"),
    [
        (Mock(failure=429), "http 429", "not today"),
        (Mock(broken=b'data: {"error": {"message": "oh"}}\n\n'), "stream", '{"message":"oh"}'),
        (Mock(broken=b"data: {\n\n"), "garbled", "truncated"),
        (Mock(finish=None), "cut", "finish_reason"),
        (Mock(broken=b""), "cut", "finish_reason"),
    ],
)
async def test_failures_are_records_with_their_kind(mock, error, message):
    record = await asked(mock)
    assert record.error == error
    assert message in record.message
    assert len(record.times) == (0 if mock.failure else 3), "what came before counts"


async def test_an_answer_that_never_ends_runs_out_of_patience():
    record = await asked(Mock(silent=True), patience=0.2)
    assert record.error == "timeout"


async def test_a_server_that_is_not_there():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with Asker(Target(url=f"http://127.0.0.1:{taken.getsockname()[1]}", model="")) as it:
            assert (await it.ask(0, CHAT, 0.0, lambda: 0.0)).error == "connect"
            with pytest.raises(aiohttp.ClientError):
                await it.first_model()


async def test_a_connection_that_breaks_off():
    async def half(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\ndata: {}\n\n")
        writer.close()

    server = await asyncio.start_server(half, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Asker(Target(url=f"http://127.0.0.1:{port}", model="")) as asker:
        assert (await asker.ask(0, CHAT, 0.0, lambda: 0.0)).error == "cut"


async def test_a_server_that_promises_to_keep_a_connection_and_drops_it():
    event = b'data: {"choices": [{"text": "a", "finish_reason": "length"}]}\n\n'
    head = b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5\r\nContent-Length: %d\r\n\r\n" % len(event)

    async def once(reader, writer):
        asked = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(asked.lower().split(b"content-length:")[1].split()[0]))
        writer.write(head + event)
        await reader.read(1)  # until the client says more, or closes
        writer.close()

    server = await asyncio.start_server(once, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Asker(Target(url=f"http://127.0.0.1:{port}", model="")) as asker:
        records = [await asker.ask(number, TEXT, 0.0, lambda: 0.0) for number in range(3)]
    assert [record.error for record in records] == [None] * 3


async def test_cancelling_is_not_a_failure_of_the_server():
    mock = Mock(silent=True)
    async with asking(mock) as asker:
        task = asyncio.create_task(asker.ask(0, CHAT, 0.0, lambda: 0.0))
        while not mock.bodies:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_the_first_model_and_the_counters():
    async with asking(Mock(metrics="a 1\n"), "/v1/") as asker:
        assert await asker.first_model() == "mock"
        assert await asker.counters() == "a 1\n"
    async with asking(Mock()) as asker:
        assert await asker.counters() is None


async def test_a_server_that_lists_no_model(monkeypatch):
    async def none(self, request):
        return aiohttp.web.json_response({"data": []})

    monkeypatch.setattr(Mock, "_models", none)
    async with asking(Mock()) as asker:
        with pytest.raises(ApiError, match="no model"):
            await asker.first_model()


def test_thoughts_are_text_too():
    from paceline.bench.asker import _Event

    told = msgspec.json.decode(
        b'{"choices": [{"delta": {"content": "", "reasoning_content": "hm"}}, {"delta": {}}]}',
        type=_Event,
    )
    assert [choice.size() for choice in told.choices] == [2, 0]
