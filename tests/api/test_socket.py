"""The WebSocket: frames, several turns at once, cancelling, mistakes, and how it ends."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict

import aiohttp
import pytest
from fake_engine import PROMPT_TOKENS, SEED, FakeEngine, row, silent, usage
from served import CHAT, fill, running
from structlog.testing import capture_logs

from paceline.actors.messages import Accepted, ChatPrompt, Delta, Ended, Refused, TextPrompt
from paceline.spec.params import InputError

HI = {"messages": CHAT["messages"]}


class Wire:
    """A client's end of the socket, in decoded frames."""

    def __init__(self, ws):
        self.ws = ws

    async def start(self, ident, **fields):
        await self.ws.send_json({"type": "start", "id": ident, **(fields or HI)})

    async def send(self, **frame):
        await self.ws.send_json(frame)

    async def receive(self):
        return json.loads(await self.ws.receive_str(timeout=30))

    async def turn(self, ident):
        """Frames of the only running turn up to its end."""
        frames = []
        while not frames or frames[-1]["type"] == "delta":
            frames.append(await self.receive())
            assert frames[-1]["id"] == ident
        return frames


@pytest.fixture
async def wire(edge):
    async with edge.socket(headers={"X-Request-Id": "conn"}) as ws:
        yield Wire(ws)


async def test_a_turn(edge, wire):
    assert wire.ws._response.headers["X-Request-Id"] == "conn"
    await wire.start("a", **HI, temperature=0, stream=True, model=edge.engine.info.model)
    assert await wire.turn("a") == [
        {"type": "delta", "id": "a", "text": "Hello"},
        {"type": "delta", "id": "a", "text": " world"},
        {
            "type": "end",
            "id": "a",
            "finish_reason": "stop",
            "usage": {
                "prompt_tokens": PROMPT_TOKENS,
                "completion_tokens": 3,
                "total_tokens": PROMPT_TOKENS + 3,
                "prompt_tokens_details": {"cached_tokens": 1},
                "speculation": {"method": "ngram", "steps": 3, "drafted": 10, "accepted": 4},
            },
            "seed": SEED,
        },
    ]
    (submit,) = edge.engine.submits
    assert submit.request == "conn:a"
    assert submit.params.temperature == 0
    assert isinstance(submit.prompt, ChatPrompt)


async def test_a_prompt_instead_of_messages(edge, wire):
    await wire.start("a", prompt="hi", logprobs=1)
    frames = await wire.turn("a")
    assert edge.engine.submits[0].prompt == TextPrompt("hi")
    assert frames[0]["logprobs"]["tokens"] == ["Hello"]
    assert frames[1]["logprobs"]["text_offset"] == [5, 9]


async def test_chat_logprobs(wire):
    await wire.start("a", **HI, logprobs=True, top_logprobs=1)
    frames = await wire.turn("a")
    assert [it["token"] for it in frames[1]["logprobs"]["content"]] == [" wor", "ld"]


async def test_several_choices_in_one_turn(wire):
    await wire.start("a", **HI, n=3)
    texts = defaultdict(str)
    ends = []
    while len(ends) < 3:
        frame = await wire.receive()
        if frame["type"] == "delta":
            texts[frame["index"]] += frame["text"]
        else:
            ends.append(frame)
    assert texts == dict.fromkeys(range(3), "Hello world")
    assert sorted(end["index"] for end in ends) == [0, 1, 2]
    assert ["usage" in end for end in ends] == [False, False, True]
    assert ends[-1]["usage"]["completion_tokens"] == 9


async def test_twenty_turns_at_once(edge, wire):
    """Each turn's frames arrive in its own order, with its own text, whatever the interleaving."""
    edge.engine.script = silent
    turns = [f"turn-{number}" for number in range(20)]
    for ident in turns:
        await wire.start(ident)
    streams = dict(zip(turns, await edge.engine.opened(20), strict=True))
    plan = [ident for ident in turns for _ in range(10)]
    random.Random(1).shuffle(plan)
    for stream in streams.values():
        stream.accept()
    said = defaultdict(list)
    for number, ident in enumerate(plan):
        said[ident].append(f"{number} ")
        streams[ident].put(Delta(0, f"{number} "))
        if len(said[ident]) == 10:
            streams[ident].end(completion=10)
        if number % 7 == 0:
            await asyncio.sleep(0)
    heard, ended = defaultdict(list), set()
    while len(ended) < 20:
        frame = await wire.receive()
        assert frame["id"] not in ended
        if frame["type"] == "delta":
            heard[frame["id"]].append(frame["text"])
        else:
            assert frame["finish_reason"] == "stop"
            ended.add(frame["id"])
    assert {ident: "".join(parts) for ident, parts in heard.items()} == {
        ident: "".join(parts) for ident, parts in said.items()
    }
    assert edge.engine.abandoned == []


