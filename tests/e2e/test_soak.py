"""Two hundred clients, most of whom leave at some random moment. Afterwards nothing is left of
them: not a block, a sequence or a request, and no error was logged. And those who stayed were told
what a quiet server tells.

The tiny model's pool holds a fraction of what the crowd wants, so that sequences give way and are
computed again in between.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from pools import metrics, sample, whole_pool
from prompts import QUESTIONS
from visitors import WAYS, Crowd

from paceline.actors.replay import replay
from paceline.api.client import Client
from support.server import Server

VISITS = 200
AT_ONCE = 16
CHECKED = 12
"""Answers that are compared with a quiet server's."""

SPECULATIONS = (
    {"mode": "off"},
    {"mode": "auto"},
    {"mode": "force", "method": "ngram", "k": 8},
    {"mode": "force", "method": "draft", "k": 2},
    {"mode": "force", "method": "draft", "k": 5},
)


def settings(random: Random, tokens: tuple[int, int]) -> dict:
    return {
        "max_tokens": random.randint(*tokens),
        "ignore_eos": True,
        "temperature": random.choice((0.0, 0.7, 1.0)),
        "seed": random.randrange(1000),
        "n": random.choice((1, 1, 1, 2)),
        "speculation": random.choice(SPECULATIONS),
    }


def tiny_body(random: Random) -> dict:
    """Half of the prompts repeat themselves, for the n-grams."""
    words = [random.randrange(3, 512) for _ in range(random.randint(1, 60))]
    prompt = words * random.choice((1, 3))
    return {"model": "tiny", "prompt": prompt, **settings(random, (40, 200))}


def demo_body(random: Random) -> dict:
    prompt = "\n".join(random.sample(QUESTIONS, random.randint(1, 5)))
    return {"model": "demo", "prompt": prompt, **settings(random, (12, 48))}


@pytest.mark.parametrize(
    ("seed", "flights"),
    [
        (1, "1"),
        *(pytest.param(seed, "1", marks=pytest.mark.slow) for seed in range(2, 5)),
        *(pytest.param(seed, "2", marks=pytest.mark.slow) for seed in range(5, 8)),
    ],
)
async def test_nothing_is_left_of_a_crowd(tiny_flags, tmp_path, seed, flights):
    small = ("--kv-memory", "224KiB", "--max-num-seqs", "12", "--max-model-len", "512")
    watched = ("--record", str(tmp_path / "run.msgpack"), "--audit-every", "10")
    with Server(*tiny_flags, *small, *watched, "--max-flights", flights) as server:
        crowd = Crowd(server.url, tiny_body, moment=0.4)
        await soak(server, crowd, seed)
        preemptions = sample(await metrics(server.url), "num_preemptions_total")
        assert preemptions > 0
    assert server.named("draining", open_requests=0)
    seen = replay(tmp_path / "run.msgpack")
    assert seen.difference is None, str(seen.difference)
    assert (seen.fault, seen.unsaid, seen.problems) == (None, 0, [])
    assert seen.preemptions == preemptions
    assert seen.arrivals == seen.ended > VISITS / 2


@pytest.mark.demo
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_is_left_of_a_crowd_at_the_demo_model(demo_flags, seed):
    with Server(*demo_flags) as server:
        await soak(server, Crowd(server.url, demo_body, moment=6.0), seed)
    assert server.named("draining", open_requests=0)


async def soak(server: Server, crowd: Crowd, seed: int) -> None:
    await crowd.visit_all(VISITS, AT_ONCE, seed)
    async with Client(server.url) as client:
        await whole_pool(client)
        seen = await metrics(server.url)
        for name in ("num_requests_running", "num_requests_waiting"):
            assert sample(seen, name) == 0
        assert sample(seen, "kv_cache_usage_perc") == 0
        assert sample(seen, "engine_rebuilds_total") == 0
        assert not server.errors(), server.errors()
        for way in WAYS:
            assert sum(n for it, n in crowd.outcomes.items() if it.startswith(way.__name__)) > 20
        assert crowd.outcomes["delete: cancelled"], crowd.outcomes
        ended = Counter(line["id"] for line in server.named("request"))
        assert set(ended.values()) == {1}, ended.most_common(3)
        for kept in Random(seed).sample(crowd.kept, CHECKED):
            quiet = kept.body | {"speculation": {"mode": "off"}}
            again = await client.complete(quiet.pop("model"), quiet.pop("prompt"), **quiet)
            assert "\n".join(again.texts) == kept.text, kept.body
