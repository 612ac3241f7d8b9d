"""Framing of server-sent events: the parser, and keep-alive comments in real streams."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from fake_engine import FakeEngine, silent
from hypothesis import given
from hypothesis import strategies as st
from served import COMPLETION, ROUTES, running

from paceline.actors.messages import Delta
from paceline.api.sse import KEEP_ALIVE, EventParser, EventStream

LINES = st.text(st.characters(blacklist_characters="\r\n", codec="utf-8"))
NOISE = st.sampled_from(["", ": comment", ":", "event: x", "id: 4", "retry: 10", "dat: y", "datax"])


@st.composite
def streams(draw):
    """Events as lists of data lines, and one of the ways to write them down, cut in pieces."""
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    events = draw(st.lists(st.lists(LINES, min_size=1)))
    text = draw(st.sampled_from(["", ": hello" + end * 2]))
    for event in events:
        for line in event:
            for noise in draw(st.lists(NOISE.filter(bool), max_size=2)):
                text += noise + end
            # one space after the colon belongs to the framing, so a line that begins with one
            # needs it
            space = " " if line.startswith(" ") else draw(st.sampled_from(["", " "]))
            text += f"data:{space}{line}" + end
        text += end
    raw = text.encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(raw)))))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    return events, pieces


@given(streams())
def test_any_cut_of_a_stream_gives_the_same_events(case):
    events, pieces = case
    parser = EventParser()
    found = [event for piece in pieces for event in parser.feed(piece)]
    assert found == ["\n".join(event).encode() for event in events]


def test_an_event_without_its_blank_line_has_not_come():
    parser = EventParser()
    assert parser.feed(b"data: a\n") == []
    assert parser.feed(b"\ndata: b") == [b"a"]


@pytest.mark.parametrize("path", ROUTES)
async def test_silence_is_filled_with_comments_from_the_acceptance_on(path):
    async with running(FakeEngine(silent), keep_alive=0.01) as edge:
        request = edge.begin(path, {**ROUTES[path], "stream": True})
        (stream,) = await edge.engine.opened()
        stream.accept()
        async with await request as response:
            before = b""
            while before.count(KEEP_ALIVE) < 2:
                before += await response.content.readany()
            assert b"stop" not in before
            stream.put(Delta(0, "text"))
            after = b""
            while after.count(KEEP_ALIVE) < 2:
                after += await response.content.readany()
            stream.end()
            rest = await response.read()
    events = EventParser().feed(before + after + rest)
    assert events[-1] == b"[DONE]"
    assert sum(b'"text"' in event for event in events) >= 1
    assert all(event == b"[DONE]" or event.startswith(b'{"id":') for event in events)


async def test_a_stream_that_is_never_silent_has_no_comments(edge):
    async with edge.post("/v1/completions", {**COMPLETION, "stream": True}) as response:
        assert KEEP_ALIVE not in await response.read()


async def test_a_comment_and_an_event_are_never_written_at_once():
    async def handler(request):
        async with EventStream(request, 0.001) as events:
            write, events.response.write = events.response.write, slow
            for _ in range(20):
                await asyncio.sleep(0.002)
                await events.send(b"x")
            events.response.write = write
        return events.response

    async def slow(data):
        nonlocal inside
        inside += 1
        seen.append((inside, data))
        await asyncio.sleep(0.002)
        inside -= 1

    inside, seen = 0, []
    app = web.Application()
    app.router.add_get("/", handler)
    async with TestClient(TestServer(app)) as client:
        await (await client.get("/")).read()
    assert {count for count, _ in seen} == {1}
    assert {data for _, data in seen} == {b"data: x\n\n", KEEP_ALIVE}


async def test_each_event_is_on_the_wire_before_the_next_one_exists():
    async with running(FakeEngine(silent)) as edge:
        request = edge.begin("/v1/completions", {**COMPLETION, "stream": True})
        (stream,) = await edge.engine.opened()
        stream.accept()
        async with await request as response:
            for word in ("one", "two", "three"):
                stream.put(Delta(0, word))
                received = b""
                while not received.endswith(b"\n\n"):
                    received += await asyncio.wait_for(response.content.readany(), 30)
                assert received.count(b"data: ") == 1
                assert f'"{word}"'.encode() in received
            stream.end()
            await response.read()
