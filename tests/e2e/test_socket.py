"""Turns over one WebSocket with the demo model: at once, cancelled, left behind."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import aiohttp
import pytest
from pools import pool_in_use, whole_pool
from prompts import QUESTIONS, asked

pytestmark = pytest.mark.demo

SECONDS = 120


def start(ident: str, question: str, tokens: int, **parameters):
    return {
        "type": "start",
        "id": ident,
        "messages": asked(question),
        "temperature": 0,
        "max_tokens": tokens,
        "ignore_eos": True,
        **parameters,
    }


@pytest.fixture
async def ws(demo):
    async with aiohttp.ClientSession() as http, http.ws_connect(f"{demo.url}/v1/ws") as ws:
        yield ws


async def test_several_turns_at_once_and_one_of_them_cancelled(client, ws):
    short = {"leaves": QUESTIONS[0], "soup": QUESTIONS[4], "shadow": QUESTIONS[6]}
    await ws.send_json(start("long", QUESTIONS[7], 1500, logprobs=True))
    for ident, question in short.items():
        await ws.send_json(start(ident, question, 24))
    deltas, ends = defaultdict(list), {}
    async with asyncio.timeout(SECONDS):
        while len(ends) < 4:
            frame = await ws.receive_json()
            if frame["type"] == "delta":
                if frame["id"] == "long" and "long" not in deltas:
                    await ws.send_json({"type": "cancel", "id": "long"})
                deltas[frame["id"]].append(frame)
            else:
                assert frame["type"] == "end", frame
                ends[frame["id"]] = frame

    long = ends.pop("long")
    assert long["finish_reason"] == "cancelled"
    told = sum(len(frame["logprobs"]["content"]) for frame in deltas["long"])
    assert 0 < told == long["usage"]["completion_tokens"] < 1500
    for ident, end in ends.items():
        assert end["finish_reason"] == "length"
        assert end["usage"]["completion_tokens"] == 24
        alone = await client.chat(
            "demo", asked(short[ident]), temperature=0, max_tokens=24, ignore_eos=True
        )
        assert "".join(frame["text"] for frame in deltas[ident]) == alone.texts[0]
    await whole_pool(client)


async def test_a_socket_that_closes_takes_its_turns_with_it(demo, client):
    async with aiohttp.ClientSession() as http, http.ws_connect(f"{demo.url}/v1/ws") as ws:
        for ident in ("one", "two"):
            await ws.send_json(start(ident, QUESTIONS[9], 1500))
        await pool_in_use(client)
    await whole_pool(client)


async def test_a_mistake_costs_one_frame(ws):
    await ws.send_json(start("bad", QUESTIONS[0], 4, tempo=1))
    await ws.send_json(start("good", QUESTIONS[0], 4))
    frames = []
    async with asyncio.timeout(SECONDS):
        while not frames or frames[-1]["type"] != "end":
            frames.append(await ws.receive_json())
    (error,) = [frame for frame in frames if frame["type"] == "error"]
    assert (error["id"], error["error"]["param"]) == ("bad", "tempo")
    assert frames[-1]["id"] == "good"
