"""GET /v1/plan: expected beside allocated, and what the query may ask."""

from __future__ import annotations

import pytest

from paceline.actors.forecast import Subject, forecast
from paceline.kv.budget import Footprint, Held, Machine, Wish
from paceline.kv.capacity import KvShape

MIB = 1 << 20
FORECAST = forecast(
    Subject("tiny", "head", "float32", "found on this machine", draft_tokens=3),
    Machine("cpu", 1000 * MIB),
    Footprint(
        Held(100 * MIB, 90 * MIB, KvShape(2, 2, 16, 4)), Held(MIB, MIB, KvShape(1, 2, 16, 4)), MIB
    ),
    Wish(16, 4, 512),
)


@pytest.fixture
def planned(edge):
    info = edge.engine.info
    info.forecast, info.blocks = FORECAST, FORECAST.pool.blocks
    info.weight_bytes, info.kv_bytes = 102 * MIB, FORECAST.pool.bytes * 2
    return edge


async def test_expected_beside_allocated(planned):
    plan = await planned.get_json("/v1/plan")
    assert plan["expected"]["target"]["weight_bytes"] == 100 * MIB
    assert plan["expected"]["pool"]["blocks"] == plan["allocated"]["blocks"] == 4 * 512 // 16
    assert plan["allocated"]["weight_bytes"] == 102 * MIB
    assert plan["deviation"] == {
        "weight_bytes": round(102 / 101 - 1, 6), "kv_bytes": 1.0, "blocks": 0.0,
    }  # fmt: skip
    assert plan["expected"]["typical"]["tokens"] == 512
    assert plan["expected"]["rate"] is None


async def test_the_query_says_for_what_to_plan(planned):
    plan = await planned.get_json("/v1/plan?p95_prompt=30&p95_output=10&bandwidth=1e9")
    assert plan["expected"]["typical"] == {
        "source": "given", "prompt": 30, "output": 10, "tokens": 40, "blocks": 3,
        "bytes": 3 * FORECAST.pool.block_bytes,
    }  # fmt: skip
    assert plan["expected"]["rate"]["seconds"] == pytest.approx(90 * MIB / 1e9)


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("p95_prompt=30", "p95_output"),
        ("p95_prompt=30&p95_output=many", "p95_output"),
        ("p95_prompt=0&p95_output=1", "p95_prompt"),
        ("bandwidth=nan", "bandwidth"),
        ("bandwidth=-1", "bandwidth"),
        ("width=3", "width"),
    ],
)
async def test_a_query_that_cannot_be_read_is_named(query, param, planned):
    error = (await planned.get_json(f"/v1/plan?{query}", status=400))["error"]
    assert error["param"] == param


async def test_an_engine_without_a_plan(edge):
    edge.engine.info.forecast = None
    error = (await edge.get_json("/v1/plan", status=404))["error"]
    assert error["code"] == "no_plan"