async def test_cancelling_one_of_two(edge, wire):
    edge.engine.script = silent
    await wire.start("a")
    await wire.start("b")
    a, b = await edge.engine.opened(2)
    for stream in (a, b):
        stream.accept()
        stream.put(Delta(0, "x"))
    for _ in range(2):
        assert (await wire.receive())["text"] == "x"
    await wire.send(type="cancel", id="a")
    end = await wire.receive()
    assert (end["id"], end["finish_reason"]) == ("a", "cancelled")
    assert end["usage"]["completion_tokens"] == 2
    b.put(Delta(0, "y"))
    assert await wire.receive() == {"type": "delta", "id": "b", "text": "y"}
    await wire.send(type="cancel", id="a")
    assert (await wire.receive())["error"]["code"] == "unknown_id"
    b.end()
    assert (await wire.receive())["finish_reason"] == "stop"
    assert edge.engine.abandoned == [("conn:a", "client")]


@pytest.mark.parametrize("n", [1, 2])
async def test_cancelling_before_it_was_admitted(edge, wire, n):
    edge.engine.script = silent
    await wire.start("a", **HI, n=n)
    (stream,) = await edge.engine.opened()
    stream.put(Refused("cancelled before it was admitted", status=499, code="cancelled"))
    ends = [await wire.receive() for _ in range(n)]
    assert [end["finish_reason"] for end in ends] == ["cancelled"] * n
    assert ends[-1]["usage"]["total_tokens"] == 0
    assert ends[-1]["seed"] is None


async def test_a_turn_can_be_deleted_over_http(edge, wire):
    edge.engine.script = silent
    await wire.start("a/b?c")
    (stream,) = await edge.engine.opened()
    stream.accept()
    async with edge.http.delete(f"{edge.url}/v1/requests/conn:a%2Fb%3Fc") as response:
        assert response.status == 200
    assert (await wire.receive())["finish_reason"] == "cancelled"


async def test_an_id_is_free_again_after_its_end(wire):
    for _ in range(3):
        await wire.start("a")
        assert (await wire.turn("a"))[-1]["finish_reason"] == "stop"


async def test_an_id_that_runs_is_refused_and_its_turn_goes_on(edge, wire):
    edge.engine.script = silent
    await wire.start("a")
    (stream,) = await edge.engine.opened()
    await wire.start("a")
    frame = await wire.receive()
    assert (frame["type"], frame["id"], frame["error"]["code"]) == ("error", "a", "duplicate_id")
    stream.accept()
    stream.end()
    assert (await wire.receive())["finish_reason"] == "stop"


START = {"type": "start", "id": "a"}


@pytest.mark.parametrize(
    ("frame", "ident", "param", "code"),
    [
        ("{", None, None, "invalid_json"),
        ("[1]", None, None, "invalid_json"),
        (b"{}", None, None, "invalid_json"),
        ({}, None, "type", None),
        ({"type": "stop", "id": "a"}, "a", "type", None),
        ({"type": 3}, None, "type", None),
        ({"type": "ping", "x": 1}, None, "x", "unknown_field"),
        ({"type": "cancel", "id": "a", "x": 1}, "a", "x", "unknown_field"),
        ({"type": "cancel"}, None, "id", "missing_field"),
        ({"type": "cancel", "id": "zz"}, "zz", "id", "unknown_id"),
        ({"type": "start", **HI}, None, "id", "missing_field"),
        ({"type": "start", "id": 3, **HI}, None, "id", None),
        ({"type": "start", "id": "", **HI}, None, "id", None),
        ({"type": "start", "id": "a b", **HI}, None, "id", None),
        (START, "a", "messages", "missing_field"),
        ({**START, **HI, "prompt": "x"}, "a", "messages", "missing_field"),
        ({**START, "messages": []}, "a", "messages", "invalid_value"),
        ({**START, **HI, "x": 1}, "a", "x", "unknown_field"),
        ({**START, **HI, "echo": True}, "a", "echo", "unsupported_field"),
        ({**START, **HI, "stream": False}, "a", "stream", "unsupported_field"),
        ({**START, **HI, "temperature": 3}, "a", "temperature", None),
        ({**START, **HI, "model": "other"}, "a", "model", "model_not_found"),
        ({**START, **HI, "model": 1}, "a", "model", "invalid_value"),
    ],
)
async def test_a_mistake_costs_one_frame(edge, wire, frame, ident, param, code):
    if isinstance(frame, dict):
        frame = json.dumps(frame)
    await (wire.ws.send_bytes if isinstance(frame, bytes) else wire.ws.send_str)(frame)
    answer = await wire.receive()
    assert (answer["type"], answer["id"]) == ("error", ident)
    assert (answer["error"]["param"], answer["error"]["code"]) == (param, code)
    assert edge.engine.submits == []
    await wire.send(type="ping")
    assert await wire.receive() == {"type": "pong"}


