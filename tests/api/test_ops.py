"""Models, health, metrics, the pool, version."""

from __future__ import annotations

import msgspec
import pytest
from fake_engine import MODEL

from paceline import __version__
from paceline.actors.inventory import Age, Holding, Leak, Waiting
from paceline.api.server import make_app, serve

CARD = {
    "id": MODEL,
    "object": "model",
    "created": 1_700_000_000,
    "owned_by": "paceline",
    "max_model_len": 2048,
    "speculation": {"methods": ["ngram", "draft"], "default": "ngram", "k": 4},
    "exact": True,
}


async def test_models(edge):
    assert await edge.get_json("/v1/models") == {"object": "list", "data": [CARD]}
    assert await edge.get_json(f"/v1/models/{MODEL}") == CARD
    error = (await edge.get_json("/v1/models/other", status=404))["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")


async def test_health(edge):
    for state, status in (("ready", 200), ("loading", 503), ("draining", 503), ("down", 503)):
        edge.engine.state = state
        assert await edge.get_json("/health/live") == {"status": "live"}
        assert await edge.get_json("/health/ready", status) == {"status": state}


async def test_metrics(edge):
    async with edge.http.get(edge.url + "/metrics") as response:
        assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert await response.read() == b"# HELP x y\n"


@pytest.mark.parametrize("problems", [(), ("block 3 is owned twice",)])
async def test_the_pool(edge, problems):
    edge.engine.inspection = msgspec.structs.replace(edge.engine.inspection, problems=problems)
    assert await edge.get_json("/debug/kv") == {
        "blocks": {"total": 9, "free": 6, "cached": 1, "held": 2, "fenced": 0},
        "ok": not problems,
        "problems": list(problems),
        "running": 2,
        "waiting": 1,
        "step": 0,
        "landed": 0,
        "leaked_blocks": 0,
        "leases": [],
        "fences": [],
        "leaks": [],
    }


async def test_the_pool_names_owners_and_leaks(edge):
    age = Age(12, 3.5)
    held = Holding(4, "r4", "running", 1, 6, 5, known=80, computed=70, age=age, idle=Age(1, 0.1))
    waits = Waiting(5, "r5", 9, True, 2, age)
    leak = Leak("table", "too long", (7,), 4, "r4", age)
    edge.engine.inspection = msgspec.structs.replace(
        edge.engine.inspection, leases=(held,), fences=(waits,), leaks=(leak, leak), landed=8
    )
    pool = await edge.get_json("/debug/kv")
    assert pool["landed"] == 8
    assert pool["leaked_blocks"] == 1
    old = {"steps": 12, "seconds": 3.5}
    assert pool["leases"] == [
        {
            "seq": 4, "request": "r4", "standing": "running", "slot": 1, "blocks": 6, "needed": 5,
            "known": 80, "computed": 70, "age": old, "idle": {"steps": 1, "seconds": 0.1},
        }
    ]  # fmt: skip
    assert pool["fences"][0]["flying"] is True
    assert pool["leaks"][0] == {
        "kind": "table", "text": "too long", "blocks": [7], "seq": 4, "request": "r4", "age": old,
        "idle": None,
    }  # fmt: skip


async def test_cancelling_what_is_not_open(edge):
    async with edge.http.delete(edge.url + "/v1/requests/nobody") as response:
        assert response.status == 404
        error = (await response.json())["error"]
    assert error["code"] == "request_not_found"


async def test_version(edge):
    assert await edge.get_json("/version") == {"version": __version__}


async def test_a_port_that_is_taken(edge):
    with pytest.raises(OSError, match="address already in use"):
        await serve(make_app(edge.engine), "127.0.0.1", edge.site.port)
