"""A server whose KV is kept in eight bits: the same answers, drafted or not, alone or together."""

from __future__ import annotations

import asyncio

import pytest
from asking import METHODS
from pools import whole_pool
from prompts import QUESTIONS

from paceline.api.client import Client
from support.server import Server

FORMATS = ("--kv-dtype", "int8", "--draft-kv-dtype", "int8", "--device", "cpu")


@pytest.mark.parametrize("full_layers", ["0", None])
async def test_answers_do_not_depend_on_drafts_or_company(tiny_flags, full_layers):
    """None: a target of eight bits and a draft of sixteen."""
    flags = FORMATS if full_layers else FORMATS[:2]
    with Server(*tiny_flags, *flags) as server:
        said = next(line for line in server.lines if line["event"] == "serving")
        assert said["kv"] == ("int8" if full_layers else "int8, draft bfloat16")
        async with Client(server.url) as client:

            async def ask(i: int, method: str):
                return await client.complete(
                    "tiny",
                    QUESTIONS[i],
                    max_tokens=80,
                    ignore_eos=True,
                    temperature=0.8 * (i % 2),
                    seed=i,
                    logprobs=0,
                    speculation=METHODS[method],
                )

            alone = {i: await ask(i, "off") for i in range(4)}
            ways = [(i, method) for i in range(4) for method in METHODS]
            together = await asyncio.gather(*(ask(*way) for way in ways))
            await whole_pool(client)
        drafted = 0
        for (i, method), answer in zip(ways, together, strict=True):
            assert answer.texts == alone[i].texts
            assert answer.usage.completion_tokens == 80
            drafted += answer.usage.speculation.drafted if method == "draft" else 0
        assert drafted > 100
        assert len({answer.texts[0] for answer in alone.values()}) == 4
