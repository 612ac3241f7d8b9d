"""Looking at a server's block pool and metrics from outside."""

from __future__ import annotations

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from paceline.api.client import Client
from paceline.api.received import Pool
from support.server import until

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


async def whole_pool(client: Client) -> Pool:
    """Wait until every block is free or cached; the pool as it is then, found sound."""

    async def whole() -> Pool | None:
        pool = await client.pool()
        assert pool.ok, pool.problems
        blocks = pool.blocks
        return pool if blocks.free + blocks.cached == blocks.total else None

    pool = await until("every block is free or cached", whole)
    assert (pool.running, pool.waiting) == (0, 0)
    return pool


async def pool_in_use(client: Client) -> Pool:
    """Wait until a sequence runs and holds blocks."""

    async def used() -> Pool | None:
        pool = await client.pool()
        return pool if pool.running and pool.blocks.held else None

    return await until("a sequence holds blocks", used)


async def metrics(url: str) -> Samples:
    """Every sample by its name, without the prefix, and its labels."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        text = await response.text()
    return {
        (sample.name.removeprefix("paceline:"), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def sample(samples: Samples, name: str, **labels: str) -> float:
    """One sample; 0 when it is not there, as of a counter that has not counted."""
    return samples.get((name, tuple(sorted(labels.items()))), 0.0)
