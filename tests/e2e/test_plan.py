"""What the demo was expected to hold, and what it holds."""

from __future__ import annotations

import aiohttp
import pytest

pytestmark = pytest.mark.demo


async def test_the_demo_holds_what_was_expected(demo):
    async with aiohttp.ClientSession() as http:
        async with http.get(f"{demo.url}/v1/plan?p95_prompt=300&p95_output=100") as answer:
            plan = await answer.json()
        async with http.get(f"{demo.url}/debug/kv") as answer:
            pool = await answer.json()
    for name, share in plan["deviation"].items():
        assert abs(share) <= 0.01, name
    assert plan["allocated"]["blocks"] == pool["blocks"]["total"]
    assert plan["expected"]["typical"]["blocks"] == 25
    assert 0.03 < plan["expected"]["draft"]["pool_share"] < 0.05