@pytest.mark.parametrize("code", ["too_many", None])
async def test_a_refused_turn(edge, wire, code):
    edge.engine.script = lambda _: [Refused("no", "prompt", status=429, code=code)]
    await wire.start("a")
    assert await wire.receive() == {
        "type": "error",
        "id": "a",
        "error": {"message": "no", "type": "rate_limit_error", "param": "prompt", "code": code},
    }


@pytest.mark.parametrize(
    ("fault", "code"),
    [(Ended(0, "error", usage(1), "broke"), "engine_error"), (OSError("x"), "internal_error")],
)
async def test_a_turn_that_fails(edge, wire, fault, code):
    edge.engine.script = silent
    await wire.start("a")
    (stream,) = await edge.engine.opened()
    stream.accept()
    with capture_logs() as logs:
        stream.put(fault)
        frame = await wire.receive()
    assert (frame["type"], frame["id"], frame["error"]["code"]) == ("error", "a", code)
    assert [it["request"] for it in logs] == (["conn:a"] if code == "internal_error" else [])
    await wire.send(type="ping")
    assert await wire.receive() == {"type": "pong"}


async def test_an_engine_that_takes_nothing(edge, wire):
    edge.engine.state = "draining"
    await wire.start("a")
    assert (await wire.receive())["error"]["code"] == "draining"


async def test_too_many_turns_on_one_connection():
    engine = FakeEngine(silent)
    async with running(engine, max_turns=2) as edge, edge.socket() as ws:
        wire = Wire(ws)
        for ident in "abc":
            await wire.start(ident)
        frame = await wire.receive()
        assert (frame["id"], frame["error"]["code"]) == ("c", "too_many_turns")
        (a, _) = await engine.opened(2)
        a.accept()
        a.end()
        assert (await wire.receive())["id"] == "a"
        await wire.start("c")
        await engine.opened(3)


async def test_a_frame_that_is_too_large_closes_the_connection():
    async with running(FakeEngine(silent), max_frame=1000) as edge, edge.socket() as ws:
        await Wire(ws).start("a")
        (stream,) = await edge.engine.opened()
        await ws.send_str("x" * 2000)
        message = await ws.receive(timeout=30)
        assert message.type is aiohttp.WSMsgType.CLOSE
        assert message.data == aiohttp.WSCloseCode.MESSAGE_TOO_BIG
        await asyncio.wait_for(stream.closed.wait(), 30)


@pytest.mark.parametrize("how", ["close", "abort"])
async def test_closing_the_socket_abandons_every_turn(edge, how):
    edge.engine.script = silent
    with capture_logs() as logs:
        async with edge.socket() as ws:
            wire = Wire(ws)
            for number in range(6):
                await wire.start(str(number))
            streams = await edge.engine.opened(6)
            for stream in streams[2:]:
                stream.accept()
            for stream in streams[4:]:
                stream.put(Delta(0, "x", (1,), (row(1),)))
                await wire.receive()
            if how == "abort":
                ws._response.connection.transport.abort()
            else:
                await ws.close()
            for stream in streams:
                await asyncio.wait_for(stream.closed.wait(), 30)
    assert sorted(edge.engine.abandoned) == sorted((it.request, "client") for it in streams)
    assert logs == []


async def test_leaving_right_after_a_start(edge):
    edge.engine.script = silent
    for number in range(20):
        async with edge.socket(headers={"X-Request-Id": f"c{number}"}) as ws:
            await Wire(ws).start("a")
    await settle(edge)
    assert {name for name, _ in edge.engine.abandoned} == set(edge.engine.streams)


HANDSHAKE = (
    b"GET /v1/ws HTTP/1.1\r\nHost: test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MTIzNDU2Nzg5MDEyMzQ1Ng==\r\n\r\n"
)


async def start_raw(writer, idents):
    """Start turns over a bare connection, in frames masked with zeros."""
    for ident in idents:
        frame = json.dumps({"type": "start", "id": ident, **HI}).encode()
        writer.write(bytes([0x81, 0x80 | len(frame), 0, 0, 0, 0]) + frame)
    await writer.drain()


async def settle(edge):
    for stream in edge.engine.streams.values():
        await asyncio.wait_for(stream.closed.wait(), 30)


async def test_a_client_that_does_not_read_holds_up_its_turns_and_can_still_leave(edge):
    edge.engine.script = silent
    _, writer = await edge.raw(HANDSHAKE)
    await start_raw(writer, "ab")
    streams = await edge.engine.opened(2)
    for stream in streams:
        stream.accept()
    await fill(streams)
    waiting = [stream.waiting for stream in streams]
    for stream in streams:
        stream.put(Delta(1, "x"))
    await asyncio.sleep(0.05)
    assert [stream.waiting - 1 for stream in streams] == waiting

    # A close frame, and still it does not read: nothing can be flushed, all has to end.
    tasks = len(asyncio.all_tasks())
    writer.write(bytes([0x88, 0x82, 0, 0, 0, 0]) + (1000).to_bytes(2, "big"))
    await settle(edge)
    assert len(edge.engine.abandoned) == 2
    for _ in range(500):
        if len(asyncio.all_tasks()) <= tasks - 2:
            break
        await asyncio.sleep(0.01)
    assert len(asyncio.all_tasks()) <= tasks - 2, "the turns' tasks are gone"
    writer.transport.abort()


async def test_only_one_turn_writes_at_a_time(edge):
    """While a turn waits for the client to read, the others take one event each and wait too."""
    edge.engine.script = silent
    _, writer = await edge.raw(HANDSHAKE)
    await start_raw(writer, "ab")
    big, small = await edge.engine.opened(2)
    for stream in (big, small):
        stream.accept()
    await fill([big])
    for _ in range(10):
        small.put(Delta(0, "x"), Delta(1, "y"))
    await asyncio.sleep(0.05)
    assert small.waiting == 19
    writer.transport.abort()
    await settle(edge)


async def test_writing_to_a_client_that_is_just_gone(edge, caplog):
    edge.engine.script = silent
    with capture_logs() as logs:
        async with edge.socket() as ws:
            await Wire(ws).start("a")
            (stream,) = await edge.engine.opened()
            stream.accept()
            stream.put(Delta(0, "x"))
            await Wire(ws).receive()
            stream.put(Delta(0, "y"))
            edge.drop_connections()
            await settle(edge)
    assert edge.engine.abandoned == [(stream.request, "client")]
    assert logs == []
    assert caplog.records == []


async def test_answering_a_client_that_is_just_gone(edge, caplog):
    def gone(submit):
        edge.drop_connections()
        raise InputError("no")

    edge.engine.open = gone
    with capture_logs() as logs:
        async with edge.socket() as ws:
            await Wire(ws).start("a")
            await ws.receive(timeout=30)
    assert logs == []
    assert caplog.records == []


async def test_the_server_says_that_it_goes_away():
    engine = FakeEngine(silent)
    async with running(engine) as edge, edge.socket() as ws:
        await Wire(ws).start("a")
        (stream,) = await engine.opened()
        closing = asyncio.create_task(edge.site.close())
        message = await ws.receive(timeout=30)
        assert message.data == aiohttp.WSCloseCode.GOING_AWAY
        await closing
        await asyncio.wait_for(stream.closed.wait(), 30)
    assert engine.abandoned == [(stream.request, "client")]


async def test_a_plain_get_is_refused(edge):
    answer = await edge.get_json("/v1/ws", status=400)
    assert answer["error"]["type"] == "invalid_request_error"


async def test_the_engine_may_hold_text_back(edge, wire):
    edge.engine.script = lambda _: [
        Accepted(PROMPT_TOKENS, SEED),
        Delta(0, "", (1,)),
        Ended(0, "stop", usage(1)),
    ]
    await wire.start("a")
    assert (await wire.receive())["type"] == "end"
